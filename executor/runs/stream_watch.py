"""The watch of ranks on streams of this process: a thread that ends the process if a GPU hangs."""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NoReturn, final

from pipesched.executor.core import Batch, CudaStreams, DevicePosition, Rank, RankStreams, polled
from pipesched.executor.launch import FAILED, ProgressPage, Stillness, reported_standstill
from pipesched.executor.runs.local_runner import run_local
from pipesched.executor.training import LaunchTimes
from pipesched.schedules.common import printable
from pipesched.schedules.ops import Op


@final
class StreamWatch:
    """Runs ranks of this process, and ends the process if a GPU stands still with work of a rank.

    No exception reaches a thread that waits for a GPU. So another thread prints the rank and the op at which the GPU
    stands, as a launcher does, and leaves with the exit code of a failed rank. While all GPUs are idle, the host may
    take as long as it likes.

    Args:
        streams: Streams of each rank; ranks on CPUs are not watched.
        timeout_s: Longest wait of a rank for one message.
        spent_s: Returns the time that was spent inside lists on other work than launching [s].
        is_paused: Returns whether a list runs other work now, which may take as long as it likes.
        leave: Ends this process with an exit code.

    Attributes:
        launching: The launching so far, or None if no rank is on a GPU.
    """

    def __init__(
        self,
        streams: Mapping[int, RankStreams],
        timeout_s: float,
        spent_s: Callable[[], float] = lambda: 0.0,
        is_paused: Callable[[], bool] = lambda: False,
        leave: Callable[[int], NoReturn] = os._exit,
    ) -> None:
        self._streams = {
            rank: own for rank, own in streams.items() if isinstance(own, CudaStreams) and own.device.type == "cuda"
        }
        self._timeout_s, self._spent_s, self._is_paused, self._leave = timeout_s, spent_s, is_paused, leave
        self._page = ProgressPage.in_memory(len(streams))
        self._positions = {rank: self._position(rank, own) for rank, own in self._streams.items()}
        self._stillness = Stillness(timeout_s)
        self.launching = LaunchTimes() if self._streams else None

    def _position(self, rank: int, streams: CudaStreams) -> DevicePosition:
        row = self._page.device_row(rank)
        row.begin()
        position = DevicePosition(streams.device, row.reach, row.wait)
        streams.on_wait = position.wait
        return position

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the GPUs inside the block; all runs happen inside it."""
        self._stillness = Stillness(self._timeout_s)
        with polled(self._positions.values(), judge=self._judge):
            yield

    def run(self, ranks: Sequence[Rank], batches: Mapping[int, Batch]) -> None:
        """Run every rank's list once, as `run_local`; all ranks of the streams take part."""
        if self.launching is None:
            run_local(ranks, batches)
            return
        bound = list[bool]()

        def on_launched() -> None:
            bound.append(not any(position.is_behind() for position in self._positions.values()))

        begun_s, spent_s, sofar = time.perf_counter(), self._spent_s(), self.launching
        launch_s = run_local([self._followed(rank) for rank in ranks], batches, on_launched)
        run_s, spent_s = time.perf_counter() - begun_s, self._spent_s() - spent_s
        self.launching = LaunchTimes(
            sofar.launch_s + launch_s - spent_s,
            sofar.run_s + run_s - spent_s,
            sofar.num_passes + 1,
            sofar.num_bound + bound[0],
        )

    def _followed(self, rank: Rank) -> Rank:
        """Return a rank whose ops the watch follows, by their names in messages."""
        position = self._positions[rank.rank]

        def at(index: int, op: Op) -> None:
            rank.at(index, op)
            position.at(index, rank.named(op))

        return replace(rank, at=at)

    def _judge(self) -> None:
        if self._is_paused() or all(own.is_idle() for own in self._streams.values()):
            self._stillness = Stillness(self._timeout_s)
            return
        states = {rank: self._page.read(rank)._replace(rank=rank) for rank in self._streams}
        if self._stillness.is_over([*states.values()], lambda: False):
            stacks = {min(states): _stacks()}
            try:
                error = reported_standstill(states, lambda _: (), lambda _: stacks, is_on_cpus=False)
                print(f"pipesched: {printable(str(error))}", file=sys.stderr, flush=True)
            finally:
                self._leave(FAILED)  # also if nobody reads the line


def _stacks() -> str:
    """Return the stacks of all threads of this process; empty if no file can be written."""
    with suppress(OSError), tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()
    return ""
