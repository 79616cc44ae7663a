"""Compile columns of ops to a program, for lists whose ranks take no time for hand-over."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any

from pipesched.schedules import Message, OpColumns, Payload, Schedule, WorkOp, machine_code, op_cells
from pipesched.schedules.semantics import Channel
from pipesched.schedules.weights import stashing_steps
from pipesched.simulator import NetworkOptions, SimulationError
from pipesched.simulator.fast.instruction_writer import (
    CROWDED,
    MISSING,
    ONE_SIDED,
    UNLIKE,
    UNREDUCED,
    WRITTEN,
    write_instructions,
    write_spans,
)
from pipesched.simulator.fast.program import InstructionTime, LatencyTime, Program, SpanNumbers, WorkTime

_FAULTS = {
    MISSING: "an op waits forever",
    UNLIKE: "a Send meets a Recv of something else",
    ONE_SIDED: "only one side posts a message",
    UNREDUCED: "a replica does not reduce",
    CROWDED: "an op is there twice",
}


def compile_columns(schedule: Schedule, network: NetworkOptions) -> Program:
    """Return the program of lowered lists whose ranks take no time for handing over.

    Raises:
        SimulationError: An op waits for a missing message, posts do not meet, or a stage does not exist. SimPy reports
            which.
    """
    columns, num_stages, num_microbatches = schedule.columns, schedule.num_stages, schedule.num_microbatches
    if not columns.are_within(num_stages, num_microbatches):
        raise SimulationError(f"{schedule.name}: no such stage or micro-batch; check the schedule")
    in_arrays = machine_code.is_hot(len(columns.codes), write_instructions)
    full, begins, codes, *cells = (
        partial(machine_code.filled, in_arrays=in_arrays),
        *columns.in_form(in_arrays=in_arrays),
    )
    room = _Room(columns, is_blocking := network.sends == "blocking")
    num_ranks, num_states = columns.num_ranks, 2 * num_stages * num_microbatches
    small = partial(full, are_small=True)
    counts, begun = full(5, 0), full(num_ranks + 1, 0)
    kinds, targets, takes = small(room.instructions, 0), full(room.instructions, 0), full(room.instructions, 0)
    durations, pieces = full(room.durations, 0), small(room.durations, 0)
    channel_of, following, sizes, messages = (full(room.transfers, 0) for _ in range(4))
    size_cells = full(2 * num_stages, 0)
    senders, receivers = full(room.channels, 0), full(room.channels, 0)
    reduced = full(room.reductions, 0)
    outcome = machine_code.loop_in(write_instructions, in_arrays=in_arrays, num_steps=len(codes))(
        begins, codes, *cells, _copies(schedule, codes, in_arrays=in_arrays),
        num_stages, num_microbatches, is_blocking, network.protocol == "eager",
        counts, begun, kinds, targets, takes, durations, pieces,
        channel_of, following, sizes, messages, size_cells, full(2 * num_stages, -1),
        senders, receivers, full(num_ranks, -1), *(full(room.channels, -1) for _ in range(6)),
        full(num_states, -1), full(num_states, -1), *(full(20 * num_stages, -1) for _ in range(2)),
        full(3 * room.durations, 0), reduced, full(room.reductions, -1), full(room.reductions, 0),
        *(full(num_stages, -1) for _ in range(4)),
    )  # fmt: skip
    if outcome != WRITTEN:
        raise SimulationError(f"{schedule.name}: {_FAULTS[int(outcome)]}; check the schedule")
    num_instructions, num_transfers, num_reductions, num_durations, num_channels = map(int, counts)
    channels = tuple(zip(_first(senders, num_channels), _first(receivers, num_channels), strict=True))
    kinds, targets = kinds[:num_instructions], targets[:num_instructions]
    spans = partial(
        _spans, columns, begun, kinds, targets, is_blocking, num_instructions, num_transfers + num_reductions
    )  # fmt: skip
    works = zip(_first(durations, num_durations), _first(pieces, num_durations), strict=True)
    return Program(
        schedule, _first(begun, num_ranks + 1), kinds, targets, takes[:num_instructions],
        tuple(_durations(schedule, channels, works)), channels,
        channel_of[:num_transfers], following[:num_transfers],
        tuple(_messages(columns, _first(size_cells, max(_first(sizes, num_transfers), default=-1) + 1))),
        sizes[:num_transfers], _first(reduced, num_reductions), spans, has_hand_over=False, hand_overs=[],
    )  # fmt: skip


class _Room:
    """The maximum numbers of a program of columns.

    Args:
        columns: The columns, lowered.
        is_blocking: Whether Sends block.
    """

    def __init__(self, columns: OpColumns, is_blocking: bool) -> None:
        counts, num_ranks, num_cells = columns.counts, columns.num_ranks, len(columns.codes)
        num_sends = counts[op_cells.SEND_F] + counts[op_cells.SEND_B]
        num_recvs = counts[op_cells.RECV_F] + counts[op_cells.RECV_B]
        num_overlaps = machine_code.num_above(columns.codes, op_cells.OVERLAPPED - 1)
        self.transfers = num_sends
        self.reductions = counts[op_cells.REDUCE]
        self.channels = min(num_sends + num_recvs, num_ranks * num_ranks)
        self.durations = num_cells - num_sends - num_recvs + num_overlaps + self.channels + 1
        num_waits = num_recvs + self.reductions + num_sends * is_blocking
        self.instructions = num_cells + num_overlaps + num_waits + num_ranks + 8


def _spans(
    columns: OpColumns, begun: Any, kinds: Any, targets: Any, is_blocking: bool, num_instructions: int,
    num_posted: int, times: Any,
) -> SpanNumbers:  # fmt: skip
    """Return (posted, start, end) of the spans, as a Program has them."""
    in_arrays = not isinstance(kinds, list)
    posted, starts, ends = (machine_code.filled_like(times, len(columns.codes)) for _ in range(3))
    begins, codes, *_ = columns.in_form(in_arrays=in_arrays)
    count = machine_code.loop_in(write_spans, in_arrays=in_arrays, num_steps=len(columns.codes))(
        begins,
        codes,
        begun,
        kinds,
        targets,
        is_blocking,
        num_instructions,
        num_posted,
        times,
        posted,
        starts,
        ends,
    )
    return SpanNumbers(posted[:count], starts[:count], ends[:count])


def _first(numbers: Any, count: int) -> list[int]:
    """Return the first numbers of an array or a list, in a list."""
    part: Any = numbers[:count]
    return part if isinstance(part, list) else [*part.tolist()]


def _durations(
    schedule: Schedule, channels: Sequence[Channel], works: Iterable[tuple[int, int]]
) -> Iterator[InstructionTime]:
    """Yield the meaning of each duration number, from its first cell and its piece; number 0 is zero seconds."""
    columns, devices, begins = schedule.columns, schedule.rank_to_device, [*map(int, schedule.columns.begins)]
    yield 0.0
    for cell, piece in islice(works, 1, None):
        if cell < 0:
            sender, receiver = channels[-1 - cell]
            yield LatencyTime((devices[sender], devices[receiver]))
        else:
            op = columns.op_at(cell)
            assert isinstance(op, WorkOp), "what has a duration works"
            yield WorkTime(devices[bisect(begins, cell) - 1], op, piece >= 8, piece % 8)


def _messages(columns: OpColumns, cells: Iterable[int]) -> Iterator[Message]:
    """Yield the messages that cells post, without their micro-batches."""
    activations = op_cells.SEND_F, op_cells.RECV_F
    for cell in cells:
        payload = Payload.ACTIVATION if columns.codes[cell] in activations else Payload.GRADIENT
        yield Message(payload, int(columns.stages[cell]), 0)


def _copies(schedule: Schedule, codes: Any, *, in_arrays: bool) -> Any:
    """Return of each cell whether it is a Step that keeps a copy of the weights it replaces; nothing if none does."""
    copies = machine_code.filled(0, 0, in_arrays=in_arrays, are_small=True)
    for rank, (begin, end) in enumerate(pairwise(map(int, schedule.columns.begins))):
        if not _computes_after_step(codes[begin:end]):
            continue
        stashing = stashing_steps(schedule.ops[rank])
        if stashing and not len(copies):
            copies = machine_code.filled(len(codes), 0, in_arrays=in_arrays, are_small=True)
        op = 0
        for cell in range(begin, end) if stashing else ():
            copies[cell] = op in stashing
            op += codes[cell] < op_cells.OVERLAPPED
    return copies


def _computes_after_step(codes: Any) -> bool:
    """Whether a computation comes after a Step, so that it may read weights of before that."""
    if not isinstance(codes, list):
        steps = (codes == op_cells.STEP).nonzero()[0]
        return bool(len(steps)) and bool(((codes < op_cells.SEND_F) | (codes >= op_cells.OVERLAPPED))[steps[0] :].any())
    if op_cells.STEP not in codes:
        return False
    behind = codes[codes.index(op_cells.STEP) :]
    return any(code < op_cells.SEND_F or code >= op_cells.OVERLAPPED for code in behind)
