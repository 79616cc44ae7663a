"""Timers of a measurement: the processor's clock, and the accelerator's events."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import final

import torch


class Timer(ABC):
    """Notes moments; tells the seconds between each and the next."""

    @abstractmethod
    def mark(self) -> None:
        """Take note of the present moment as the end of a lap."""

    @abstractmethod
    def laps_s(self) -> list[float]:
        """Return the seconds between successive marks, and forget them."""

    def launches_s(self) -> list[float]:
        """Return the host's seconds of the last laps; empty where work is done when its call returns."""
        return []


@final
class CpuTimer(Timer):
    """For work that is done when the call returns."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> None:
        """Take note of the present moment as the end of a lap."""
        self._marks.append(time.perf_counter())

    def laps_s(self) -> list[float]:
        """Return the seconds between successive marks, and forget them."""
        marks, self._marks = self._marks, []
        return [end - start for start, end in pairwise(marks)]


@final
class CudaTimer(Timer):
    """For work that is queued: the accelerator notes the moment when it gets there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[torch.cuda.Event] = []
        self._host_s: list[float] = []
        self._launches_s: list[float] = []

    def mark(self) -> None:
        """Record an event on the accelerator, and the host's time."""
        self._host_s.append(time.perf_counter())
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # untyped in torch
        event.record(torch.cuda.current_stream(self._device))
        self._marks.append(event)

    def laps_s(self) -> list[float]:
        """Return the seconds between successive marks, and forget them."""
        marks, self._marks = self._marks, []
        self._launches_s = [end - start for start, end in pairwise(self._host_s)]
        self._host_s = []
        torch.cuda.synchronize(self._device)
        return [start.elapsed_time(end) / 1000 for start, end in pairwise(marks)]

    def launches_s(self) -> list[float]:
        """Return the seconds in which the host launched the last laps."""
        return self._launches_s


def timer_for(device: torch.device) -> Timer:
    """Return the timer that is right for `device`."""
    return CudaTimer(device) if device.type == "cuda" else CpuTimer()
