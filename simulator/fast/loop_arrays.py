"""The arrays that the event loop works on: lists of numbers for plain Python, NumPy's arrays for numba; or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias, get_type_hints

WORK, OWN, PAUSE, SEND, RECV, REDUCE, WAIT, MARK, END = range(9)
"""Kinds of instructions: see `simulator.fast.event_loop`."""

ALONE, SHARED, CHUNKED = range(3)
"""How messages pass a wire: one after the other, side by side, or in pieces, those of other wires between them."""

UNKNOWN = -1.0
"""A time that is not known yet."""

Integers: TypeAlias = list[int]
Kinds: TypeAlias = Sequence[int]
"""Small numbers: bytes in NumPy's arrays."""
Reals: TypeAlias = list[float]


class Instructions(NamedTuple):
    """What the n instructions of R ranks are.

    Attributes:
        begins: R + 1 indices: where each rank's instructions begin, and at last n.
        kinds: n kinds, as above.
        targets: n numbers: the transfer or reduction that is posted or waited for; else 0.
        takes: n indices into the next two.
        seconds: Durations on a rank's device [s]; of a WAIT how long before the end, of a RECV or REDUCE how much later
            than the network says it is over.
        utilisations: Their shares of the device, in (0, 1].
        sharers: Of each rank the number of its device among what is shared; -1 where nobody shares it.
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
    """What the T transfers, which go over C channels and W wires, are.

    Attributes:
        channels: T numbers of channels; then, for each reduction, C plus the number of its way.
        following: T numbers: the next transfer of the channel; -1 behind the last.
        loads: T indices into the next two: what is sent over which channel.
        load_bytes: Sizes.
        load_seconds: How long each occupies its wire, when it has the whole of it [s].
        lates: T times: how much later than the network says each is over [s]; nothing where none is.
        wires: C numbers.
        modes: W of `ALONE`, `SHARED`, `CHUNKED`: how messages pass the wire.
        sharers: W numbers of the wires among what is shared; -1 for others.
        latencies: W latencies [s].
        bandwidths: W bandwidths [bytes/s].
        queues: 3 W numbers: of each wire the link and the NICs that must be free; -1 fills up.
        slowed_begins: Of each channel and way of reductions, where its devices begin in `slowed`; and the end.
        slowed: Devices that are slower meanwhile, as numbers among what is shared.
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
    """What the reductions are, which come behind the transfers; those of a stage go one way.

    Attributes:
        members: Of each reduction, how many ranks have to post it.
        begins: Of each way, where its queues begin in the next two; and the end.
        queues: The links and NICs that it keeps.
        untils: How long from its start on it keeps each [s].
        seconds: Of each way [s].
        round_begins: Of each way, where its phases begin in the next three; and the end. None: it is not in rounds.
        round_counts: Equal rounds of each phase.
        round_occupied: How long a round keeps its queues [s].
        round_seconds: Of a round [s].
        round_queue_begins: Where the queues of each phase begin in the next; and the end.
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
    """How messages go, and how much is shared.

    Attributes:
        is_eager: Whether a transfer starts without the receiver.
        chunk_bytes: Size of the pieces in which messages pass `CHUNKED` wires.
        slowdown: What a transfer adds to the seconds of its devices.
        num_queues: Number of links and NICs.
        num_shared: Number of devices and wires that are shared.
        runs_ahead: Whether no two ranks ever want the same but the ends of a channel, so that their order is known.
    """

    is_eager: bool
    chunk_bytes: float
    slowdown: float
    num_queues: int
    num_shared: int
    runs_ahead: bool


class State(NamedTuple):
    """What changes while the event loop runs, beginning as zeros, or as the value in brackets.

    Attributes:
        at: Of each rank its next instruction [where its instructions begin].
        at_s: When each instruction is reached [`UNKNOWN`]; so are the next two [s].
        start_s: When each transfer and reduction starts.
        end_s: When it ends; when the loop is over, when it is over for who waits for it.
        late_s: How much later than the network says it is over [s].
        posted: How many have posted it.
        first_waiters: The first that waits for it [-1]: ranks, and above them the slowdown of a transfer or reduction.
        next_waiters: Who waits behind each of these [-1].
        due: Of each channel the message that goes next or is on its way, where only events say when it has left.
        num_due: How many are due.
        left_bytes: How much of it is left to pass its wire.
        phases: Of each reduction in rounds the phase.
        rounds: Its rounds of that phase that have begun.
        free_s: When each link and NIC is free [s].
        virtual_s: Of all that is shared the virtual clock [s].
        read_s: When that was last read [s].
        rates: Virtual seconds per second [1].
        alarms: Number of the newest alarm.
        num_transfers: How many transfers and reductions slow it.
        first_runs: The first on it that will be over [-1]: ranks, and behind them channels.
        next_runs: Of each of these who comes next on the same [-1].
        run_ends: Virtual time at which it is over [s].
        run_shares: How much it asks for [1].
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
        """How many transfers and reductions there are."""
        return len(self.transfers.following) + len(self.reductions.members)

    @property
    def num_times(self) -> int:
        """How many times there are: of instructions, and two of all that is posted."""
        return len(self.instructions.kinds) + 2 * self.num_posted

    def state(self, full: Callable[[int, float], Any]) -> State:
        """Return the beginning of the event loop; `full` makes so many of a number."""
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
        """Return what `run_ahead` changes beside the times; `empty` makes so many numbers of a type."""
        num_ranks, num_channels = len(self.instructions.sharers), len(self.transfers.wires)
        return (
            *(empty(num_ranks, int), empty(num_ranks, int), empty(num_channels, float)),
            *(empty(len(self.reductions.members), int), empty(self.rules.num_queues, float)),
        )

    def queue_sizes(self) -> tuple[int, int, int, int, int]:
        """Return how many ranks, channels and alarms have an event each, how many more may be to come, of one time."""
        num_ranks, num_channels, num_posted = len(self.instructions.sharers), len(self.transfers.wires), self.num_posted
        num_told = len(self.reductions.members) + (num_posted if self.rules.slowdown else 0)
        has_turns = self.transfers.modes.count(ALONE) < len(self.transfers.modes)
        num_turns = num_channels if has_turns else 0
        return num_ranks, num_turns, self.rules.num_shared, num_told, num_ranks + num_channels


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
    """Return as many indices, 0 first, in what the numbers are in."""
    if isinstance(numbers, list):
        return list(range(len(numbers)))
    import numpy as np

    return np.arange(len(numbers), dtype=np.int32)


def gathered(numbers: list[float], indices: Any) -> Any:
    """Return the number of each index, in what the indices are in."""
    if isinstance(indices, list):
        return [numbers[index] for index in indices]
    import numpy as np

    return np.array(numbers, np.float64)[indices]


def times_at(times_s: Any, numbers: Any) -> Any:
    """Return the times with some numbers, in what the times are in."""
    if isinstance(times_s, Sequence):
        return [times_s[number] for number in numbers]
    return times_s.take(numbers)


def extent_s(times_s: Any, starts: Any, ends: Any) -> tuple[float, float]:
    """Return the first of some times and the last of others [s]; zeros of none.

    Args:
        times_s: All times, by number [s].
        starts: Numbers of those of which the first is wanted.
        ends: Numbers of those of which the last is wanted.
    """
    firsts_s, lasts_s = times_at(times_s, starts), times_at(times_s, ends)
    if not len(firsts_s):
        return 0.0, 0.0
    if isinstance(firsts_s, list):
        return float(min(firsts_s)), float(max(lasts_s))
    return float(firsts_s.min()), float(lasts_s.max())
