"""A schedule: one op list per rank, and the device that each rank runs on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

from pipesched.schedules.op import Compute, Op, Phase, Recv, Reduce, Send, computes

MAX_CELLS = 5_000_000
"""Most ops, or most stages times micro-batches, of a schedule that is held in memory or read from a file."""


class ScheduleError(ValueError):
    """A schedule, or a file that should hold one, is not what it must be."""


class NotRunnableError(ScheduleError):
    """The op lists of a schedule cannot run to their end, as `schedules.check.checker` finds."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One op list per rank.

    Attributes:
        name: Short name, as in the catalogue: ``"1f1b"``.
        num_stages: Pieces that the model is cut into, numbered 0 to ``num_stages - 1``.
        num_microbatches: Micro-batches in the whole schedule, numbered from 0, each once.
        ops: ``ops[rank]`` is the program of that rank, in order.
        rank_to_device: The device of every rank; several ranks may share one.
        width: Copies of a pipeline side by side, kept equal (`schedules.transforms.replication`), that this is made of.
    """

    name: str
    num_stages: int
    num_microbatches: int
    ops: tuple[tuple[Op, ...], ...]
    rank_to_device: tuple[int, ...]
    width: int = 1

    @property
    def num_ranks(self) -> int:
        """Processes, each with one op list."""
        return len(self.ops)

    @property
    def num_devices(self) -> int:
        """Distinct devices."""
        return len(set(self.rank_to_device))

    @property
    def is_lowered(self) -> bool:
        """Whether the lists say their communication."""
        return any(isinstance(op, Send | Recv) for row in self.ops for op in row)

    def __str__(self) -> str:
        """Return the grid: a row per rank, computations only."""
        rows = [[str(op) for op in row if computes(op)] for row in self.ops]
        width = max((len(cell) for row in rows for cell in row), default=0)
        return "\n".join(
            f"rank {rank}  " + " ".join(cell.ljust(width) for cell in row).rstrip() for rank, row in enumerate(rows)
        )


def make_schedule(
    name: str,
    num_stages: int,
    num_microbatches: int,
    rows: list[list[Op]],
    rank_to_device: tuple[int, ...] | None = None,
) -> Schedule:
    """Return a Schedule of `rows`; without `rank_to_device` each rank has a device of its own."""
    devices = tuple(range(len(rows))) if rank_to_device is None else rank_to_device
    return Schedule(name, num_stages, num_microbatches, tuple(tuple(row) for row in rows), devices)


def routes(schedule: Schedule) -> Mapping[tuple[int, int], int]:
    """Return the rank that runs F of each (stage, microbatch): where its messages go.

    A stage on several ranks (its replicas) needs nothing else.
    """
    return {
        (part.stage, part.microbatch): rank
        for rank, row in enumerate(schedule.ops)
        for op in row
        for part in computes(op)
        if part.phase is Phase.FORWARD
    }


def stages_of(ops: tuple[Op, ...]) -> tuple[int, ...]:
    """Return the stages that one op list computes, in ascending order."""
    return tuple(sorted({part.stage for op in ops for part in computes(op)}))


def reducing_ranks(programs: Sequence[Sequence[Op]]) -> dict[int, tuple[int, ...]]:
    """Return, for each stage that is reduced, in ascending order, the ranks of `programs` that reduce it."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for rank, ops in enumerate(programs):
        for stage in {op.stage for op in ops if isinstance(op, Reduce)}:
            found[stage].append(rank)
    return {stage: tuple(found[stage]) for stage in sorted(found)}


def compute_only(schedule: Schedule) -> Schedule:
    """Return `schedule` without its Sends and Recvs."""
    rows = tuple(tuple(op for op in row if not isinstance(op, Send | Recv)) for row in schedule.ops)
    return replace(schedule, ops=rows)


def positive(**counts: int) -> None:
    """Refuse counts below 1, all of them in one message.

    Raises:
        ScheduleError: A count is below 1 or not an integer.
    """
    faults = [
        f"{name} is {value!r}, expected an integer of at least 1"
        for name, value in counts.items()
        if not isinstance(value, int) or isinstance(value, bool) or value < 1
    ]
    if faults:
        raise ScheduleError("; ".join(faults))


def integer(value: Any) -> int | None:
    """Return `value` as an int, also if it is one of numpy's or torch's; None if it is no integer, as True is none."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def forward(stage: int, microbatch: int, version: int = 0) -> Compute:
    """Return F of a stage and micro-batch."""
    return Compute(Phase.FORWARD, stage, microbatch, version)


def backward(stage: int, microbatch: int, version: int = 0) -> Compute:
    """Return B of a stage and micro-batch."""
    return Compute(Phase.BACKWARD, stage, microbatch, version)


def backward_input(stage: int, microbatch: int, version: int = 0) -> Compute:
    """Return I of a stage and micro-batch."""
    return Compute(Phase.BACKWARD_INPUT, stage, microbatch, version)


def backward_weight(stage: int, microbatch: int, version: int = 0) -> Compute:
    """Return W of a stage and micro-batch."""
    return Compute(Phase.BACKWARD_WEIGHT, stage, microbatch, version)
