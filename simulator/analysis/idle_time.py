"""Idle time of devices: every idle second is charged to one cause.

A gap between two works of a device is charged to the waits of the op that ends it, by the last of its messages:

    work ├ upstream / downstream ┤ hand_over ├ busy_link ├ transfer ┤ hand_over, overhead ├ op
       ends       message being  Send        its rank    transfer   message               starts
                  computed       posted      has it off  starts     arrives

    warmup      before the device's first work
    upstream    an activation was still being computed
    downstream  a gradient was still being computed
    busy_link   it was made, but the channel was busy or the receiver's buffer not posted
    transfer    it was travelling; or an earlier message of the rank was, and the Send kept its rank
    hand_over   the sender was posting it; or it had arrived, and the rank was posting, taking it, or between two ops
    collective  a Step waited for its Reduce: the replicas were late, or the gradients travelling
    overhead    all inputs had arrived; 0 in a prediction
    cooldown    after the device's last work

The instants are clamped into the gap, so that the charges add up to it whatever the clocks of a measured run say. A
difference within rounding is no gap, and no charge.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, final

import numpy as np

from pipesched.schedules import HandOver, Timeline
from pipesched.schedules.columns import OpColumns, machine_code, message_table, op_cells
from pipesched.schedules.ops import Op, Send
from pipesched.simulator import SAME
from pipesched.simulator.analysis.idle_loop import (
    BUSY,
    CHARGE_PARTS,
    Charges,
    Extent,
    OwnTimes,
    Posts,
    SpanTimes,
    TimedLists,
    Works,
    charge_device,
    find_transfers,
)

SEND_F, SEND_B, REDUCE, UNSHARD, STEP, OVERLAPPED = (
    op_cells.SEND_F, op_cells.SEND_B, op_cells.REDUCE, op_cells.UNSHARD, op_cells.STEP, op_cells.OVERLAPPED,
)  # fmt: skip

CAUSES = (
    "warmup",
    "upstream",
    "downstream",
    "busy_link",
    "transfer",
    "hand_over",
    "collective",
    "overhead",
    "cooldown",
)
"""Every charge has these, in this order."""

_KEPT = "_usage"
"""Where a Timeline keeps the usage of its devices."""


class IdlePart(NamedTuple):
    """A part of a device's idle time with one cause, from `start_s` to `end_s` [s]."""

    cause: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Usage:
    """One device from the timeline's start to its end.

    Attributes:
        busy_s: Length of the union of the device's works [s].
        idle_by_cause_s: (cause, seconds), all of `CAUSES`; with `busy_s` they add up to the makespan.
    """

    device: int
    busy_s: float
    idle_by_cause_s: tuple[tuple[str, float], ...]

    @property
    def idle_s(self) -> float:
        """All idle time [s]."""
        return math.fsum(seconds for _, seconds in self.idle_by_cause_s)


def usage(timeline: Timeline) -> tuple[Usage, ...]:
    """Return the busy time of every device, and its idle time by cause; computed at the first access."""
    known: tuple[Usage, ...] | None = vars(timeline).get(_KEPT)
    if known is not None:
        return known
    charges = _Charges(timeline)
    usages = []
    for device in timeline.devices:
        seconds, _ = charges.of_device(device)
        usages.append(Usage(device, seconds[BUSY], tuple(zip(CAUSES, seconds[:BUSY], strict=True))))
    vars(timeline)[_KEPT] = tuple(usages)  # as a cached property is
    return tuple(usages)


def idle_parts(timeline: Timeline) -> dict[int, tuple[IdlePart, ...]]:
    """Return when every device was idle and why, in order of time: the parts that `usage` adds up."""
    charges = _Charges(timeline)
    return {device: charges.of_device(device, has_parts=True)[1] for device in timeline.devices}


@final
class _Charges:
    """The columns of a Timeline, prepared for the charges of all devices."""

    def __init__(self, timeline: Timeline) -> None:
        self._spans = spans = timeline.columns
        numbers, num_microbatches = _numbered(spans.ops.microbatches)
        self._cells = spans.ops.cells._replace(microbatches=numbers)
        self._begins, self._codes, stages, *_ = self._cells
        self._times_s = SpanTimes(spans.posted_s, spans.starts_s, spans.ends_s)
        num_stages = 1 + machine_code.bounds(stages)[1]
        sends, recvs = (machine_code.int32s(2 * num_stages * num_microbatches, -1) for _ in range(2))
        machine_code.run_loop(
            find_transfers, self._cells, num_stages, num_microbatches, sends, recvs, num_steps=len(self._codes)
        )
        self._extent = Extent(timeline.start_s, timeline.start_s + timeline.makespan_s, SAME * timeline.makespan_s)
        self._reduces, self._open = _awaited(spans.ops, stages)
        reduce_of = machine_code.int32s(len(self._codes) if self._reduces else 0, -1)
        for step, reduce in self._reduces.items():
            reduce_of[step] = reduce
        self._posts = Posts(sends, recvs, reduce_of, self._left(timeline.hand_overs, spans.ops))
        self._own = self._hand_overs(timeline.hand_overs)
        self._lists = TimedLists(
            self._cells, self._times_s, message_table(num_stages), num_microbatches, self._posts, self._own
        )
        self._ranks: defaultdict[int, list[int]] = defaultdict(list)
        for rank, device in enumerate(timeline.rank_to_device):
            self._ranks[device].append(rank)

    def of_device(self, device: int, *, has_parts: bool = False) -> tuple[list[float], tuple[IdlePart, ...]]:
        """Return (idle seconds of each cause, then busy seconds) and, if `has_parts`, the parts of the idle time."""
        works: list[machine_code.Int64s] = []
        late: list[tuple[int, float]] = []
        ranks = self._ranks[device]
        for rank in ranks:
            works.append(self._spans.busy_cells(rank))
            late += self._behind(rank, int(works[-1][-1]) if len(works[-1]) else int(self._begins[rank]) - 1)
        late.sort(key=lambda item: float(self._times_s[0][item[0]]))
        cells, rank_of = self._in_order(ranks, works)
        num_cells = sum(int(self._begins[rank + 1] - self._begins[rank]) for rank in ranks)
        most = 6 * num_cells + 2 * len(self._own.starts_s) + 16 if has_parts else 0
        sums, rests, begins_s, ends_s = (np.zeros(count) for count in (BUSY + 1, BUSY + 1, most, most))
        charges = Charges(sums, rests, machine_code.int32s(most), begins_s, ends_s, machine_code.int32s(1))
        late_cells, late_ends_s = np.array([cell for cell, _ in late], np.int32), np.array([end_s for _, end_s in late])
        machine_code.run_loop(
            charge_device, Works(cells, rank_of, late_cells, late_ends_s), self._extent, self._lists, charges,
            num_steps=num_cells, parts=CHARGE_PARTS,
        )  # fmt: skip
        seconds = [float(whole + rest) for whole, rest in zip(sums, rests, strict=True)]
        count = charges.num_parts[0]
        parts = zip(charges.causes[:count], begins_s[:count], ends_s[:count], strict=True)
        return seconds, tuple(IdlePart(CAUSES[cause], float(begin_s), float(end_s)) for cause, begin_s, end_s in parts)

    def _in_order(
        self, ranks: Sequence[int], works: Sequence[machine_code.Int64s]
    ) -> tuple[machine_code.Int32s, machine_code.Int32s]:
        """Return the works of some ranks in order of their starts, and the rank of each."""
        cells = np.concatenate(works).astype(np.int32)
        rank_of = np.repeat(np.array(ranks, np.int32), [len(own) for own in works])
        begun_s = self._times_s[1][cells]
        if (begun_s[1:] >= begun_s[:-1]).all():
            return cells, rank_of
        order = np.argsort(begun_s, kind="stable")
        return cells[order], rank_of[order]

    def _behind(self, rank: int, last: int) -> Iterator[tuple[int, float]]:
        """Yield each cell that a rank waits for after its last work, and the end of the wait [s]."""
        (posted_s, starts_s, ends_s), left_s = self._times_s, self._posts.left_s
        begin, end, same_s = int(self._begins[rank]), int(self._begins[rank + 1]), self._extent.same_s
        for cell in range(last + 1, end):
            before = cell - 1
            if before >= begin and SEND_F <= self._codes[before] <= SEND_B:
                off_s = left_s[before] if len(left_s) else posted_s[before]
                if posted_s[cell] >= starts_s[before] - same_s and off_s + same_s < posted_s[cell]:
                    yield before, float(min(ends_s[before], posted_s[cell]))
            if cell in self._reduces:
                yield self._reduces[cell], float(ends_s[self._reduces[cell]])
        for cell in self._open.get(rank, ()):
            yield cell, float(ends_s[cell])

    def _hand_overs(self, hand_overs: Sequence[HandOver]) -> OwnTimes:
        """Return the hand-overs by rank."""
        if not hand_overs:
            return OwnTimes(machine_code.int32s(0), np.empty(0), np.empty(0))
        ordered = sorted(hand_overs, key=lambda hand_over: hand_over.rank)
        begins = [bisect_left(ordered, rank, key=lambda hand_over: hand_over.rank) for rank in range(len(self._begins))]
        starts_s, ends_s = [h.start_s for h in ordered], [h.end_s for h in ordered]
        return OwnTimes(np.array(begins, np.int32), np.array(starts_s), np.array(ends_s))

    def _left(self, hand_overs: Sequence[HandOver], ops: OpColumns) -> Any:
        """Return the time when the rank has posted each Send [s]; empty if posting takes no time anywhere."""
        if not hand_overs:
            return np.empty(0)
        left_s: dict[tuple[int, Op], float] = {(h.rank, h.op): h.end_s for h in hand_overs if isinstance(h.op, Send)}
        result = self._times_s[0].copy()
        for rank, (begin, end) in enumerate(pairwise(map(int, self._begins))):
            for cell in range(begin, end):
                if SEND_F <= self._codes[cell] <= SEND_B:
                    result[cell] = left_s.get((rank, ops.op_at(cell)), result[cell])
        return result


def _numbered(microbatches: machine_code.Int32s) -> tuple[machine_code.Int32s, int]:
    """Return micro-batches as numbers without large gaps, and their count."""
    count = 1 + machine_code.bounds(microbatches)[1]
    if count <= 4 * len(microbatches) + 1000:
        return microbatches, count
    number_of = {microbatch: number for number, microbatch in enumerate(sorted({*map(int, microbatches)}))}
    numbers = [number_of[int(microbatch)] for microbatch in microbatches]
    return np.array(numbers, np.int32), len(number_of)


def _awaited(ops: OpColumns, stages: Any) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Return the awaited cell of each Step and computation, and for each rank the Reduces that no Step waits for.

    A Step waits for the Reduce of its stage before it, and a computation for the Unshard. The cell of an
    Overlap is its first.
    """
    waits: dict[int, int] = {}
    left: dict[int, list[int]] = {}
    if not ops.counts[REDUCE] and not ops.counts[UNSHARD]:
        return waits, left
    codes, is_meant = ops.codes, np.isin(ops.codes, (REDUCE, UNSHARD, STEP))
    if ops.counts[UNSHARD]:
        is_meant |= (codes < SEND_F) | (codes >= OVERLAPPED)
    cells = np.flatnonzero(is_meant)
    for rank, (first, last) in enumerate(pairwise(np.searchsorted(cells, ops.begins).tolist())):
        reduces: dict[int, int] = {}
        unshards: dict[int, int] = {}
        for cell in cells[first:last].tolist():
            code, stage = int(codes[cell]), int(stages[cell])
            if code in (REDUCE, UNSHARD):
                (reduces if code == REDUCE else unshards)[stage] = cell
            elif code == STEP and stage in reduces:
                waits[cell] = reduces.pop(stage)
            elif code != STEP and stage in unshards:
                is_second = cell > ops.begins[rank] and codes[cell - 1] >= OVERLAPPED
                waits[cell - is_second] = max(unshards.pop(stage), waits.get(cell - is_second, -1))
        left[rank] = [*reduces.values()]
    return waits, left
