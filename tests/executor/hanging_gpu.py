"""A double of a GPU that works at once, except where a test lets a stream stand; tensors are on the CPU."""

import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from pipesched.executor.core import CudaStreams
from pipesched.executor.runs import local_training
from tests.executor.checkpoint_runs import a_job, locally

GPU = torch.device("cuda", 0)


_LOCK = threading.RLock()


class _Stream:
    """The work of a stream: events, waits for events of others, and times to stand."""

    def __init__(self, device=None):
        self._work, self._is_asked = [], False

    def add(self, work):
        self._work.append(work)

    def wait_event(self, event):
        self.add(event.query)

    def query(self):
        with _LOCK:
            if not self._is_asked:  # else streams that wait for each other ask in a circle
                self._is_asked = True
                while self._work and self._work[0]():
                    self._work.pop(0)
                self._is_asked = False
            return not self._work


class _Event:
    def __init__(self, **given):
        pass

    def record(self, stream):
        self._stream, self._is_over = stream, False
        stream.add(self._end)

    def _end(self):
        self._is_over = True
        return True

    def query(self):
        if not self._is_over:
            self._stream.query()
        return self._is_over


class LeftError(Exception):
    """The process has left."""


class HangingGpu:
    """The torch.cuda of `HangingStreams`, in place of torch's own.

    Attributes:
        code: Exit code of the process, or None before it leaves.
        stands_s: When a stream was first told to stand [s].
    """

    Event, Stream = _Event, _Stream

    def __init__(self, patched):
        self.code = self.stands_s = None
        self._streams, self._current = [], []
        patched.setattr(torch.cuda, "Event", _Event)
        patched.setattr(torch.cuda, "current_stream", lambda index: self._current[-1])

    def streams(self):
        self._streams.append(HangingStreams(self))
        return self._streams[-1]

    @contextmanager
    def stream(self, stream):
        self._current.append(stream)
        yield
        self._current.pop()

    def synchronize(self, device):
        """Block the host, as a GPU does, but end with the process."""
        while not all(own.is_idle() for own in self._streams):
            if self.code is not None:
                raise LeftError
            time.sleep(0.01)

    def leave(self, code):
        self.code = code
        raise RuntimeError("nobody watches any more")

    def probe(self, seconds):
        """Return the probe of a rank: a stream stands for `seconds` of the name of its op, or not at all."""

        def probe(op, stage):
            if str(op) in seconds:
                self.stands_s = self.stands_s or time.monotonic()
                _stand(self._current[-1], seconds[str(op)])
            return lambda value: None

        return probe


def _stand(stream, seconds):
    begun_s = []

    def is_over():
        begun_s.append(time.monotonic())
        return begun_s[-1] >= begun_s[0] + seconds

    stream.add(is_over)


class HangingStreams(CudaStreams):
    def __init__(self, gpu):
        super().__init__(GPU, cuda=SimpleNamespace(Event=gpu.Event, Stream=gpu.Stream, stream=gpu.stream))
        self.synchronize = lambda: gpu.synchronize(GPU)

    def fetch(self, value, ready, peer):
        copies = self._copies(peer, self.device)
        copies.wait_event(ready)
        done = self._cuda.Event()
        done.record(copies)
        return value, done


def main(arguments):
    """Train on such a GPU: its process ends."""
    gpu = HangingGpu(pytest.MonkeyPatch())
    local_training.make_streams = lambda devices, are_green: {rank: gpu.streams() for rank in range(len(devices))}
    local_training.check_finite = gpu.probe({"1F6@1": 3600.0})
    locally(a_job("1f1b", steps=3, timeout_s=0.5, is_finite_checked=True))
