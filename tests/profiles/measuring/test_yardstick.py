"""The yardstick times the device that it is given."""

import threading
from types import SimpleNamespace

import pytest
import torch

from pipesched.profiles.measuring import timing


class Recorder:
    """PyTorch with GPUs that are cores, which notes on which devices it is asked to do what."""

    device = torch.device

    def __init__(self, current=0):
        self.made, self.waited = [], []
        self.cuda = SimpleNamespace(current_device=lambda: current, synchronize=self._synchronize)

    def __getattr__(self, name):
        return getattr(torch, name)

    def ones(self, *size, device):
        self.made.append(device)
        return torch.ones(2, 2) if size else None

    def _synchronize(self, device=None):
        self.waited.append((device, threading.current_thread() is threading.main_thread()))


@pytest.mark.parametrize(
    ("device", "timed"), [(torch.device("cuda", 1), 1), (torch.device("cuda", 0), 0), ("cuda", 2), ("cuda:3", 3)]
)
def test_the_gpu_that_is_timed_is_waited_for_in_the_thread_that_asks(device, timed, monkeypatch):
    recorder = Recorder(current=2)
    monkeypatch.setattr(timing, "torch", recorder)
    assert timing.yardstick_s(1, device, 3) > 0
    gpu = torch.device("cuda", timed)
    assert recorder.made == [gpu, gpu]
    assert recorder.waited == [(gpu, True), (gpu, True)]


def test_cores_are_not_waited_for(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(timing, "torch", recorder)
    assert timing.yardstick_s(2, "cpu", 3) > 0
    assert recorder.waited == []
