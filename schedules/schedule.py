"""A schedule: one op list per rank, and the device that each rank runs on.

A list is held in memory, or generated whenever it is read. A run of a million micro-batches is a generated list: of an
asynchronous schedule, or of a synchronous batch that repeats.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import groupby, pairwise, repeat, starmap
from operator import itemgetter
from typing import TypeAlias, final

import numpy as np

from pipesched.schedules.columns import OpColumns, OpRow, columns_of, op_cells, shows_messages
from pipesched.schedules.common import MAX_CELLS, too_many_objects
from pipesched.schedules.errors import NotRunnableError, ScheduleError
from pipesched.schedules.ops import Group, Op, Recv, Send, Summed, computes
from pipesched.schedules.traits import ScheduleTraits

Parameters: TypeAlias = tuple[tuple[str, int | float | tuple[int, ...]], ...]
"""Parameters of a builder, by name."""

Ops: TypeAlias = Callable[[], Iterator[Op]]
"""A function that returns a new iterator over one rank's list."""

_MESSAGES = frozenset({Send, Recv})
_NO_RANK = -1
"""Rank of a forward that is missing."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class GeneratedOps:
    """One rank's list, generated on every reading.

    Attributes:
        begin: Returns a new iterator over the list; it can be called any number of times.
        batch: The list that it repeats, or None without repetition.
    """

    begin: Ops
    batch: tuple[Op, ...] | None = None

    def __iter__(self) -> Iterator[Op]:
        return self.begin()


@dataclass(frozen=True, slots=True)
class Layout:
    """The ranks of each stage, for generated lists, which do not show them.

    Attributes:
        homes: ``homes[stage]`` are the ranks that take the micro-batches of the stage in turn.
        averaged: Stages whose ranks are pipelines with optimizers of their own, averaged elastically; the ranks of all
            other stages are replicas.
        sums: Sums over stages before the Steps, each with its stages in ascending order.
    """

    homes: tuple[tuple[int, ...], ...]
    averaged: tuple[int, ...] = ()
    sums: tuple[tuple[Summed, tuple[int, ...]], ...] = ()


@final
@dataclass(frozen=True)
class Schedule:
    """A schedule: one op list per rank, and properties that the lists do not show.

    Attributes:
        name: Its name, often from the catalogue: ``"1f1b"``. No property is derived from it.
        num_stages: Pieces that the model is cut into, numbered 0 to ``num_stages - 1``.
        num_microbatches: Micro-batches in the whole schedule, numbered from 0, each once.
        lists: ``lists[rank]`` is the program of that rank, in order: a tuple, an `OpRow` of columns, or a
            `GeneratedOps`. The versions that one phase of one stage reads in a generated list never go down.
        rank_to_device: The device of every rank; several ranks may share one.
        width: Copies of a pipeline side by side in this schedule, kept equal (`schedules.transforms.replication`).
        is_lowered: Whether the lists contain their communication. Lists with a Send or a Recv always do.
        origin: Name of the catalogue entry that made the schedule, or None for other lists.
        traits: Known properties beyond its lists.
        layout: Layout of generated lists, or None for lists in memory, which show it.
        parameters: Parameters given to the catalogue's entry, by name; other parameters have their defaults.
    """

    name: str
    num_stages: int
    num_microbatches: int
    lists: tuple[Iterable[Op], ...]
    rank_to_device: tuple[int, ...]
    width: int = 1
    is_lowered: bool = False
    origin: str | None = None
    traits: ScheduleTraits = field(default_factory=ScheduleTraits)
    layout: Layout | None = None
    parameters: Parameters = ()

    def __post_init__(self) -> None:
        """Set `is_lowered` if the lists have a Send or Recv."""
        if not self.is_lowered and self.layout is None:
            object.__setattr__(self, "is_lowered", shows_messages(self.lists))

    def made_from(self, origin: str, traits: ScheduleTraits, parameters: Parameters = ()) -> Schedule:
        """Return the schedule with its origin; cached results of its lists are kept, but no cached Schedule."""
        made = object.__new__(Schedule)
        known = {key: value for key, value in self.__dict__.items() if not isinstance(value, Schedule)}
        made.__dict__.update(known, origin=origin, traits=traits, parameters=parameters)
        return made

    @property
    def is_held(self) -> bool:
        """Whether the lists are in memory."""
        return self.layout is None

    @cached_property
    def ops(self) -> tuple[tuple[Op, ...], ...]:
        """The lists in memory: ``ops[rank][index]``; generated lists are stored at the first access.

        Raises:
            ScheduleError: Generated lists are too long for memory.
        """
        if not self.is_held and self.num_stages * self.num_microbatches > MAX_CELLS:
            raise ScheduleError(
                f"{self.name}: got {self.num_microbatches} micro-batches on {self.num_stages} stages, expected at most "
                f"{MAX_CELLS} micro-batches x stages in memory; try {MAX_CELLS // self.num_stages} micro-batches"
            )
        if (columns := columns_of(self.lists)) and (f := too_many_objects(len(columns.codes), self.num_microbatches)):
            raise ScheduleError(f"{self.name}: {f}")
        return tuple(row.ops if isinstance(row, OpRow) else tuple(row) for row in self.lists)

    @cached_property
    def columns(self) -> OpColumns:
        """The lists in memory as columns of numbers: their original columns, or converted from their ops once."""
        return columns_of(self.lists) or OpColumns.of(self.ops)

    def held(self) -> Schedule:
        """Return the schedule with all its lists in memory."""
        return self if self.is_held else replace(self, lists=self.ops, layout=None)

    def changed(self, change: Callable[[Iterable[Op]], Iterator[Op]]) -> tuple[Iterable[Op], ...]:
        """Return the lists, each changed by `change`; lists in memory stay in memory, others are generated."""
        if self.is_held:
            return tuple(tuple(change(ops)) for ops in self.lists)
        return tuple(GeneratedOps(partial(change, ops)) for ops in self.lists)

    @property
    def generated_layout(self) -> Layout:
        """The layout of generated lists with these ops.

        Raises:
            NotRunnableError: A forward is missing.
        """
        sums = tuple((group, self.summed_stages(group)) for group in self.summands if isinstance(group, Summed))
        return self.layout or Layout(self.homes, tuple(self.averagers), sums)

    @property
    def num_ranks(self) -> int:
        """Processes, each with one op list."""
        return len(self.lists)

    @property
    def num_devices(self) -> int:
        """The number of distinct devices."""
        return len(set(self.rank_to_device))

    @property
    def ranks_per_device(self) -> int:
        """Largest number of ranks on a device."""
        return max(map(self.rank_to_device.count, self.rank_to_device), default=1)

    @cached_property
    def homes(self) -> tuple[tuple[int, ...], ...]:
        """The ranks that take the micro-batches of each stage in turn, by stage; `home` reads this field.

        Raises:
            NotRunnableError: A forward is missing.
        """
        return tuple(_homes(self)) if self.layout is None else self.layout.homes

    def home(self, stage: int, microbatch: int) -> int:
        """Return the rank that runs F of (stage, microbatch), the destination of its messages."""
        ranks = self.homes[stage]
        return ranks[microbatch % len(ranks)]

    def replicas(self, stage: int) -> tuple[int, ...]:
        """Return the ranks that hold `stage`, in ascending order."""
        return tuple(sorted(set(self.homes[stage])))

    def routes(self) -> Mapping[tuple[int, int], int]:
        """Return the rank that runs F of each (stage, microbatch), the destination of its messages."""
        begins, codes, stages, microbatches, _ = self.columns.in_lists
        return {
            (stages[cell], microbatches[cell]): rank
            for rank, cells in enumerate(starmap(range, pairwise(begins)))
            for cell in cells
            if codes[cell] % op_cells.OVERLAPPED == op_cells.F
        }

    @property
    def stage_share(self) -> Fraction:
        """A stage's part of a device's share of the model, if all stages are equal.

        A device's share is 1/p of the model, where p is the number of devices of one copy of the pipeline. One of v
        chunks of a rank is 1/v of this share. If the devices of a copy hold several replicas of the model, the parts
        add up to more: with the whole model on each of p devices (data_parallel) a stage is p, and with replicas 2:1:1
        each of three stages is 4/3. So the total work of m micro-batches is equal under every schedule.
        """
        return Fraction(len(set(self.rank_to_device)), self.width * self.num_stages)

    def stages_on(self, rank: int) -> tuple[int, ...]:
        """Return the stages that `rank` computes, in ascending order."""
        if self.layout is None:
            return self.columns.stages_of(rank)
        return tuple(stage for stage, ranks in enumerate(self.layout.homes) if rank in ranks)

    @cached_property
    def reducers(self) -> Mapping[int, tuple[int, ...]]:
        """The ranks that sum the gradients of each stage, by stage."""
        if self.layout is None:
            places = self.summands.items()
            return {group: tuple(rank for rank, _ in its) for group, its in places if isinstance(group, int)}
        stages = (stage for stage in range(self.num_stages) if stage not in self.averagers)
        return {stage: ranks for stage in stages if len(ranks := self.replicas(stage)) > 1}

    @cached_property
    def summands(self) -> Mapping[Group, tuple[tuple[int, int], ...]]:
        """(rank, stage) of each Reduce of a group, by group: the k-th Reduces of these meet."""
        if self.layout is None:
            places_of = _places_with(op_cells.REDUCE, self)
            gradients = sorted(places_of.pop(0, ()), key=itemgetter(1))
            sums: dict[Group, tuple[tuple[int, int], ...]] = {
                stage: tuple(places) for stage, places in groupby(gradients, key=itemgetter(1))
            }
            return sums | {op_cells.CONTENTS[content]: tuple(places) for content, places in places_of.items()}
        sums = {stage: tuple((rank, stage) for rank in ranks) for stage, ranks in self.reducers.items()}
        places = {
            content: tuple((rank, stage) for stage in stages for rank in self.replicas(stage))
            for content, stages in self.layout.sums
        }
        return sums | places

    def summed_stages(self, content: Summed) -> tuple[int, ...]:
        """Return the stages of a sum over stages, in ascending order; empty without the sum."""
        return tuple(sorted({stage for _, stage in self.summands.get(content, ())}))

    @cached_property
    def averagers(self) -> Mapping[int, tuple[int, ...]]:
        """For each stage that is averaged, in ascending order, the ranks that average it."""
        if self.layout is None:
            places = sorted(_places_with(op_cells.AVERAGE, self).get(0, ()), key=itemgetter(1))
            return {stage: tuple(rank for rank, _ in its) for stage, its in groupby(places, key=itemgetter(1))}
        return {stage: self.replicas(stage) for stage in self.layout.averaged}

    @property
    def pipelines(self) -> int:
        """Copies of the model with optimizers of their own, averaged elastically; one where nothing is averaged."""
        return max(map(len, self.averagers.values()), default=1)

    def __str__(self) -> str:
        """Return the grid: a row per rank, computations only."""
        return self.grid()

    def grid(self, columns: int | None = None) -> str:
        """Return the schedule as text: one row of computations per rank.

        Args:
            columns: Longest line; longer rows are cut into blocks, one below another. None for no limit.
        """
        rows = [[str(op) for op in row if computes(op)] for row in self.ops]
        names = [f"rank {rank}" for rank in range(len(rows))]
        margin = max(map(len, names), default=0) + 2
        width = max((len(cell) for row in rows for cell in row), default=0) + 1
        longest = max(1, *map(len, rows))
        count = longest if columns is None else max(1, (columns + 1 - margin) // width)
        blocks = (
            "\n".join(
                (name.ljust(margin) + "".join(cell.ljust(width) for cell in row[first : first + count])).rstrip()
                for name, row in zip(names, rows, strict=True)
            )
            for first in range(0, longest, count)
        )
        return "\n\n".join(blocks)


def make_schedule(
    name: str,
    num_stages: int,
    num_microbatches: int,
    rows: list[list[Op]] | OpColumns,
    rank_to_device: tuple[int, ...] | None = None,
) -> Schedule:
    """Return a Schedule with the lists `rows`; without `rank_to_device` each rank has a device of its own."""
    lists: tuple[Sequence[Op], ...] = rows.rows() if isinstance(rows, OpColumns) else tuple(map(tuple, rows))
    devices = tuple(range(len(lists))) if rank_to_device is None else rank_to_device
    return Schedule(name, num_stages, num_microbatches, lists, devices)


def make_generated_schedule(
    name: str,
    num_stages: int,
    num_microbatches: int,
    rank_ops: Sequence[Ops],
    homes: Sequence[Sequence[int]] | None = None,
) -> Schedule:
    """Return a Schedule of generated lists, with a device for each rank; without `homes` stage k lives on rank k."""
    ranks = tuple(range(len(rank_ops)))
    layout = Layout(tuple((rank,) for rank in ranks) if homes is None else tuple(map(tuple, homes)))
    lists = tuple(map(GeneratedOps, rank_ops))
    return Schedule(name, num_stages, num_microbatches, lists, ranks, layout=layout)


def _places_with(code: int, schedule: Schedule) -> dict[int, list[tuple[int, int]]]:
    """Return (rank, stage) of the ops with a code, each once, by the number in the column of peers and versions."""
    columns, places_of = schedule.columns, defaultdict[int, dict[tuple[int, int], None]](dict)
    if columns.counts[code]:
        cells = np.flatnonzero(columns.codes == code)
        others = repeat(0) if columns.others is None else columns.others[cells].tolist()
        for rank, stage, other in zip(
            columns.rank_of(cells).tolist(), columns.stages[cells].tolist(), others, strict=False
        ):
            places_of[other][rank, stage] = None
    return {other: [*places] for other, places in places_of.items()}


def _homes(schedule: Schedule) -> Iterator[tuple[int, ...]]:
    columns, shape = schedule.columns, (schedule.num_stages, schedule.num_microbatches)
    cells = np.flatnonzero(columns.codes % op_cells.OVERLAPPED == op_cells.F)
    stages, microbatches = columns.stages[cells], columns.microbatches[cells]
    inside = (stages < shape[0]) & (microbatches < shape[1])
    ranks_of = np.full(shape, _NO_RANK)
    ranks_of[stages[inside], microbatches[inside]] = columns.rank_of(cells[inside])
    for stage, ranks in enumerate(ranks_of):
        if (ranks == _NO_RANK).any():
            microbatch = int(np.argmax(ranks == _NO_RANK))
            raise NotRunnableError(f"{schedule.name}: {stage}F{microbatch} is missing; check the schedule")
        yield tuple(ranks[:1].tolist() if (ranks == ranks[:1]).all() else ranks.tolist())
