"""The last ops of a run, and how much later each ends than the same op some micro-batches before."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain, pairwise, starmap
from typing import final

from pipesched.schedules import Timeline
from pipesched.schedules.columns import OpColumns, op_cells
from pipesched.simulator import SAME, SteadyPace
from pipesched.simulator.fast.timeline_extents import busy_s, idle_share


@final
class LateOps:
    """The computations of some micro-batches of a run, found once for any times.

    Args:
        ops: All ops of the run.
        microbatches: The micro-batches.
    """

    def __init__(self, ops: OpColumns, microbatches: range) -> None:
        begins, codes, stages, numbers, _ = ops.in_lists
        ranks = chain.from_iterable(starmap(_repeated, enumerate(pairwise(begins))))
        self.ops = ops
        self._cells = {
            (rank, code % op_cells.OVERLAPPED, stage, number): cell
            for cell, (rank, code, stage, number) in enumerate(zip(ranks, codes, stages, numbers, strict=True))
            if code < op_cells.SEND_F or code >= op_cells.OVERLAPPED
        }
        self._late = [(key, cell) for key, cell in self._cells.items() if key[3] in microbatches]
        self._before: dict[int, list[int]] = {}

    def pace(self, timeline: Timeline, lags: Iterable[int]) -> SteadyPace | None:
        """Return the pace of the first lag at which each computation follows its earlier one by the same time.

        Args:
            timeline: Timeline of the run.
            lags: Micro-batches to look back, each tried in turn.

        Returns:
            The pace, or None if no lag gives one.
        """
        ends_s = timeline.columns.ends_s.tolist()
        late = [(rank, ends_s[cell]) for (rank, *_), cell in self._late]
        for lag in lags:
            before = self._cells_before(lag)
            gains_s = [end_s - ends_s[cell] for (_, end_s), cell in zip(late, before, strict=False)]
            if len(before) < len(late) or not math.isclose(min(gains_s), max(gains_s), rel_tol=SAME):
                continue
            gain_s = math.fsum(gains_s) / len(gains_s)
            last_s = max(end_s for _, end_s in late)
            until_s: dict[int, float] = {}
            for rank, end_s in late:
                device = timeline.rank_to_device[rank]
                until_s[device] = max(until_s.get(device, 0.0), end_s)
            ends_of = {device: until_s.get(device, last_s) for device in timeline.devices}
            windows = {device: (end_s - gain_s, end_s) for device, end_s in ends_of.items()}
            return SteadyPace(gain_s / lag, idle_share(busy_s(timeline, windows), len(windows), gain_s))
        return None

    def _cells_before(self, lag: int) -> list[int]:
        """Return the cells of the same ops a lag before; nothing where one is missing."""
        if lag not in self._before:
            keys = [(*key[:3], key[3] - lag) for key, _ in self._late]
            are_there = all(map(self._cells.__contains__, keys))
            self._before[lag] = [self._cells[key] for key in keys] if are_there else []
        return self._before[lag]


def _repeated(rank: int, cells: tuple[int, int]) -> list[int]:
    return [rank] * (cells[1] - cells[0])
