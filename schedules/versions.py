"""Which weights each op reads: versions, their age, and how many live at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from schedules.op import Compute, Phase, Step, computes
from schedules.schedule import Schedule, stages_of


@dataclass(frozen=True, slots=True)
class Read:
    """One reading of weights.

    Attributes:
        current: Steps that the stage has done when the op runs.
    """

    rank: int
    op: Compute
    current: int

    @property
    def staleness(self) -> int:
        """How many steps the weights read are behind the newest."""
        return self.current - self.op.version


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One version of a stage's weights on one rank.

    Attributes:
        made: Position of the Step that made it in the rank's list; -1 for the weights at the start.
        replaced: Position of the Step that makes the next version; the length of the list if there is none.
        last_read: Position of the last op that reads it; -1 if none does.
    """

    rank: int
    stage: int
    version: int
    made: int
    replaced: int
    last_read: int

    @property
    def is_stashed(self) -> bool:
        """Whether a copy must outlive the Step that replaces it."""
        return self.last_read > self.replaced


def reads(schedule: Schedule) -> Iterator[Read]:
    """Yield every reading of weights: each Compute, in order of rank and list."""
    for rank, row in enumerate(schedule.ops):
        steps = dict.fromkeys(stages_of(row), 0)
        for op in row:
            if isinstance(op, Step):
                steps[op.stage] = steps.get(op.stage, 0) + 1
            for part in computes(op):
                yield Read(rank, part, steps[part.stage])


def is_consistent(schedule: Schedule) -> bool:
    """Whether F and the backward of every (stage, microbatch) read the same weights."""
    seen: dict[tuple[int, int], tuple[int, int]] = {}
    for read in reads(schedule):
        weights = (read.op.version, read.op.lookahead)
        if seen.setdefault((read.op.stage, read.op.microbatch), weights) != weights:
            return False
    return True


def lifetimes(schedule: Schedule, rank: int) -> tuple[Lifetime, ...]:
    """Return every version of every stage of `rank`: when it is made, replaced and last read."""
    row = schedule.ops[rank]
    found: list[Lifetime] = []
    for stage in stages_of(row):
        steps = [index for index, op in enumerate(row) if isinstance(op, Step) and op.stage == stage]
        last_read = {
            part.version: index for index, op in enumerate(row) for part in computes(op) if part.stage == stage
        }
        for version, (made, replaced) in enumerate(zip([-1, *steps], [*steps, len(row)], strict=True)):
            found.append(Lifetime(rank, stage, version, made, replaced, last_read.get(version, -1)))
    return tuple(found)


def live_versions(schedule: Schedule) -> dict[tuple[int, int], int]:
    """Return, for each (rank, stage), how many versions are held at most at once, the newest included.

    A version is held until the Step that replaces it, and beyond it (stashed) until its last reader is done.
    """
    most: dict[tuple[int, int], int] = {}
    for rank in range(schedule.num_ranks):
        lives = lifetimes(schedule, rank)
        for stage in stages_of(schedule.ops[rank]):
            mine = [life for life in lives if life.stage == stage]
            changes = sorted(
                [(life.made, 1) for life in mine] + [(max(life.replaced, life.last_read + 0.5), -1) for life in mine]
            )
            held = peak = 0
            for _, change in changes:
                held += change
                peak = max(peak, held)
            most[rank, stage] = peak
    return most


def in_flight(schedule: Schedule) -> tuple[int, ...]:
    """Return, for each rank, the most (stage, microbatch) pairs between F and the end of the backward at once."""
    peaks = []
    for row in schedule.ops:
        held = peak = 0
        for op in row:
            for part in computes(op):
                held += (part.phase is Phase.FORWARD) - (part.phase in (Phase.BACKWARD, Phase.BACKWARD_WEIGHT))
                peak = max(peak, held)
        peaks.append(peak)
    return tuple(peaks)
