"""Layouts, a transform over any schedule: copies of a pipeline side by side, data parallelism of width w.

1F1B with p = 2 ranks and m = 2 micro-batches each, twice:

    rank 0  F0 F1 .. B0 .. B1
    rank 1  .. F0 B0 F1 B1 ..
    rank 2  F2 F3 .. B2 .. B3
    rank 3  .. F2 B2 F3 B3 ..

Rank r of copy j is rank j p + r; of the w m micro-batches of every batch copy j has the j-th m. Before each Step of a
stage its copies sum their gradients (Reduce), right after its last backward of that Step, so that they stay equal:
one step of w copies is one of the original with micro-batches w times as large, whatever it reads. A stage that is on
several ranks already is reduced over all of them together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import lcm

from pipesched.schedules import (
    ENDS_MICROBATCH,
    Average,
    Compute,
    Op,
    Recv,
    Reduce,
    Schedule,
    ScheduleError,
    Send,
    Step,
    computes,
    positive,
    rewritten,
)
from pipesched.schedules.formats import MAX_DEVICES
from pipesched.schedules.transforms.training_run import microbatches_per_step

MAX_REPLICATED_RANKS = MAX_DEVICES
"""The most ranks of all copies together: as many as a cluster may have devices."""


def replicate(schedule: Schedule, width: int) -> Schedule:
    """Return `width` copies of `schedule`, lowered or not, that are kept equal; with one it comes back as it is.

    Args:
        schedule: The schedule of one copy; its name gets an ``x`` and the width.
        width: Copies, each on devices of its own and with as many micro-batches as `schedule` has.

    Raises:
        ScheduleError: A width below 1 or with more than `MAX_REPLICATED_RANKS` ranks, or pipelines that are
            averaged, which are
            no copies. Where lists are made while they are read, the latter then.
    """
    positive(width=width)
    if width == 1:
        return schedule
    if width * schedule.num_ranks > MAX_REPLICATED_RANKS:
        raise ScheduleError(
            f"{schedule.name}: got {width} copies of {schedule.num_ranks} ranks, "
            f"expected at most {MAX_REPLICATED_RANKS} ranks "
            "in all; try fewer copies"
        )
    batch = _batch(schedule)
    copies = [_Copy(schedule.name, index, width, schedule.num_ranks, batch) for index in range(width)]
    num_devices = max(schedule.rank_to_device) + 1
    name = copied_name(schedule.name, width)
    num_microbatches = width * schedule.num_microbatches
    devices = tuple(index * num_devices + device for index in range(width) for device in schedule.rank_to_device)
    layout = schedule.layout
    if layout is not None:
        layout = replace(layout, homes=tuple(_homes(home, batch, copies) for home in layout.homes))
    return replace(
        schedule,
        name=name,
        num_microbatches=num_microbatches,
        lists=tuple(ops for copy in copies for ops in schedule.changed(copy.read)),
        rank_to_device=devices,
        width=width * schedule.width,
        layout=layout,
    )


def copied_name(name: str, width: int) -> str:
    """Return the name of `width` copies of the schedule `name`."""
    return name if width == 1 else f"{name}x{width}"


def require_equal(name: str, width: int) -> None:
    """Refuse copies of a schedule whose pipelines are averaged elastically: they are kept near, not equal.

    Raises:
        ScheduleError: There would be several.
    """
    if width != 1:
        raise ScheduleError(
            f"{name}: got width {width}, expected 1: its pipelines are averaged, not kept equal; try more pipelines"
        )


def _batch(schedule: Schedule) -> int:
    """Return the micro-batches that a copy steps after; all, where nobody steps."""
    if schedule.is_held and not any(isinstance(op, Step) for row in schedule.ops for op in row):
        return schedule.num_microbatches
    return microbatches_per_step(schedule)


def _homes(home: tuple[int, ...], batch: int, copies: list[_Copy]) -> tuple[int, ...]:
    """Return the ranks that take the micro-batches of a stage in turn."""
    period = lcm(len(home), batch)
    ranks = {copy.microbatch(i): copy.rank(home[i % len(home)]) for copy in copies for i in range(period)}
    return tuple(ranks[i] for i in range(len(ranks)))


@dataclass(frozen=True, slots=True)
class _Copy:
    """One copy of a pipeline.

    Attributes:
        name: Name of the schedule.
        index: Number of the copy, from 0.
        width: Copies.
        num_ranks: Ranks of each copy.
        batch: Micro-batches of each that a step takes.
    """

    name: str
    index: int
    width: int
    num_ranks: int
    batch: int

    def rank(self, rank: int) -> int:
        """Return the number, among the ranks of all copies, of a rank of the schedule."""
        return self.index * self.num_ranks + rank

    def microbatch(self, microbatch: int) -> int:
        """Return the number, among the micro-batches of all copies, of a micro-batch of the schedule."""
        batch, place = divmod(microbatch, self.batch)
        return (batch * self.width + self.index) * self.batch + place

    def read(self, ops: Iterable[Op]) -> Iterator[Op]:
        """Yield the list of a rank of this copy, given that of the schedule."""
        for op in _reduced(ops):
            if isinstance(op, Average):
                require_equal(self.name, self.width)
            yield rewritten(op, self._compute, self._post)

    def _compute(self, op: Compute) -> Compute:
        return Compute(op.phase, op.stage, self.microbatch(op.microbatch), op.version, op.lookahead)

    def _post(self, op: Send | Recv) -> Send | Recv:
        message = op.message._replace(microbatch=self.microbatch(op.message.microbatch))
        return replace(op, message=message, peer=self.rank(op.peer))


class _Held:
    """An op that is not handed out yet, for a Reduce may have to follow it."""

    __slots__ = ("op", "reduces")

    def __init__(self, op: Op) -> None:
        self.op = op
        self.reduces: list[Reduce] = []


def _reduced(ops: Iterable[Op]) -> Iterator[Op]:
    """Yield `ops`, and after a stage's last gradient before each Step, or the end, the Reduce that it lacks.

    Which gradient is the last shows at the Step; what comes between waits. Sends and Recvs directly behind a gradient
    stay there: others need not wait for the sum to get their messages.
    """
    waiting: deque[_Held] = deque()
    last: dict[int, _Held] = {}
    for op in ops:
        held = _Held(op)
        if isinstance(op, Send | Recv):
            last |= {stage: held for stage, gradient in last.items() if gradient is waiting[-1]}
        waiting.append(held)
        last |= {part.stage: held for part in computes(op) if part.phase in ENDS_MICROBATCH}
        if isinstance(op, Reduce):
            last.pop(op.stage, None)
        elif isinstance(op, Step) and op.stage in last:
            last.pop(op.stage).reduces.append(Reduce(op.stage))
        while waiting and waiting[0] not in last.values():
            first = waiting.popleft()
            yield from (first.op, *first.reduces)
    for stage, held in last.items():
        held.reduces.append(Reduce(stage))
    for held in waiting:
        yield from (held.op, *held.reduces)
