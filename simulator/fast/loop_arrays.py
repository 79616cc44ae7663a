"""The arrays that the event loop works on: lists of numbers for plain Python, NumPy's arrays for numba; or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias, get_type_hints

WORK, OWN, PAUSE, SEND, RECV, REDUCE, WAIT, MARK, END = range(9)
"""Kinds of instructions: see `simulator.fast.event_loop`."""

ALONE, SHARED, CHUNKED = range(3)
"""Ways to pass a wire: one after the other, side by side, or in pieces, interleaved with other wires."""

UNKNOWN = -1.0
"""A time that is not known yet."""

Integers: TypeAlias = list[int]
Kinds: TypeAlias = Sequence[int]
"""Small numbers: bytes in NumPy's arrays."""
Reals: TypeAlias = list[float]


class Instructions(NamedTuple):
    """The n instructions of R ranks.

    Attributes:
        begins: R + 1 indices: where each rank's instructions begin, and the total number.
        kinds: n kinds, as above.
        targets: n numbers: the transfer or reduction that is posted or waited for; otherwise 0.
        takes: n indices into the next two.
        seconds: Duration on a rank's device [s]. For a WAIT, the time before the end. For a RECV or REDUCE, the delay
            after its end on the network.
        utilisations: Their shares of the device, in (0, 1].
        sharers: Index of its device among the shared resources, by rank; -1 if the device is not shared.
    """

    begins: Integers
    kinds: Kinds
    targets: Integers
    takes: Integers
    seconds: Reals
    utilisations: Reals
    sharers: Integers

    def each_its_own(self) -> Instructions:
        """Return the same, but that each has a duration of its own: number i is of instruction i."""
        return self._replace(
            takes=_indices_like(self.takes),
            seconds=gathered(self.seconds, self.takes),
            utilisations=gathered(self.utilisations, self.takes),
        )


class Transfers(NamedTuple):
    """The T transfers, which go over C channels and W wires.

    Attributes:
        channels: T numbers of channels; then, for each reduction, C plus the number of its way.
        following: T numbers: the next transfer of the channel; -1 behind the last.
        loads: T indices into the next two: the pair of message size and channel.
        load_bytes: Sizes.
        load_seconds: Time that each occupies its wire at full bandwidth [s].
        lates: T delays after the end on the network [s]; empty without delays.
        wires: C numbers.
        modes: W of `ALONE`, `SHARED`, `CHUNKED`: how messages pass the wire.
        sharers: W indices of the wires among the shared resources; -1 for others.
        latencies: W latencies [s].
        bandwidths: W bandwidths [bytes/s].
        queues: 3 W numbers: the link and the NICs that must be free for each wire; -1 fills up.
        slowed_begins: Where the devices of each channel and way of reductions begin in `slowed`, and the end.
        slowed: Devices slowed by a transfer, as indices among the shared resources.
    """

    channels: Integers
    following: Integers
    loads: Integers
    load_bytes: Reals
    load_seconds: Reals
    lates: Reals
    wires: Integers
    modes: Integers
    sharers: Integers
    latencies: Reals
    bandwidths: Reals
    queues: Integers
    slowed_begins: Integers
    slowed: Integers


class Reductions(NamedTuple):
    """The reductions, numbered after the transfers; all reductions of a stage go one way.

    Attributes:
        members: Number of ranks that have to post each reduction.
        begins: Where the queues of each way begin in the next two, and the end.
        queues: The links and NICs that it occupies.
        untils: Time from its start until it frees each [s].
        seconds: Duration of each way [s].
        round_begins: Where the phases of each way begin in the next three, and the end; None without rounds.
        round_counts: Equal rounds of each phase.
        round_occupied: Time that a round occupies its queues [s].
        round_seconds: Duration of a round [s].
        round_queue_begins: Where the queues of each phase begin in the next, and the end.
        round_queues: Links and NICs.
    """

    members: Integers
    begins: Integers
    queues: Integers
    untils: Reals
    seconds: Reals
    round_begins: Integers
    round_counts: Integers
    round_occupied: Reals
    round_seconds: Reals
    round_queue_begins: Integers
    round_queues: Integers


class Rules(NamedTuple):
    """The rules of messages, and the number of shared resources.

    Attributes:
        is_eager: Whether a transfer starts without the receiver.
        chunk_bytes: Size of the pieces in which messages pass `CHUNKED` wires.
        slowdown: Increase of the seconds of its devices by a transfer.
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
        at_s: Time when each instruction is reached [`UNKNOWN`]; the next two begin the same [s].
        start_s: Start of each transfer and reduction.
        end_s: End of each transfer and reduction; after the loop, the end for its waiter.
        late_s: Delay after its end on the network [s].
        posted: Number of its posts.
        first_waiters: The first waiter [-1]: ranks, and above them the slowdown of a transfer or reduction.
        next_waiters: The waiter behind each waiter [-1].
        due: Message that goes next or is on its way, by channel, if only events know when it has left.
        num_due: Number of due messages.
        left_bytes: Bytes of it that have not passed the wire.
        phases: Phase of each reduction in rounds.
        rounds: Rounds of that phase that have begun.
        free_s: Time when each link and NIC is free [s].
        virtual_s: Virtual clock of each shared resource [s].
        read_s: Time of the last reading of that clock [s].
        rates: Virtual seconds per second [1].
        alarms: Number of the newest alarm.
        num_transfers: Number of transfers and reductions that slow it.
        first_runs: The first run on it to be over [-1]: ranks, and behind them channels.
        next_runs: The run behind each run on the same resource [-1].
        run_ends: Virtual end of a run [s].
        run_shares: Share that a run asks for [1].
    """

    at: Integers
    at_s: Reals
    start_s: Reals
    end_s: Reals
    late_s: Reals
    posted: Integers
    first_waiters: Integers
    next_waiters: Integers
    due: Integers
    num_due: Integers
    left_bytes: Reals
    phases: Integers
    rounds: Integers
    free_s: Reals
    virtual_s: Reals
    read_s: Reals
    rates: Reals
    alarms: Integers
    num_transfers: Integers
    first_runs: Integers
    next_runs: Integers
    run_ends: Reals
    run_shares: Reals


class LoopArrays(NamedTuple):
    """All that the loops are given."""

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

    def state(self, full: Callable[[int, float], Any]) -> State:
        """Return the initial state of the event loop; `full(count, number)` makes an array."""
        instructions, transfers, reductions, rules = self
        num_ranks, num_channels, num_posted = len(instructions.sharers), len(transfers.wires), self.num_posted
        num_reductions, num_shared, num_runs = len(reductions.members), rules.num_shared, num_ranks + num_channels
        start = len(instructions.kinds)
        times = full(self.num_times, UNKNOWN)  # side by side where slices are views
        return State(
            [*instructions.begins[:-1]],
            *(times[:start], times[start : start + num_posted], times[start + num_posted :]),
            *(full(num_posted, 0.0), full(num_posted, 0), full(num_posted, -1)),
            full(num_ranks + (num_posted if rules.slowdown else 0), -1),
            *(full(num_channels, 0), full(num_channels, 0), full(num_channels, 0.0)),
            *(full(num_reductions, 0), full(num_reductions, 0)),
            full(rules.num_queues, 0.0),
            *(full(num_shared, 0.0), full(num_shared, 0.0), full(num_shared, 1.0)),
            *(full(num_shared, 0), full(num_shared, 0), full(num_shared, -1)),
            *(full(num_runs, -1), full(num_runs, 0.0), full(num_runs, 0.0)),
        )

    def ahead_state(self, empty: Callable[[int, Any], Any]) -> tuple[Any, ...]:
        """Return the mutable arrays of `run_ahead` beside the times; `empty(count, type)` makes an array."""
        num_ranks, num_channels = len(self.instructions.sharers), len(self.transfers.wires)
        return (
            *(empty(num_ranks, int), empty(num_ranks, int), empty(num_channels, float)),
            *(empty(len(self.reductions.members), int), empty(self.rules.num_queues, float)),
        )


def in_numpy(group: Any) -> tuple[Any, ...]:
    """Return one of these tuples as NumPy's arrays."""
    import numpy as np

    kinds = {Integers: np.int32, Kinds: np.int8, Reals: np.float64}
    group_type: Any = type(group)
    return tuple(np.asarray(numbers, kinds[hint]) for numbers, hint in zip(group, _hints(group_type), strict=True))


@cache
def _hints(group_type: Any) -> tuple[Any, ...]:
    return tuple(get_type_hints(group_type).values())


def in_lists(group: Any) -> tuple[Any, ...]:
    """Return one of these tuples as lists."""
    return tuple(numbers if isinstance(numbers, list) else numbers.tolist() for numbers in group)


def _indices_like(numbers: Any) -> Any:
    """Return the indices of `numbers`, as a list or array like `numbers`."""
    if isinstance(numbers, list):
        return list(range(len(numbers)))
    import numpy as np

    return np.arange(len(numbers), dtype=np.int32)


def gathered(numbers: list[float], indices: Any) -> Any:
    """Return the number at each index, as a list or array like `indices`."""
    if isinstance(indices, list):
        return [numbers[index] for index in indices]
    import numpy as np

    return np.array(numbers, np.float64)[indices]


def times_at(times_s: Any, numbers: Any) -> Any:
    """Return the times with some numbers, as a list or array like `times_s`."""
    if isinstance(times_s, Sequence):
        return [times_s[number] for number in numbers]
    return times_s.take(numbers)


def extent_s(times_s: Any, starts: Any, ends: Any) -> tuple[float, float]:
    """Return the first of some times and the last of others [s]; zeros of none.

    Args:
        times_s: All times, by number [s].
        starts: Numbers of the times for the first.
        ends: Numbers of the times for the last.
    """
    firsts_s, lasts_s = times_at(times_s, starts), times_at(times_s, ends)
    if not len(firsts_s):
        return 0.0, 0.0
    if isinstance(firsts_s, list):
        return float(min(firsts_s)), float(max(lasts_s))
    return float(firsts_s.min()), float(lasts_s.max())
