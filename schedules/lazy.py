"""A schedule whose op lists are made while they are read: a run of any length in little memory.

A Schedule holds its lists, a LazySchedule knows how to make them. An asynchronous run is one list per rank with no end
in sight, a synchronous run repeats its batch: a million micro-batches are turns of a loop, not ops in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial, wraps
from typing import ParamSpec, TypeAlias

from pipesched.schedules.op import Average, Compute, Op, Recv, Send, Step, rewritten
from pipesched.schedules.schedule import NotRunnableError, Schedule, positive, routes

P = ParamSpec("P")

Ops: TypeAlias = Callable[[], Iterator[Op]]
"""Begins one rank's list anew; it can be read as often as one likes."""


@dataclass(frozen=True, slots=True)
class LazySchedule:
    """A way of making one op list per rank.

    Attributes:
        name: Short name, as in the catalogue: ``"pipedream"``.
        num_stages: Pieces that the model is cut into.
        num_microbatches: Micro-batches in the whole run, numbered from 0, each once.
        rank_ops: ``rank_ops[rank]()`` is the program of that rank, in order. The versions that one phase of one stage
            reads never go down.
        homes: ``homes[stage]`` are the ranks that take its micro-batches in turn; `home` reads it.
        rank_to_device: The device of every rank.
        is_lowered: Whether the lists say their communication.
        averaged: Stages whose ranks are pipelines with optimizers of their own, averaged elastically; the ranks of all
            others are replicas.
        width: Copies of a pipeline side by side, as of a Schedule.
    """

    name: str
    num_stages: int
    num_microbatches: int
    rank_ops: tuple[Ops, ...]
    homes: tuple[tuple[int, ...], ...]
    rank_to_device: tuple[int, ...]
    is_lowered: bool = False
    averaged: tuple[int, ...] = ()
    width: int = 1

    @property
    def num_ranks(self) -> int:
        """Processes, each with one op list."""
        return len(self.rank_ops)

    @property
    def pipelines(self) -> int:
        """Copies of the model with optimizers of their own, averaged elastically; one where nothing is averaged."""
        return max((len(self.replicas(stage)) for stage in self.averaged), default=1)

    def home(self, stage: int, microbatch: int) -> int:
        """Return the rank that runs F of (stage, microbatch): where its messages go."""
        ranks = self.homes[stage]
        return ranks[microbatch % len(ranks)]

    def replicas(self, stage: int) -> tuple[int, ...]:
        """Return the ranks that hold `stage`, in ascending order."""
        return tuple(sorted(set(self.homes[stage])))

    def schedule(self) -> Schedule:
        """Return the same with all its lists in memory."""
        rows = tuple(tuple(ops()) for ops in self.rank_ops)
        return Schedule(self.name, self.num_stages, self.num_microbatches, rows, self.rank_to_device, self.width)


def stage_share(schedule: Schedule | LazySchedule) -> Fraction:
    """Return what a stage is of a device's share of the model, where all stages are equal.

    A device's share is one p-th of the model, p being the devices of one copy of the pipeline: a chunk of v per rank is
    1/v of it. Where a model lies on the devices of a copy several times, the share is that of all its replicas: the
    whole model on each of p devices (data_parallel) is p, and with replicas 2:1:1 of three stages each is 4/3. So m
    micro-batches are the same work for the devices together under every schedule.
    """
    return Fraction(len(set(schedule.rank_to_device)), schedule.width * schedule.num_stages)


def make_lazy(
    name: str,
    num_stages: int,
    num_microbatches: int,
    rank_ops: Sequence[Ops],
    homes: Sequence[Sequence[int]] | None = None,
) -> LazySchedule:
    """Return a LazySchedule with a device for each rank; without `homes` stage k lives on rank k."""
    ranks = tuple(range(len(rank_ops)))
    places = tuple((rank,) for rank in ranks) if homes is None else tuple(map(tuple, homes))
    return LazySchedule(name, num_stages, num_microbatches, tuple(rank_ops), places, ranks)


def whole(builder: Callable[P, LazySchedule]) -> Callable[P, Schedule]:
    """Return the builder of the same schedule with its lists in memory."""

    @wraps(builder)
    def build(*args: P.args, **kwargs: P.kwargs) -> Schedule:
        return builder(*args, **kwargs).schedule()

    return build


def repeat(schedule: Schedule, times: int) -> LazySchedule:
    """Return `schedule`, lowered or not, run `times` times: batch b's micro-batch i is micro-batch b m + i.

    Versions rise by the Steps of each batch, so a synchronous schedule stays what it is: every op of batch b reads
    version b. Lower what is repeated rather than the batch: then the first messages of a batch need not wait for the
    last ops of the one before.

    Raises:
        ScheduleError: `times` is below 1; NotRunnableError: a forward is missing.
    """
    positive(times=times)
    return LazySchedule(
        name=schedule.name,
        num_stages=schedule.num_stages,
        num_microbatches=times * schedule.num_microbatches,
        rank_ops=tuple(partial(_repeated, row, times, schedule.num_microbatches) for row in schedule.ops),
        homes=tuple(_homes(schedule)),
        rank_to_device=schedule.rank_to_device,
        is_lowered=schedule.is_lowered,
        averaged=tuple(sorted({op.stage for row in schedule.ops for op in row if isinstance(op, Average)})),
        width=schedule.width,
    )


def _homes(schedule: Schedule) -> Iterator[tuple[int, ...]]:
    route = routes(schedule)
    for stage in range(schedule.num_stages):
        ranks = [route.get((stage, microbatch)) for microbatch in range(schedule.num_microbatches)]
        known = tuple(rank for rank in ranks if rank is not None)
        if len(known) < len(ranks):
            raise NotRunnableError(f"{schedule.name}: {stage}F{ranks.index(None)} is missing; check the schedule")
        yield known[:1] if len(set(known)) == 1 else known


def _repeated(row: tuple[Op, ...], times: int, num_microbatches: int) -> Iterator[Op]:
    steps = Counter(op.stage for op in row if isinstance(op, Step))
    for batch in range(times):
        for op in row:
            yield _moved(op, batch * num_microbatches, batch, steps)


def _moved(op: Op, microbatches: int, batch: int, steps: Counter[int]) -> Op:
    """Return `op` as it is in a later batch."""

    def compute(part: Compute) -> Compute:
        version = part.version + batch * steps[part.stage]
        return Compute(part.phase, part.stage, part.microbatch + microbatches, version, part.lookahead)

    def post(op: Send | Recv) -> Send | Recv:
        return replace(op, message=replace(op.message, microbatch=op.message.microbatch + microbatches))

    return rewritten(op, compute, post)
