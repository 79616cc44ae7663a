"""Models that fail at a given forward of one layer; run by the processes of a test as ``faulty_models:...``.

`benchmarks/faults.py` runs `failing` in bulk.
"""

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from pipesched.executor.launch.injected_faults import note_time


class Faulty(nn.Module):
    """Does `fault` at its forward number `at`; with `at` None at every one, also outside of training."""

    def __init__(self, fault, at):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self._fault, self._at, self._calls = fault, at, 0

    def forward(self, x):
        if self._at is None or (self.training and self._calls == self._at):
            self._fault()
        self._calls += self.training
        return self.linear(x)


def of(layers):
    return layers, functional.mse_loss, lambda n, seed: (torch.ones(n, 4), torch.zeros(n, 4))


def model(fault, layer, at, layers=3):
    return of([Faulty(fault, at) if index == layer else nn.Linear(4, 4) for index in range(layers)])


def _raise():
    raise KeyError("a layer's own fault")


def raising(layer: int, at: int = 2):
    return model(_raise, layer, at)


def always_raising(layer: int):
    return model(_raise, layer, None)


def killed(layer: int):
    return model(lambda: os.kill(os.getpid(), signal.SIGKILL), layer, 2)


def leaving(layer: int):
    return model(lambda: os._exit(7), layer, 2)


def stopping(layer: int):
    return model(lambda: os.kill(os.getpid(), signal.SIGSTOP), layer, 2)


def with_a_child(file: str):
    """Start a process that goes on, in a session of its own, write its number to a file, and fail."""

    def fault():
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        Path(file).write_text(str(child.pid))
        _raise()

    return model(fault, 1, 2)


def sleeping(layer: int):
    return model(lambda: time.sleep(1000), layer, 2)


def sleeping_with_the_lock(layer: int):
    """Sleep in a library that never gives Python's lock to another thread."""
    return model(lambda: ctypes.PyDLL(None).sleep(1000), layer, 2)


def with_a_slow_disk(seconds: float):
    """What a rank, a process of its own, writes takes long to be on its disk."""
    sync = os.fsync

    def slow_sync(file):
        time.sleep(seconds)
        sync(file)

    if "RANK" in os.environ:
        os.fsync = slow_sync
    return model(lambda: None, 0, None)


def plain():
    return of([nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)])


def without_data():
    def batch(n, seed):
        raise KeyError("no such data")

    return [nn.Linear(4, 4) for _ in range(3)], functional.mse_loss, batch


def killed_once(mark: str):
    """Kill the process at the fifth forward of the second layer, and leave a file by which others know that it was."""

    def kill():
        if not Path(mark).exists():
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return model(kill, 1, 5)


class Failing(Faulty):
    """Raises, or gives another shape or NaN, at its forward number `at`.

    When a process comes to the first forward of a training, it leaves its number in a folder that the environment
    names: so others see that it is at work.
    """

    def __init__(self, how, at):
        super().__init__(_raise if how == "raise" else lambda: None, at)
        self._how = how

    def forward(self, x):
        if self.training and not self._calls and "PIPESCHED_FAULTS_AT_WORK" in os.environ:
            (Path(os.environ["PIPESCHED_FAULTS_AT_WORK"]) / str(os.getpid())).touch()
        is_now = self.training and self._calls == self._at and self._how != "none"
        if is_now:
            note_time()
        y = super().forward(x)
        if is_now and self._how == "shape":
            return y[:, :2]
        return y * torch.nan if is_now else y


def failing(how: str, layer: int = -1, at: int = 0):
    """Return eight layers; `how` is ``raise``, ``shape``, ``nan`` or ``none``."""
    return of([Failing(how if index == layer else "none", at) for index in range(8)])
