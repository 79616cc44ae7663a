"""The arrays that the event loop works on."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, TypeVar, get_type_hints

import numpy as np

from pipesched.schedules.columns import machine_code

WORK, OWN, SEND, RECV, REDUCE, WAIT, MARK, END = range(8)
"""Kinds of instructions: see `simulator.fast.event_loop`."""

ALONE, SHARED, CHUNKED = range(3)
"""Ways to pass a wire: one after the other, side by side, or in pieces, interleaved with other wires."""

UNKNOWN = -1.0
"""A time that is not known yet."""

_Group = TypeVar("_Group", bound=tuple[Any, ...])


class Instructions(NamedTuple):
    """The n instructions of R ranks.

    Attributes:
        begins: R + 1 indices: where each rank's instructions begin, and the total number.
        kinds: n kinds, as above.
        targets: n numbers: the transfer or reduction that is posted or waited for; otherwise 0.
        takes: n indices into `seconds` and `utilisations`.
        seconds: Duration on a rank's device [s]. For a WAIT, the time before the end.
        utilisations: Shares of the device that the work can use, in (0, 1].
        sharers: Index of its device among the shared resources, by rank; -1 if the device is not shared.
    """

    begins: machine_code.Int32s
    kinds: machine_code.Int8s
    targets: machine_code.Int32s
    takes: machine_code.Int32s
    seconds: machine_code.Float64s
    utilisations: machine_code.Float64s
    sharers: machine_code.Int32s

    def each_its_own(self) -> Instructions:
        """Return these instructions with a duration for each: duration i is of instruction i."""
        return self._replace(
            takes=np.arange(len(self.takes), dtype=np.int32),
            seconds=self.seconds[self.takes],
            utilisations=self.utilisations[self.takes],
        )


class Transfers(NamedTuple):
    """The T transfers, which go over C channels and W wires.

    Attributes:
        channels: T numbers of channels; then, for each reduction, C plus the number of its way.
        following: T numbers: the next transfer of the channel; -1 behind the last.
        loads: T indices into `load_bytes` and `load_seconds`, which have an entry for each pair of message size and
            channel.
        load_bytes: Sizes.
        load_seconds: Time that each occupies its wire at full bandwidth [s].
        wires: C numbers.
        modes: W of `ALONE`, `SHARED`, `CHUNKED`: how messages pass the wire.
        sharers: W indices of the wires among the shared resources; -1 for others.
        latencies: W latencies [s].
        bandwidths: W bandwidths [bytes/s].
        queues: 3 W numbers: the link and the NICs that must be free for each wire; unused entries are -1.
        slowed_begins: Index in `slowed` of the first device of each channel and way of reductions, then its length.
        slowed: Devices slowed by a transfer, as indices among the shared resources.
    """

    channels: machine_code.Int32s
    following: machine_code.Int32s
    loads: machine_code.Int32s
    load_bytes: machine_code.Float64s
    load_seconds: machine_code.Float64s
    wires: machine_code.Int32s
    modes: machine_code.Int32s
    sharers: machine_code.Int32s
    latencies: machine_code.Float64s
    bandwidths: machine_code.Float64s
    queues: machine_code.Int32s
    slowed_begins: machine_code.Int32s
    slowed: machine_code.Int32s


class Reductions(NamedTuple):
    """The reductions, numbered after the transfers; all reductions of a stage go one way.

    Attributes:
        members: Number of ranks that have to post each reduction.
        begins: Index of the first queue of each way in `queues` and `untils`, then their length.
        queues: The links and NICs that each way occupies.
        untils: Time from the start of the reduction until it frees each queue [s].
        seconds: Duration of each way [s].
        round_begins: Index of the first phase of each way in the next three columns, then their length; empty without
            rounds.
        round_counts: Equal rounds of each phase.
        round_occupied: Time that a round occupies its queues [s].
        round_seconds: Duration of a round [s].
        round_queue_begins: Index in `round_queues` of the first queue of each phase, then its length.
        round_queues: Links and NICs.
    """

    members: machine_code.Int32s
    begins: machine_code.Int32s
    queues: machine_code.Int32s
    untils: machine_code.Float64s
    seconds: machine_code.Float64s
    round_begins: machine_code.Int32s
    round_counts: machine_code.Int32s
    round_occupied: machine_code.Float64s
    round_seconds: machine_code.Float64s
    round_queue_begins: machine_code.Int32s
    round_queues: machine_code.Int32s


class Rules(NamedTuple):
    """The rules of messages, and the number of shared resources.

    Attributes:
        is_eager: Whether a transfer starts without the receiver.
        chunk_bytes: Size of the pieces in which messages pass `CHUNKED` wires.
        slowdown: Relative increase of the seconds of ops on the two devices of a transfer, while it lasts.
        num_queues: Number of links and NICs.
        num_shared: Number of devices and wires that are shared.
        runs_ahead: Whether no two ranks ever compete for anything but the ends of a channel, so that their order is
            known.
    """

    is_eager: bool
    chunk_bytes: float
    slowdown: float
    num_queues: int
    num_shared: int
    runs_ahead: bool


class State(NamedTuple):
    """The mutable state of the event loop. All fields begin as zeros, or as the value in brackets.

    Attributes:
        at: Next instruction, by rank [where its instructions begin].
        at_s: Time when each instruction is reached [s]; this field, `start_s` and `end_s` begin as [`UNKNOWN`].
        start_s: Start of each transfer and reduction.
        end_s: End of each transfer and reduction; after the loop, the end for its waiter.
        posted: Number of posts of each transfer and reduction.
        first_waiters: The first waiter for each transfer and reduction [-1]. A number below the number of ranks is a
            rank; a number from there on is the slowdown of a transfer or reduction.
        next_waiters: The waiter behind each waiter [-1].
        due: Message in flight or next in turn, by channel; unused on channels where its end is known at the start.
        num_due: Number of due messages.
        left_bytes: Bytes of the due message that have not passed the wire.
        phases: Phase of each reduction in rounds.
        rounds: Rounds of that phase that have begun.
        free_s: Time when each link and NIC is free [s].
        virtual_s: Virtual clock of each shared resource [s].
        read_s: Time of the last reading of that clock [s].
        rates: Virtual seconds per second [1].
        alarms: Number of the newest alarm.
        num_transfers: Number of transfers and reductions that slow each shared resource.
        first_runs: The run on each shared resource that ends first [-1]. Runs are numbered by rank, then by channel.
        next_runs: The run after each run on the same resource [-1].
        run_ends: Virtual end of a run [s].
        run_shares: Share that a run asks for [1].
    """

    at: machine_code.Int32s
    at_s: machine_code.Float64s
    start_s: machine_code.Float64s
    end_s: machine_code.Float64s
    posted: machine_code.Int32s
    first_waiters: machine_code.Int32s
    next_waiters: machine_code.Int32s
    due: machine_code.Int32s
    num_due: machine_code.Int32s
    left_bytes: machine_code.Float64s
    phases: machine_code.Int32s
    rounds: machine_code.Int32s
    free_s: machine_code.Float64s
    virtual_s: machine_code.Float64s
    read_s: machine_code.Float64s
    rates: machine_code.Float64s
    alarms: machine_code.Int32s
    num_transfers: machine_code.Int32s
    first_runs: machine_code.Int32s
    next_runs: machine_code.Int32s
    run_ends: machine_code.Float64s
    run_shares: machine_code.Float64s


class LoopArrays(NamedTuple):
    """All inputs of the loops."""

    instructions: Instructions
    transfers: Transfers
    reductions: Reductions
    rules: Rules

    @property
    def num_posted(self) -> int:
        """Number of transfers and reductions."""
        return len(self.transfers.following) + len(self.reductions.members)

    @property
    def num_times(self) -> int:
        """Number of times: one for each instruction, two for each transfer and reduction."""
        return len(self.instructions.kinds) + 2 * self.num_posted

    def state(self) -> State:
        """Return the initial state of the event loop."""
        instructions, transfers, reductions, rules = self
        num_ranks, num_channels, num_posted = len(instructions.sharers), len(transfers.wires), self.num_posted
        num_reductions, num_shared, num_runs = len(reductions.members), rules.num_shared, num_ranks + num_channels
        return State(
            at=instructions.begins[:-1].copy(),
            at_s=np.full(len(instructions.kinds), UNKNOWN),
            start_s=np.full(num_posted, UNKNOWN),
            end_s=np.full(num_posted, UNKNOWN),
            posted=machine_code.int32s(num_posted),
            first_waiters=machine_code.int32s(num_posted, -1),
            next_waiters=machine_code.int32s(num_ranks + (num_posted if rules.slowdown else 0), -1),
            due=machine_code.int32s(num_channels),
            num_due=machine_code.int32s(num_channels),
            left_bytes=np.zeros(num_channels),
            phases=machine_code.int32s(num_reductions),
            rounds=machine_code.int32s(num_reductions),
            free_s=np.zeros(rules.num_queues),
            virtual_s=np.zeros(num_shared),
            read_s=np.zeros(num_shared),
            rates=np.ones(num_shared),
            alarms=machine_code.int32s(num_shared),
            num_transfers=machine_code.int32s(num_shared),
            first_runs=machine_code.int32s(num_shared, -1),
            next_runs=machine_code.int32s(num_runs, -1),
            run_ends=np.zeros(num_runs),
            run_shares=np.zeros(num_runs),
        )

    def ahead_state(self) -> tuple[Any, ...]:
        """Return the mutable arrays of `run_ahead` beside the times, which the loop initialises."""
        num_ranks, num_channels = len(self.instructions.sharers), len(self.transfers.wires)
        num_reductions = len(self.reductions.members)
        at, behind, posted = (np.empty(count, np.int64) for count in (num_ranks, num_ranks, num_reductions))
        return at, behind, np.empty(num_channels), posted, np.empty(self.rules.num_queues)


def in_arrays(group: type[_Group], *columns: Any) -> _Group:
    """Return one of these tuples with arrays of the annotated types, given sequences of numbers."""
    kinds: dict[Any, Any] = {
        machine_code.Int32s: np.int32,
        machine_code.Int8s: np.int8,
        machine_code.Float64s: np.float64,
    }
    return group(*(np.asarray(numbers, kinds[hint]) for numbers, hint in zip(columns, _hints(group), strict=True)))


@cache
def _hints(group_type: Any) -> tuple[Any, ...]:
    return tuple(get_type_hints(group_type).values())


def extent_s(
    times_s: machine_code.Float64s, starts: machine_code.Int32s, ends: machine_code.Int32s
) -> tuple[float, float]:
    """Return the earliest of the start times and the latest of the end times [s]; zeros without times.

    Args:
        times_s: All times, by number [s].
        starts: Numbers of the start times.
        ends: Numbers of the end times.
    """
    if not len(starts):
        return 0.0, 0.0
    return float(times_s[starts].min()), float(times_s[ends].max())
