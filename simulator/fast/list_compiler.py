"""Compile lists to a program, rank by rank.

    Compute      waits for the messages that it needs, works
    Overlap      waits for the messages of both ops, works on both at once, then on the rest of each
    Send, Recv   post; a blocking Send then waits for its message
    Unshard      posts, as a reduction of its rank alone; the next computation of its stage waits for it
    Reduce       posts; if it sums other things than gradients, it first waits for the Reduce of its stage before it
    Step         waits for the Reduce of its stage before it, works
    end          waits for unfinished reductions

All micro-batches are alike: a phase of a stage has one duration on a rank.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any

import numpy as np

from pipesched.schedules import Schedule
from pipesched.schedules.columns import OpColumns, machine_code, message_table, op_cells
from pipesched.schedules.ops import Group, Message, Payload, Reduce, WorkOp
from pipesched.schedules.semantics import Channel
from pipesched.simulator import NetworkOptions, SimulationError
from pipesched.simulator.fast.instruction_writer import (
    CROWDED,
    KEYS,
    MISSING,
    ONE_SIDED,
    UNLIKE,
    UNREDUCED,
    WRITER_PARTS,
    WRITTEN,
    CellNumbers,
    HeldMessages,
    KnownDurations,
    KnownReductions,
    KnownTransfers,
    ProgramShape,
    WriterRules,
    WrittenProgram,
    write_instructions,
    write_spans,
)
from pipesched.simulator.fast.own_work import with_own_work
from pipesched.simulator.fast.program import Gather, InstructionTime, LatencyTime, Program, SpanNumbers, WorkTime

_FAULTS = {
    MISSING: "an op waits forever",
    UNLIKE: "a Send meets the Recv of another message",
    ONE_SIDED: "only one side posts a message",
    UNREDUCED: "a replica does not reduce",
    CROWDED: "an op appears twice",
}


def compile_lists(schedule: Schedule, network: NetworkOptions, *, has_hand_over: bool) -> Program:
    """Return the program of lowered lists.

    Args:
        schedule: Lowered.
        network: How messages go.
        has_hand_over: Whether messages, or going from op to op, take time of the ranks.

    Raises:
        SimulationError: An op waits for a missing message, posts do not meet, or a stage does not exist. SimPy reports
            which.
    """
    columns, num_stages, num_microbatches = schedule.columns, schedule.num_stages, schedule.num_microbatches
    if not columns.are_within(num_stages, num_microbatches):
        raise SimulationError(
            f"{schedule.name}: got an op of a stage or micro-batch that does not exist; check the schedule"
        )
    is_blocking = network.sends == "blocking"
    room = _Room(columns, is_blocking)
    copies: Any = _copies(schedule)  # the loop's own columns are lists in plain Python
    rules = WriterRules(copies, num_microbatches, is_blocking, has_latency=network.protocol == "eager")
    program, *known = _columns(room, columns.num_ranks, num_stages, num_microbatches)
    outcome = machine_code.run_loop(
        write_instructions, columns.cells, message_table(num_stages), rules, program, *known,
        num_steps=len(columns.codes), parts=WRITER_PARTS,
    )  # fmt: skip
    if outcome != WRITTEN:
        raise SimulationError(f"{schedule.name}: {_FAULTS[int(outcome)]}; check the schedule")
    compiled = _program(schedule, program, is_blocking)
    return with_own_work(compiled) if has_hand_over else compiled


def _columns(
    room: _Room, num_ranks: int, num_stages: int, num_microbatches: int
) -> tuple[WrittenProgram, KnownDurations, KnownTransfers, KnownReductions, HeldMessages, CellNumbers]:
    """Return the columns that `write_instructions` fills."""
    zeros: Any = machine_code.int32s
    small: Any = machine_code.int8s

    def none(count: int) -> Any:
        return machine_code.int32s(count, -1)

    num_messages, num_keys = 2 * num_stages * num_microbatches, KEYS * num_stages
    program = WrittenProgram(
        counts=zeros(6),
        begins=zeros(num_ranks + 1),
        kinds=small(room.instructions),
        targets=zeros(room.instructions),
        takes=zeros(room.instructions),
        cells=zeros(room.durations),
        pieces=small(room.durations),
        channel_of=zeros(room.transfers),
        following=zeros(room.transfers),
        sizes=zeros(room.transfers),
        size_cells=zeros(2 * num_stages),
        senders=zeros(room.channels),
        receivers=zeros(room.channels),
        reduced=zeros(room.reductions),
    )
    durations = KnownDurations(none(num_keys), none(num_keys), zeros(3 * room.durations), none(room.channels))
    transfers = KnownTransfers(
        messages=zeros(room.transfers),
        size_of=none(2 * num_stages),
        first_channels=none(num_ranks),
        next_channels=none(room.channels),
        sent=none(room.channels),
        received=none(room.channels),
        firsts=none(room.channels),
        lasts=none(room.channels),
    )
    num_sums = len(op_cells.CONTENTS) * num_stages
    by_stage = (none(num_stages) for _ in "123")
    reductions = KnownReductions(
        none(room.reductions),
        zeros(room.reductions),
        none(num_sums),
        none(num_sums),
        *by_stage,
    )
    awaited = [none(room.cells if room.reductions else 0) for _ in "12"]
    numbers = CellNumbers(zeros(room.cells), *awaited)
    messages = HeldMessages(none(num_messages), none(num_messages))
    return program, durations, transfers, reductions, messages, numbers


def _program(schedule: Schedule, written: Any, is_blocking: bool) -> Program:
    """Return the program in a `WrittenProgram` that `write_instructions` has filled."""
    columns = schedule.columns
    num_instructions, num_sent, num_reductions, num_durations, num_channels, num_sizes = written.counts.tolist()
    senders, receivers = written.senders[:num_channels].tolist(), written.receivers[:num_channels].tolist()
    channels = tuple(zip(senders, receivers, strict=True))
    kinds, targets = written.kinds[:num_instructions], written.targets[:num_instructions]
    shape = ProgramShape(written.begins, kinds, targets, num_sent + num_reductions, is_blocking)
    works = zip(written.cells[:num_durations].tolist(), written.pieces[:num_durations].tolist(), strict=True)
    return Program(
        schedule,
        written.begins,
        kinds,
        targets,
        written.takes[:num_instructions],
        tuple(_durations(schedule, channels, works)),
        channels,
        written.channel_of[:num_sent],
        written.following[:num_sent],
        tuple(_messages(columns, written.size_cells[:num_sizes].tolist())),
        written.sizes[:num_sent],
        [_group(*divmod(number, schedule.num_stages)) for number in written.reduced[:num_reductions].tolist()],
        partial(_spans, columns, shape),
    )


class _Room:
    """The sizes of the arrays that the program of some columns needs at most.

    Args:
        columns: The columns, lowered.
        is_blocking: Whether Sends block.
    """

    def __init__(self, columns: OpColumns, is_blocking: bool) -> None:
        counts, num_ranks, num_cells = columns.counts, columns.num_ranks, len(columns.codes)
        num_sends = counts[op_cells.SEND_F] + counts[op_cells.SEND_B]
        num_recvs = counts[op_cells.RECV_F] + counts[op_cells.RECV_B]
        num_overlaps = columns.num_overlaps
        self.cells = num_cells
        self.transfers = num_sends
        num_unshards = counts[op_cells.UNSHARD]
        self.reductions = counts[op_cells.REDUCE] + num_unshards
        self.channels = min(num_sends + num_recvs, num_ranks * num_ranks)
        self.durations = num_cells - num_sends - num_recvs + num_overlaps + self.channels + 1
        num_waits = num_recvs + 2 * self.reductions + num_sends * is_blocking
        self.instructions = num_cells + num_overlaps + num_waits + num_ranks + 10


def _spans(columns: OpColumns, shape: ProgramShape, times: Any) -> SpanNumbers:
    """Return (posted, start, end) of the spans, as a Program has them."""
    posted, starts, ends = (np.zeros(len(columns.codes), times.dtype) for _ in range(3))
    count = machine_code.run_loop(
        write_spans, columns.cells, shape, times, posted, starts, ends, num_steps=len(columns.codes)
    )
    return SpanNumbers(posted[:count], starts[:count], ends[:count])


def _durations(
    schedule: Schedule, channels: Sequence[Channel], works: Iterable[tuple[int, int]]
) -> Iterator[InstructionTime]:
    """Yield the meaning of each duration number, from its first cell and its piece; number 0 is zero seconds."""
    columns, devices, begins = schedule.columns, schedule.rank_to_device, schedule.columns.begins.tolist()
    yield 0.0
    for cell, piece in islice(works, 1, None):
        if cell < 0:
            sender, receiver = channels[-1 - cell]
            yield LatencyTime((devices[sender], devices[receiver]))
        else:
            op = columns.op_at(cell)
            assert isinstance(op, WorkOp), "what has a duration works"
            yield WorkTime(devices[bisect(begins, cell) - 1], op, piece >= 8, piece % 8)


def _group(content: int, stage: int) -> Group | Gather:
    """Return the group of Reduces, or the gather of a rank, that has a number, as `write_instructions` gives it."""
    if content >= len(op_cells.CONTENTS):
        return Gather(stage, content - len(op_cells.CONTENTS))
    return Reduce(stage, op_cells.CONTENTS[content]).group


def _messages(columns: OpColumns, cells: Iterable[int]) -> Iterator[Message]:
    """Yield the messages that cells post, without their micro-batches."""
    activations = op_cells.SEND_F, op_cells.RECV_F
    for cell in cells:
        payload = Payload.ACTIVATION if columns.codes[cell] in activations else Payload.GRADIENT
        yield Message(payload, int(columns.stages[cell]), 0)


def _copies(schedule: Schedule) -> machine_code.Int8s:
    """Return, for each cell, whether it is a Step that keeps a copy of the old weights; empty if none does.

    A Step does if a later computation of its stage reads the replaced version; `stashing_steps` finds the same in ops.
    """
    columns, copies = schedule.columns, machine_code.int8s(0)
    for begin, end in pairwise(columns.begins.tolist()):
        codes, stages = columns.codes[begin:end], columns.stages[begin:end]
        is_step, computes = codes == op_cells.STEP, (codes < op_cells.SEND_F) | (codes >= op_cells.OVERLAPPED)
        if not is_step.any() or not computes[is_step.argmax() :].any():
            continue
        versions = np.zeros_like(stages) if columns.others is None else columns.others[begin:end]
        for stage in np.unique(stages[is_step]):
            own_steps, own_computes = is_step & (stages == stage), computes & (stages == stage)
            replaced = versions[own_computes & (versions < own_steps.cumsum())]
            if len(replaced):
                copies = copies if len(copies) else machine_code.int8s(len(columns.codes))
                copies[begin + np.flatnonzero(own_steps)[replaced]] = 1
    return copies
