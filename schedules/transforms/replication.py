"""Data parallelism over any schedule: w copies of the pipeline side by side.

1F1B with p = 2 ranks and m = 2 micro-batches each, twice:

    rank 0  F0 F1 .. B0 .. B1
    rank 1  .. F0 B0 F1 B1 ..
    rank 2  F2 F3 .. B2 .. B3
    rank 3  .. F2 B2 F3 B3 ..

Rank r of copy j is rank j p + r. Every batch has w m micro-batches; copy j gets micro-batches j m to (j + 1) m - 1.
Before each Step of a stage, right after the last backward of that Step, the copies of the stage sum their gradients
(Reduce), so that they stay equal. A step of w copies equals a step of the original schedule with w times larger
micro-batches. A stage that already has replicas is reduced over the replicas of all copies.

A layout has a depth and a width; its *placement* gives each rank a device. Devices are numbered node by node. With
p = 4 and w = 2 on two nodes of four devices, written copy.rank:

    pipeline   0.0 0.1 0.2 0.3 | 1.0 1.1 1.2 1.3      activations stay inside the node, gradients are summed across
    data       0.0 1.0 0.1 1.1 | 0.2 1.2 0.3 1.3      gradients are summed inside the node, activations go across
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import lcm
from operator import itemgetter
from typing import Literal, TypeAlias, TypeVar, final

import numpy as np
import numpy.typing as npt

from pipesched.schedules import Schedule, ScheduleError
from pipesched.schedules.columns import OpColumns, cell_code, op_cells
from pipesched.schedules.common import MAX_CELLS, positive
from pipesched.schedules.formats import MAX_DEVICES
from pipesched.schedules.ops import (
    ENDS_MICROBATCH,
    Average,
    Compute,
    Op,
    Recv,
    Reduce,
    Send,
    Step,
    computes,
    rewritten,
)
from pipesched.schedules.transforms.training_run import microbatches_per_step

Placement: TypeAlias = Literal["pipeline", "data"]
"""The ranks on neighbouring devices: the ranks of one copy, or the copies of one rank."""

_ENDS = frozenset(map(cell_code, ENDS_MICROBATCH))
_READ = {
    *range(op_cells.SEND_F, op_cells.STEP + 1), *_ENDS, *(code + op_cells.OVERLAPPED for code in _ENDS),
}  # fmt: skip
"""Codes of the cells that decide the places of Reduces."""


def replicate(schedule: Schedule, width: int) -> Schedule:
    """Return `width` copies of `schedule`, lowered or not, with equal weights; with width 1 return `schedule` itself.

    Args:
        schedule: The schedule of one copy; its name gets an ``x`` and the width.
        width: Number of copies, each on its own devices and with the micro-batches of a whole `schedule`.

    Raises:
        ScheduleError: The width is below 1 or gives more than `MAX_DEVICES` ranks or, of held lists, `MAX_CELLS` stages
            times micro-batches, or the schedule averages pipelines elastically, so that they are not equal. Generated
            lists report averaged pipelines only when the lists are read.
    """
    positive(width=width)
    if width == 1:
        return schedule
    num_held = schedule.num_stages * schedule.num_microbatches if schedule.is_held else 0
    if width * schedule.num_ranks > MAX_DEVICES or width * num_held > MAX_CELLS:
        raise ScheduleError(
            f"{schedule.name}: got {width} copies of {schedule.num_ranks} ranks and {schedule.num_microbatches} "
            f"micro-batches, expected at most {MAX_DEVICES} ranks and {MAX_CELLS} micro-batches x stages in all; try a "
            "smaller `width`"
        )
    batch = _batch(schedule)
    copies = [_Copy(schedule.name, index, width, schedule.num_ranks, batch) for index in range(width)]
    num_devices = max(schedule.rank_to_device) + 1
    name = copied_name(schedule.name, width)
    num_microbatches = width * schedule.num_microbatches
    devices = tuple(index * num_devices + device for index in range(width) for device in schedule.rank_to_device)
    layout = schedule.layout
    if layout is None:
        lists: tuple[Iterable[Op], ...] = _all_copies(_with_reduces(schedule.columns), copies).rows()
    else:
        layout = replace(layout, homes=tuple(_homes(home, batch, copies) for home in layout.homes))
        lists = tuple(ops for copy in copies for ops in schedule.changed(copy.read))
    return replace(
        schedule,
        name=name,
        num_microbatches=num_microbatches,
        lists=lists,
        rank_to_device=devices,
        width=width * schedule.width,
        layout=layout,
    )


def place_copies(schedule: Schedule, placement: Placement, width: int) -> Schedule:
    """Return the `width` copies that `replicate` made, on the devices of `placement`."""
    if placement == "pipeline":
        return schedule
    depth = (max(schedule.rank_to_device) + 1) // width
    devices = tuple(device % depth * width + device // depth for device in schedule.rank_to_device)
    return replace(schedule, rank_to_device=devices)


def copied_name(name: str, width: int) -> str:
    """Return the name of `width` copies of the schedule `name`."""
    return name if width == 1 else f"{name}x{width}"


def require_equal(name: str, width: int) -> None:
    """Refuse copies of a schedule with elastically averaged pipelines, which are not equal.

    Raises:
        ScheduleError: The width is above 1.
    """
    if width != 1:
        raise ScheduleError(
            f"{name}: got width {width}, expected 1, because its pipelines are averaged, not kept equal; try more "
            "pipelines"
        )


def _batch(schedule: Schedule) -> int:
    """Return the micro-batches of a copy between its Steps, or all micro-batches without Steps."""
    if schedule.is_held and not schedule.columns.counts[op_cells.STEP]:
        return schedule.num_microbatches
    return microbatches_per_step(schedule)


def _homes(home: tuple[int, ...], batch: int, copies: list[_Copy]) -> tuple[int, ...]:
    """Return the ranks that take the micro-batches of a stage in turn."""
    period = lcm(len(home), batch)
    ranks = {copy.microbatch(i): copy.rank(home[i % len(home)]) for copy in copies for i in range(period)}
    return tuple(ranks[i] for i in range(len(ranks)))


_Number = TypeVar("_Number", int, npt.NDArray[np.int32])


@dataclass(frozen=True, slots=True)
class _Copy:
    """One copy of a pipeline.

    Attributes:
        name: Name of the schedule.
        index: Number of the copy, from 0.
        width: Copies.
        num_ranks: Ranks of each copy.
        batch: Micro-batches of each copy in a step.
    """

    name: str
    index: int
    width: int
    num_ranks: int
    batch: int

    def rank(self, rank: _Number) -> _Number:
        """Return the number of a rank among the ranks of all copies, or an array of numbers for an array of ranks."""
        return self.index * self.num_ranks + rank

    def microbatch(self, microbatch: _Number) -> _Number:
        """Return the number of a micro-batch among the micro-batches of all copies."""
        before = microbatch // self.batch * (self.width - 1) + self.index  # batches of the other copies
        return microbatch + before * self.batch

    def read(self, ops: Iterable[Op]) -> Iterator[Op]:
        """Yield the op list of a rank of this copy, given the schedule's op list."""
        for op in _reduced(ops):
            if isinstance(op, Average):
                require_equal(self.name, self.width)
            yield rewritten(op, self._compute, self._post)

    def _compute(self, op: Compute) -> Compute:
        return replace(op, microbatch=self.microbatch(op.microbatch))

    def _post(self, op: Send | Recv) -> Send | Recv:
        message = op.message._replace(microbatch=self.microbatch(op.message.microbatch))
        return replace(op, message=message, peer=self.rank(op.peer))


@final
class _Gradients:
    """The last gradient of each stage so far: the stage's missing Reduce comes behind it.

    The last gradient is known only at the Step. Sends and Recvs directly behind a gradient stay there, so that messages
    need not wait for the sum.

    Attributes:
        last: Number of the last gradient of each stage, or of the last message directly behind it.
    """

    def __init__(self) -> None:
        self.last: dict[int, int] = {}

    def read(self, number: int, code: int, stage: int) -> int | None:
        """Read a cell of op `number`. Return the number of the op before the stage's Reduce, once it is known."""
        if op_cells.SEND_F <= code < op_cells.REDUCE:
            for reduced, last in self.last.items():
                if last == number - 1:
                    self.last[reduced] = number
        elif code % op_cells.OVERLAPPED in _ENDS:
            self.last[stage] = number
        elif code == op_cells.REDUCE:
            self.last.pop(stage, None)
        elif code == op_cells.STEP:
            return self.last.pop(stage, None)
        return None


def _reduced(ops: Iterable[Op]) -> Iterator[Op]:
    """Yield `ops`, with the missing Reduces: after a stage's last gradient before each Step, or before the end.

    Ops behind a gradient are kept until the next gradient or Step of the stage is read.
    """
    waiting: deque[list[Op]] = deque()  # each op, and the Reduces behind it
    gradients, first = _Gradients(), 0
    for number, op in enumerate(ops):
        waiting.append([op])
        for code, stage in _cells(op):
            place = gradients.read(number, code, stage)
            if place is not None:
                waiting[place - first].append(Reduce(stage))
        while waiting and first not in gradients.last.values():
            yield from waiting.popleft()
            first += 1
    for stage, place in gradients.last.items():
        waiting[place - first].append(Reduce(stage))
    for held in waiting:
        yield from held


def _cells(op: Op) -> Iterator[tuple[int, int]]:
    """Yield code and stage of the cells of an op that `_Gradients` reads."""
    if isinstance(op, Send | Recv):
        yield op_cells.SEND_F, 0
    elif isinstance(op, Reduce | Step):
        if isinstance(op, Step) or not op.is_over_stages:
            yield cell_code(type(op)), op.stage
    else:
        yield from ((cell_code(part.phase), part.stage) for part in computes(op) if part.phase in ENDS_MICROBATCH)


def _with_reduces(columns: OpColumns) -> OpColumns:
    """Return columns with the Reduces that their lists lack."""
    _, codes, stages, _, others = columns.in_lists
    num_added, places = [], []
    for begin, end in pairwise(map(int, columns.begins)):
        gradients, added = _Gradients(), []
        for cell in range(begin, end):
            code = codes[cell]
            if code in _READ and (code != op_cells.REDUCE or others[cell] == 0):
                place = gradients.read(cell + (code >= op_cells.OVERLAPPED), code, stages[cell])
                added += [] if place is None else [(place + 1, stages[cell])]
        added += [(place + 1, stage) for stage, place in gradients.last.items()]
        num_added.append(len(added))
        places += sorted(added, key=itemgetter(0))
    nothing = [0] * len(places)
    cells = [[op_cells.REDUCE] * len(places), [stage for _, stage in places], nothing, nothing, nothing]
    return columns.with_cells(num_added, [place for place, _ in places], cells)


def _all_copies(columns: OpColumns, copies: Sequence[_Copy]) -> OpColumns:
    """Return the columns of all copies, given the columns of one copy with its Reduces."""
    if columns.counts[op_cells.AVERAGE]:
        require_equal(copies[0].name, len(copies))
    width, num_cells = len(copies), len(columns.codes)
    begins = [0, *(index * num_cells + int(begin) for index in range(width) for begin in columns.begins[1:])]
    codes, stages, microbatches, others, lookaheads = (
        columns.codes, columns.stages, columns.microbatches, columns.others, columns.lookaheads,
    )  # fmt: skip
    are_words = (codes >= op_cells.REDUCE) & (codes < op_cells.OVERLAPPED)
    are_posts = (codes >= op_cells.SEND_F) & (codes < op_cells.REDUCE)
    all_microbatches = np.concatenate([np.where(are_words, 0, copy.microbatch(microbatches)) for copy in copies])
    if others is not None:
        others = np.concatenate([np.where(are_posts, copy.rank(others), others) for copy in copies])
    if lookaheads is not None:
        lookaheads = np.tile(lookaheads, width)
    return OpColumns(begins, np.tile(codes, width), np.tile(stages, width), all_microbatches, others, lookaheads)
