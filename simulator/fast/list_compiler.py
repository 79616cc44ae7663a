"""Compile lists to a program, rank by rank.

    Compute      waits for the messages that it needs, takes them, works
    Overlap      the same for both, then both at once, and the rest of each
    Send, Recv   post; a blocking Send waits behind that
    Reduce       posts
    Step         waits for the Reduce of its stage before it, works
    end          waits for unfinished reductions

All micro-batches are alike: the inputs, output and duration of a phase of a stage are computed once for each rank.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from itertools import pairwise, repeat
from typing import Any, TypeAlias, assert_never, final

import numpy as np

from pipesched.schedules import Schedule
from pipesched.schedules.columns import machine_code
from pipesched.schedules.ops import (
    Average,
    Compute,
    Message,
    Op,
    Overlap,
    Payload,
    Recv,
    Reduce,
    Reshard,
    Send,
    Step,
    Unshard,
    WorkOp,
    computes,
    gives,
    needs,
)
from pipesched.schedules.semantics import Channel, Meetings
from pipesched.schedules.weights import looks_ahead, stashing_steps
from pipesched.simulator import HandOverWork, NetworkOptions, SimulationError, after_op, of_post, of_receipt
from pipesched.simulator.engine import AS_MODELLED, OpSeconds
from pipesched.simulator.fast.column_compiler import compile_columns
from pipesched.simulator.fast.loop_arrays import END, MARK, OWN, PAUSE, RECV, REDUCE, SEND, WAIT, WORK
from pipesched.simulator.fast.program import GivenTime, InstructionTime, LatencyTime, Program, SpanNumbers, WorkTime


def compile_lists(
    schedule: Schedule,
    network: NetworkOptions,
    *,
    has_hand_over: bool,
    given: Sequence[Sequence[OpSeconds]] | None = None,
) -> Program:
    """Return the program of lowered lists.

    Args:
        schedule: Lowered.
        network: How messages go.
        has_hand_over: Whether messages, or going from op to op, take time of the ranks.
        given: Seconds of single ops, as in `simulate_lists`.

    Raises:
        SimulationError: An op waits for a missing message, posts do not meet, or a stage does not exist. SimPy reports
            which.
    """
    if given is None and not has_hand_over:
        return compile_columns(schedule, network)
    return _Compiler(schedule, network, has_hand_over).compiled(given)


_Reduction: TypeAlias = tuple[int, int]
"""The stage, and which of its reductions."""

_Kind: TypeAlias = tuple[tuple[tuple[Payload, int], ...], tuple[Payload, int] | None, int]
"""Inputs and output of a computation without the micro-batch, and the number of its duration."""


_NOWHERE = -1, -1


@final
class _Compiler:
    def __init__(self, schedule: Schedule, network: NetworkOptions, has_hand_over: bool) -> None:
        self._schedule = schedule
        self._devices = schedule.rank_to_device
        self._is_blocking = network.sends == "blocking"
        self._is_eager = network.protocol == "eager"
        self._has_hand_over = has_hand_over
        self._kinds: list[int] = []
        self._targets: list[int] = []
        self._takes: list[int] = []
        self._posted: list[int] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._hand_overs: list[tuple[int, Op, int]] = []
        self._numbers: dict[Hashable, int] = {}
        self._durations: list[InstructionTime] = [0.0]
        self._meetings = Meetings()
        self._channels: dict[Channel, tuple[int, list[int]]] = {}  # its number, and its transfers
        self._channel_of: list[int] = []
        self._messages: list[Message] = []
        self._message_kinds: dict[tuple[Payload, int], int] = {}
        self._sizes: list[int] = []
        self._sides: list[int] = []  # posted sides of each transfer: 1 the receiver's, 2 the sender's
        self._reductions: dict[_Reduction, list[int]] = {}  # the ranks of each
        self._reduced: list[tuple[list[int], int, _Reduction]] = []  # where the number of a reduction is still wanted

    def compiled(self, given: Sequence[Sequence[OpSeconds]] | None) -> Program:
        schedule = self._schedule
        begins: list[int] = []
        for rank, row in enumerate(schedule.ops):
            begins.append(len(self._kinds))
            self._rank(rank, row, repeat(AS_MODELLED) if given is None else given[rank])
            self._add(END)
        begins.append(len(self._kinds))
        if any(sides != 3 for sides in self._sides):
            raise SimulationError(f"{schedule.name}: only one side posts a message; check the schedule")
        for (stage, _), ranks in self._reductions.items():
            if not 0 <= stage < schedule.num_stages or sorted(ranks) != sorted(schedule.reducers[stage]):
                raise SimulationError(f"{schedule.name}: a replica does not reduce; check the schedule")
        numbers = {key: number for number, key in enumerate(self._reductions, len(self._sides))}
        for numbered, index, key in self._reduced:
            numbered[index] = numbers[key] if numbered is self._targets else ~numbers[key]
        following = [-1] * len(self._sides)
        for _, transfers in self._channels.values():
            for transfer, next_transfer in pairwise(transfers):
                following[transfer] = next_transfer
        count = len(self._kinds)
        over = count + len(self._sides) + len(numbers)
        starts = [start if start >= 0 else count + ~start for start in self._starts]
        ends = [end if end >= 0 else over + ~end for end in self._ends]

        def column(numbers: list[int]) -> machine_code.Int32s:
            return np.array(numbers, np.int32)

        return Program(
            schedule, column(begins), np.array(self._kinds, np.int8), column(self._targets), column(self._takes),
            tuple(self._durations), tuple(self._channels), column(self._channel_of), column(following),
            tuple(Message(*kind, 0) for kind in self._message_kinds), column(self._sizes),
            [stage for stage, _ in self._reductions],
            partial(_times_of, self._posted, starts, ends), self._has_hand_over, self._hand_overs,
        )  # fmt: skip

    def _rank(  # noqa: C901 -- one arm per word
        self, rank: int, row: Sequence[Op], givens: Iterable[OpSeconds]
    ) -> None:
        """Add the instructions of one rank's list."""
        there: dict[tuple[Payload, int, int], tuple[int, int] | None] = {}  # (transfer, its sender); None: made here
        reductions: dict[int, _Reduction] = {}
        alike: dict[Hashable, _Kind] = {}
        stashing = stashing_steps(row) if any(isinstance(op, Step) for op in row) else ()
        kinds, has_hand_over, devices = self._kinds, self._has_hand_over, self._devices
        posted, starts, ends = self._posted, self._starts, self._ends
        for index, (op, seconds) in enumerate(zip(row, givens, strict=False)):
            posted.append(len(kinds))
            takes_time = has_hand_over and seconds.before_s is None
            match op:
                case Send() | Recv():
                    if takes_time:
                        self._own(rank, op, of_post(rank, op, devices))
                    if seconds.before_s:
                        self._pause(rank, op, seconds.before_s)
                    transfer = self._message(rank, op, seconds)
                    starts.append(~transfer)
                    ends.append(~transfer)
                    if isinstance(op, Recv) and there.get(op.message, _NOWHERE) is not None:
                        there[op.message] = transfer, op.peer
                case Compute() | Overlap():
                    parts = [self._alike(rank, part, alike) for part in computes(op)]
                    for part, (needed, _, _) in zip(computes(op), parts, strict=True):
                        for payload, stage in needed:
                            awaited = there.get((payload, stage, part.microbatch), _NOWHERE)
                            if awaited is _NOWHERE:
                                raise SimulationError(f"{self._schedule.name}: rank {rank}: {op} waits forever")
                            if awaited is not None:
                                self._add(WAIT, awaited[0])
                                if takes_time:
                                    message = self._messages[awaited[0]]
                                    self._own(rank, op, of_receipt(rank, awaited[1], message, devices))
                    if seconds.before_s:
                        self._pause(rank, op, seconds.before_s)
                    self._works(rank, op, seconds, parts[0][2] if len(parts) == 1 else None)
                    for part, (_, made, _) in zip(computes(op), parts, strict=True):
                        if made is not None:
                            there[*made, part.microbatch] = None
                case Reduce():
                    if seconds.before_s:
                        self._pause(rank, op, seconds.before_s)
                    reductions[op.stage] = key = op.stage, self._meetings.come(rank, op)[1]
                    self._reductions.setdefault(key, []).append(rank)
                    self._reduced += ((column, len(column), key) for column in (self._targets, starts, ends))
                    self._add(REDUCE, takes=self._seconds(seconds.late_s))
                    starts.append(-1)
                    ends.append(-1)
                case Step() | Average():
                    if not 0 <= op.stage < self._schedule.num_stages:
                        raise SimulationError(f"{self._schedule.name}: {op}: no such stage; check the schedule")
                    if isinstance(op, Step) and op.stage in reductions:
                        self._wait_for(reductions.pop(op.stage))
                    if seconds.before_s:
                        self._pause(rank, op, seconds.before_s)
                    self._works(rank, op, seconds, copies=index in stashing)
                case Unshard() | Reshard():
                    self._works(rank, op, seconds)
                case _:
                    assert_never(op)
            if has_hand_over and seconds.after_s is None:
                work = after_op(rank, op, devices)
                if work is not None:
                    self._own(rank, op, work)
            if seconds.after_s:
                self._pause(rank, op, seconds.after_s)
        for key in reductions.values():
            self._wait_for(key)

    def _alike(self, rank: int, part: Compute, alike: dict[Hashable, _Kind]) -> _Kind:
        """Return the part that is the same for all micro-batches."""
        key = part.phase, part.stage, part.lookahead and looks_ahead(part)
        kind = alike.get(key)
        if kind is None:
            needed = tuple(message[:2] for message in needs(part, self._schedule.num_stages))
            made = gives(part)
            work = WorkTime(self._devices[rank], part)
            kind = alike[key] = needed, None if made is None else made[:2], self._number((rank, key), work)
        return kind

    def _message(self, rank: int, op: Send | Recv, seconds: OpSeconds) -> int:
        """Post one side of a transfer; return its number."""
        is_send = isinstance(op, Send)
        ends, number = self._meetings.send(rank, op.peer) if is_send else self._meetings.recv(rank, op.peer)
        channel = self._channels.get(ends)
        if channel is None:
            channel = self._channels[ends] = len(self._channels), []
        transfers = channel[1]
        if number < len(transfers):
            transfer = transfers[number]
            if self._messages[transfer] != op.message:
                raise SimulationError(f"{self._schedule.name}: a Send meets a Recv of something else")
        else:
            transfer = len(self._sides)
            transfers.append(transfer)
            self._sides.append(0)
            self._messages.append(op.message)
            self._sizes.append(self._message_kinds.setdefault(op.message[:2], len(self._message_kinds)))
            self._channel_of.append(channel[0])
        if is_send:
            self._sides[transfer] |= 2
            self._add(SEND, transfer)
            if self._is_blocking:
                latency = LatencyTime((self._devices[rank], self._devices[op.peer]))
                self._add(WAIT, transfer, self._number(latency, latency) if self._is_eager else 0)
        else:
            self._sides[transfer] |= 1
            self._add(RECV, transfer, self._seconds(seconds.late_s))
        return transfer

    def _works(
        self, rank: int, op: WorkOp | Unshard | Reshard, seconds: OpSeconds, takes: int | None = None, *,
        copies: bool = False,
    ) -> None:  # fmt: skip
        """Add the work of an op."""
        self._starts.append(len(self._kinds))
        if seconds.work_s is not None:
            given = GivenTime(None if isinstance(op, Unshard | Reshard) else op, seconds.work_s)
            self._add(PAUSE, takes=self._number(None, given))
        elif isinstance(op, Unshard | Reshard):
            self._add(MARK)
        elif takes is not None:
            self._add(WORK, takes=takes)
        else:
            parts = tuple((part.phase, part.stage, looks_ahead(part)) for part in computes(op))
            for piece in range(3 if isinstance(op, Overlap) else 1):
                work = WorkTime(self._devices[rank], op, copies, piece)
                self._add(WORK, takes=self._number((rank, *(parts or (op,)), copies, piece), work))
        self._ends.append(len(self._kinds))

    def _wait_for(self, key: _Reduction) -> None:
        self._reduced.append((self._targets, len(self._targets), key))
        self._add(WAIT)

    def _own(self, rank: int, op: Op, work: HandOverWork) -> None:
        alike = work._replace(message=None if work.message is None else work.message._replace(microbatch=0))
        self._hand_overs.append((rank, op, len(self._kinds)))
        self._add(OWN, takes=self._number(alike, work))

    def _pause(self, rank: int, op: Op, seconds: float) -> None:
        self._hand_overs.append((rank, op, len(self._kinds)))
        self._add(PAUSE, takes=self._seconds(seconds))

    def _seconds(self, seconds: float) -> int:
        return self._number(float(seconds), float(seconds)) if seconds else 0

    def _add(self, kind: int, target: int = 0, takes: int = 0) -> None:
        self._kinds.append(kind)
        self._targets.append(target)
        self._takes.append(takes)

    def _number(self, alike: Hashable, duration: InstructionTime) -> int:
        """Return the number of a duration, the same for all that are `alike`; None gives a number of its own."""
        number = len(self._durations)
        if alike is not None:
            number = self._numbers.setdefault(alike, number)
        if number == len(self._durations):
            self._durations.append(duration)
        return number


def _times_of(posted: Sequence[int], starts: Sequence[int], ends: Sequence[int], times: Any) -> SpanNumbers:
    """Return the times of spans, given their numbers."""
    return SpanNumbers(*(times[np.array(numbers, np.int64)] for numbers in (posted, starts, ends)))
