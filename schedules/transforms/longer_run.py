"""Longer runs of a schedule without a flush, to measure its steady state.

A schedule of the catalogue is built again with more micro-batches. Any other list is extended: each rank's list
contains a block that repeats with higher micro-batch numbers, and this block is repeated more often. PipeDream on
rank 0 of 3 ranks, whose block F B is repeated for each micro-batch:

    6 micro-batches    F0 F1 | F2 B0 | F3 B1 | F4 B2 | F5 B3 | B4 B5
    8 micro-batches    F0 F1 | F2 B0 | F3 B1 | F4 B2 | F5 B3 | F6 B4 | F7 B5 | B6 B7
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

from pipesched.schedules import NotRunnableError, Schedule, ScheduleError
from pipesched.schedules.builders import build, lookup
from pipesched.schedules.columns import op_cells
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import ENDS_MICROBATCH, Op, Phase, Step, computes, moved
from pipesched.schedules.transforms.recomputation import recompute
from pipesched.schedules.transforms.replication import replicate
from pipesched.schedules.transforms.training_run import microbatches_per_step

_MOST_PERIODS = 32
"""Most periods to try: 1, 2, 3, .. times the micro-batches of a step."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """The continuation of a run without a flush.

    Attributes:
        longer: Makes a run at least the given number of times as long.
        period: Micro-batches from one repeated block to the next, or None for the micro-batches of a step.
    """

    longer: Callable[[int], Schedule]
    period: int | None = None


def runs_without_flush(schedule: Schedule) -> bool:
    """Whether a stage steps between the forward and the backward of some micro-batch, or the traits state it."""
    if schedule.traits.is_asynchronous or not schedule.is_held:
        return schedule.traits.is_asynchronous
    if schedule.columns.counts[op_cells.STEP] <= sum(len(schedule.stages_on(r)) for r in range(schedule.num_ranks)):
        return False
    return any(map(_steps_in_flight, schedule.ops))


def _steps_in_flight(row: Sequence[Op]) -> bool:
    in_flight: Counter[int] = Counter()
    for op in row:
        if isinstance(op, Step) and in_flight[op.stage]:
            return True
        for part in computes(op):
            in_flight[part.stage] += (part.phase is Phase.FORWARD) - (part.phase in ENDS_MICROBATCH)
    return False


def continuation(schedule: Schedule) -> Continuation:
    """Return the continuation of a run without a flush.

    Raises:
        ScheduleError: The lists do not repeat, or repeat in several ways.
    """
    if _is_built(schedule):
        return Continuation(partial(_built, schedule))
    parts = _repeating_parts(schedule)
    return Continuation(partial(_continued, schedule, parts), parts[0].period)


def _is_built(schedule: Schedule) -> bool:
    """Whether the catalogue builds exactly these lists."""
    entry = lookup(schedule.origin) if schedule.origin else None
    if entry is None or entry.build_generated is None:
        return False
    try:
        again = _built(schedule, 1)
        return (lower(again) if schedule.is_lowered else again).ops == schedule.ops
    except ScheduleError:
        return False


def _built(schedule: Schedule, times: int) -> Schedule:
    assert schedule.origin is not None, "it was looked up"
    num_ranks, num_microbatches = schedule.num_ranks // schedule.width, schedule.num_microbatches // schedule.width
    made = build(schedule.origin, num_ranks, times * num_microbatches, None, **dict(schedule.parameters))
    made = replicate(made, schedule.width)
    if schedule.columns.recomputes:
        parts = (part for row in schedule.ops for op in row for part in computes(op))
        is_late_of = {part.stage: part.is_late for part in parts if part.phase is Phase.RECOMPUTE}
        made = recompute(made, [*is_late_of], "late" if any(is_late_of.values()) else "early")
    return replace(made, name=schedule.name, rank_to_device=schedule.rank_to_device)


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a rank's list that repeats.

    Attributes:
        period: Micro-batches from a block to the next.
        begin: Index of the first op of the first block.
        length: Ops of a block.
        steps: New versions of each stage from a block to the next.
    """

    period: int
    begin: int
    length: int
    steps: Counter[int]

    def continued(self, row: Sequence[Op], count: int) -> Iterator[Op]:
        """Yield `row` with `count` more blocks behind the first one."""
        end = self.begin + self.length
        yield from row[:end]
        for block in range(1, count + 1):
            yield from (self.moved(op, block) for op in row[self.begin : end])
        yield from (self.moved(op, count) for op in row[end:])

    def moved(self, op: Op, blocks: int = 1) -> Op:
        """Return `op` with its micro-batch number `blocks` blocks later."""
        return moved(op, blocks * self.period, lambda stage: blocks * self.steps[stage])

    def repeats(self, row: Sequence[Op], place: int) -> bool:
        """Whether the op at index `place` of `row` is repeated one block later."""
        later = place + self.length
        return later < len(row) and self.moved(row[place]) == row[later]


def _continued(schedule: Schedule, parts: Sequence[_Part], times: int) -> Schedule:
    period = parts[0].period
    count = -(-(times - 1) * schedule.num_microbatches // period)
    return replace(
        schedule,
        num_microbatches=schedule.num_microbatches + count * period,
        lists=tuple(tuple(part.continued(row, count)) for part, row in zip(parts, schedule.ops, strict=True)),
    )


def _repeating_parts(schedule: Schedule) -> list[_Part]:
    """Return the repeating part of each rank's list, for the shortest period.

    Raises:
        ScheduleError: No part repeats, or several parts of a rank do.
    """
    try:
        step = microbatches_per_step(schedule)
    except NotRunnableError:
        raise
    except ScheduleError:  # a stage never steps
        step = 1
    for period in range(step, min(schedule.num_microbatches // 2, _MOST_PERIODS * step) + 1, step):
        parts_of = [*takewhile(bool, (_parts_of(row, period) for row in schedule.ops))]
        if len(parts_of) < schedule.num_ranks or not _is_whole(schedule, [parts[0] for parts in parts_of]):
            continue
        if most := max((parts for parts in parts_of if len(parts) > 1), default=None, key=len):
            raise ScheduleError(
                f"{schedule.name}: got {len(most)} repeated parts in the list of a rank, expected one, as each part "
                "has a steady state of its own; try a schedule for each part"
            )
        return [parts[0] for parts in parts_of]
    raise ScheduleError(
        f"{schedule.name}: got lists without a flush in which the ranks do not repeat one block of ops, expected such "
        "a block; try more micro-batches"
    )


def _is_whole(schedule: Schedule, parts: Sequence[_Part]) -> bool:
    """Whether the blocks of all ranks together have each phase of each stage once for each micro-batch of a period."""
    counts: Counter[tuple[Phase, int]] = Counter()
    for part, row in zip(parts, schedule.ops, strict=True):
        counts += _phases(row[part.begin : part.begin + part.length])
    return counts.keys() == _phases(op for row in schedule.ops for op in row).keys() and {*counts.values()} == {
        parts[0].period
    }


def _phases(ops: Sequence[Op] | Iterator[Op]) -> Counter[tuple[Phase, int]]:
    return Counter((part.phase, part.stage) for op in ops for part in computes(op))


def _parts_of(row: Sequence[Op], period: int) -> list[_Part]:
    """Return the parts of a rank's list that repeat `period` micro-batches later and contain all its phases."""
    place_of = {_parts_key(op, 0): place for place, op in enumerate(row) if computes(op)}
    has_versions = any(part.version for op in row for part in computes(op))
    wanted, parts, place = _phases(iter(row)).keys(), list[_Part](), 0
    while place < len(row):
        length = place_of.get(_parts_key(row[place], period), place) - place if computes(row[place]) else 0
        if length <= 0:
            place += 1
            continue
        block = row[place : place + length]
        steps = Counter(op.stage for op in block if isinstance(op, Step) and has_versions)
        part, end = _Part(period, place, length, steps), place
        while part.repeats(row, end):
            end += 1
        if end - place >= length and _phases(block).keys() == wanted:
            parts.append(part)
            place = end + length
        else:
            place = max(place + 1, end)
    return parts


def _parts_key(op: Op, later: int) -> tuple[tuple[Phase, int, int], ...]:
    return tuple((part.phase, part.stage, part.microbatch + later) for part in computes(op))
