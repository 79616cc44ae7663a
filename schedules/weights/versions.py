"""Weight versions: the version that each op reads, its age, and the versions in memory at once.

A version is live from its Step to the next Step, and longer (stashed) if a later op reads it. The later op may be far
behind in the list. So `uses` yields an op a few ops late, when its values are known, and keeps only these ops in memory
for a run of any length.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pipesched.schedules import Schedule, ScheduleError
from pipesched.schedules.ops import ENDS_MICROBATCH, Compute, Op, Phase, Step, computes, in_flight_change


class Agreement(StrEnum):
    """Whether F and the backward of one (stage, micro-batch) read the same weights.

    PREDICTED: they read predictions of one version made at different times, or this version and a prediction of it.
    """

    SAME = "same"
    PREDICTED = "predicted"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Use:
    """A use of weights: one op reads one version.

    Attributes:
        op: The op, which names the version and the look-ahead.
        current: Steps of the stage before the op.
        update: Steps of the stage before the last backward of the op's micro-batch, which is the version that its
            gradient changes, or None without a backward.
        held: The versions of the stage's weights in memory while the op runs, in ascending order.
        in_flight: Micro-batches of the stage on this rank between F and the end of the backward, with the op's own.
        on_rank: Micro-batches in flight on all stages of the rank together.
        agreement: Whether all ops of its stage and micro-batch read the same weights, or None without a backward.
    """

    op: Compute
    current: int
    update: int | None
    held: tuple[int, ...]
    in_flight: int
    on_rank: int
    agreement: Agreement | None

    @property
    def copies(self) -> int:
        """Number of copies of the stage's weights while the op runs: versions, and its predicted copy."""
        return len(self.held) + looks_ahead(self.op)

    @property
    def staleness(self) -> int | None:
        """Steps from the weights that the op reads to the weights that its gradient changes."""
        return None if self.update is None else self.update - self.op.version

    @property
    def lag(self) -> int | None:
        """The staleness left after prediction; negative if the prediction is for a step after the gradient's Step."""
        return None if self.update is None else self.update - target(self.op)


def looks_ahead(op: Compute) -> bool:
    """Whether `op` reads a predicted copy; before its first Step, a stage has no optimizer state for predictions."""
    return op.lookahead > 0 and op.version > 0


def stashing_steps(ops: Sequence[Op]) -> frozenset[int]:
    """Return the positions of the Steps that keep a copy of the replaced weights, because a later op reads them."""
    first = next((index for index, op in enumerate(ops) if isinstance(op, Step)), len(ops))
    later = enumerate(ops[first:], first)
    last_read = {(part.stage, part.version): index for index, op in later for part in computes(op)}
    version: Counter[int] = Counter()
    indices = set()
    for index, op in enumerate(ops):
        if isinstance(op, Step):
            if last_read.get((op.stage, version[op.stage]), -1) > index:
                indices.add(index)
            version[op.stage] += 1
    return frozenset(indices)


def target(op: Compute) -> int:
    """Return the version that `op` reads or predicts."""
    return op.version + op.lookahead if looks_ahead(op) else op.version


def uses(ops: Iterable[Op], *, in_order: bool) -> Iterator[Use]:
    """Yield every reading of weights in one rank's list, in its order.

    Args:
        ops: The list; it is read once.
        in_order: Whether the versions that one phase of one stage reads never decrease. A version is then over once
            all phases have read later versions, and the list is read no further than needed. Otherwise the whole list
            is read first.

    Raises:
        ScheduleError: An op reads a version that does not exist yet, or with `in_order` a version that is over.
    """
    stages: defaultdict[int, _Stage] = defaultdict(_Stage)
    if not in_order:
        ops = tuple(ops)
        for part in (part for op in ops for part in computes(op)):
            left = stages[part.stage].left = stages[part.stage].left or Counter()
            left[part.version] += 1
    waiting: deque[_Read] = deque()
    on_rank = 0
    for op in ops:
        if isinstance(op, Step):
            stages[op.stage].step()
        for part in computes(op):
            change = in_flight_change(part)
            waiting.append(stages[part.stage].read(part, on_rank + max(0, change)))
            on_rank += change
        while waiting and stages[waiting[0].op.stage].knows(waiting[0]):
            read = waiting.popleft()
            stages[read.op.stage].reads.popleft()
            yield read.use()
    for read in waiting:
        yield read.use()


@dataclass(slots=True)
class _Read:
    """An incomplete Use; `place` counts the reads and Steps of its stage."""

    op: Compute
    place: int
    current: int
    in_flight: int
    on_rank: int
    held: list[int]
    update: int | None = None
    agreement: Agreement | None = None

    def use(self) -> Use:
        held = tuple(self.held) if len(self.held) == 1 else tuple(sorted(self.held))
        return Use(self.op, self.current, self.update, held, self.in_flight, self.on_rank, self.agreement)


@dataclass(slots=True)
class _Stage:
    """The state of one stage of one rank, up to the last op that has been read.

    Attributes:
        old: The replaced versions that later ops may read, with the place of the last read or of the replacement.
        reads: The reads not yet yielded.
        open: The reads that wait for their micro-batch's backward.
        latest: The version that each phase read last.
        left: Remaining reads of each version, or None if unknown.
    """

    place: int = 0
    steps: int = 0
    in_flight: int = 0
    old: dict[int, int] = field(default_factory=dict)
    reads: deque[_Read] = field(default_factory=deque)
    open: dict[int, list[_Read]] = field(default_factory=dict)
    latest: dict[Phase, int] = field(default_factory=dict)
    left: Counter[int] | None = None

    def step(self) -> None:
        self.place += 1
        self.old[self.steps] = self.place
        self.steps += 1
        self._forget()

    def read(self, op: Compute, on_rank: int) -> _Read:
        self.place += 1
        change = in_flight_change(op)
        read = _Read(op, self.place, self.steps, self.in_flight + max(0, change), on_rank, [self.steps])
        self.in_flight += change
        self.reads.append(read)
        if op.version != self.steps:
            self._hold(op)
        self.latest[op.phase] = op.version
        if self.left is not None:
            self.left[op.version] -= 1
        self._forget()
        mates = self.open.setdefault(op.microbatch, [])
        mates.append(read)
        if op.phase in ENDS_MICROBATCH:
            self._settle(self.open.pop(op.microbatch))
        return read

    def _hold(self, op: Compute) -> None:
        """Add the version of `op` to the versions in memory of all reads since its last use."""
        if op.version not in self.old:
            when = (
                "is not made yet"
                if op.version > self.steps
                else "is freed: every phase of the stage has read a later one"
            )
            raise ScheduleError(
                f"{op} after {self.steps} steps of stage {op.stage}: version {op.version} {when}; check the schedule"
            )
        for other in reversed(self.reads):
            if other.place <= self.old[op.version]:
                break
            other.held.append(op.version)
        self.old[op.version] = self.place

    def _forget(self) -> None:
        """Drop the old versions that no later op reads."""
        if self.left is not None:
            for version in [version for version in self.old if not self.left[version]]:
                del self.old[version]
            return
        if not self.old:
            return
        oldest_read = min(self.latest.values(), default=0)
        while self.old and (oldest := next(iter(self.old))) < oldest_read:
            del self.old[oldest]

    def _settle(self, mates: list[_Read]) -> None:
        """At the last backward of a micro-batch, compare its reads."""
        agreement = _agreement([read.op for read in mates])
        for read in mates:
            read.update, read.agreement = self.steps, agreement

    def knows(self, read: _Read) -> bool:
        """Whether `read`, the first of `reads`, is complete."""
        return read.update is not None and (not self.old or min(self.old.values()) >= read.place)


def _agreement(ops: list[Compute]) -> Agreement:
    first = ops[0]
    if all(op.version == first.version and op.lookahead == first.lookahead for op in ops):
        return Agreement.SAME
    if len({target(op) for op in ops}) > 1:
        return Agreement.DIFFERENT
    return Agreement.SAME if len({op.version for op in ops}) == 1 else Agreement.PREDICTED


def live_versions(schedule: Schedule) -> dict[tuple[int, int], int]:
    """Return the most versions in memory at once, with the newest, by (rank, stage)."""
    return _most(schedule, lambda use: len(use.held))


def live_copies(schedule: Schedule) -> dict[tuple[int, int], int]:
    """Return the most copies of weights in memory at once, with predicted copies, by (rank, stage)."""
    return _most(schedule, lambda use: use.copies)


def _most(schedule: Schedule, count: Callable[[Use], int]) -> dict[tuple[int, int], int]:
    most: dict[tuple[int, int], int] = {}
    for rank, row in enumerate(schedule.ops):
        for use in uses(row, in_order=False):
            place = (rank, use.op.stage)
            most[place] = max(most.get(place, 0), count(use))
    return most
