"""Equal pipelines on the same devices: one of them is compiled, and stands for any number.

If they begin together and nothing distinguishes them, they are in lockstep: each op of one runs beside the same op of
all others, and is slowed if N of them need more than the device. Each message shares its link with N - 1 equal
messages. That makes one pipeline with a device and a link for itself, on which

    an op takes max(1, N u) times its seconds, u being its utilisation,
    a message takes N times its bytes over the bandwidth.

Each device holds N times the memory of the one pipeline, and the reference model once. A shared NIC would distinguish
the pipelines: it takes messages in turn.

In the steady state no pipeline waits for the others at the end of an iteration. So they do not stay in lockstep: the
one ahead finds the device or the link free for a moment, runs at full speed and gets further ahead, until one computes
while another waits for a message. Two pipelines, a and b, of two stages and one micro-batch; device 0 at best:

    lockstep    Fa+Fb Fa+Fb ..    ..    Ba+Bb Ba+Bb      each half as fast while both compute
    drifted     Fa    Bb    Bb    Fb    Ba    Ba         one's bubble is the other's time

So all of them are run with ops that vary a little, for longer and longer, until their pace is known well enough:

    iterations begin together    ....|....|....|....|....|....|....|....      the first half does not count, the second
                                          half    1   2   3   4   5   6      is cut into windows: work done in each

The spread of the windows shows how well a run knows its pace. It does not show whether the pipelines have drifted as
far as they will: so a run twice as long must have the same pace. Nothing is quicker than the busiest device or link,
and pipelines that begin together only get better as they drift. So the pace is known if a short run reaches that bound.
Its windows must also agree, because with few micro-batches this pace may last only for a while.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.columns import machine_code, op_cells
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Average
from pipesched.simulator import (
    USUAL_NETWORK,
    Estimate,
    Inexact,
    Meaning,
    NetworkOptions,
    Precision,
    Scenario,
    SimulationError,
    is_usual,
)
from pipesched.simulator.engine import lists_of_all, obstacle_of_several, require_simulable
from pipesched.simulator.fast.list_compiler import compile_lists
from pipesched.simulator.fast.loaded_program import LoadedProgram, loop_times
from pipesched.simulator.fast.loop_arrays import OWN, WORK, Instructions, LoopArrays, Transfers, extent_s, in_arrays
from pipesched.simulator.fast.program_memory import HeldBytes, held_on_devices
from pipesched.simulator.memory import OverCapacity, memory, over_capacity

_JITTER = 0.05
"""Sigma of the factor on a work's seconds: without it nothing would tell equal pipelines apart."""
Run: TypeAlias = Callable[[int], Sequence[Sequence[float]]]
"""From a number of iterations to when each is over, for each pipeline [s]."""

WELL_ENOUGH = 0.01
"""The error at which a pace is known, as a share of it."""
_NUM_WINDOWS = 12
_LEAST = 4
_WORKS, _MOST_WORKS = 12_000, 500_000
"""Works of the shortest run and of the longest, but for lists of which few iterations are as many."""
_OF_DIFFERENCE = 3**0.5
"""Ratio of the difference from a run of half the length to the error of a run; the variance of the half is double."""


@final
class EqualPipelines:
    """Equal pipelines on the same devices; the methods take the number of pipelines.

    Args:
        schedule: Schedule of one pipeline, with a device for every rank; without reductions if there are several
            pipelines.
        costs: Seconds of each op alone on its device.
        cluster: Devices and links.
        network: How messages go.

    Raises:
        ScheduleError, SimulationError: The lists cannot run, or costs or devices are missing.
    """

    def __init__(
        self, schedule: Schedule, costs: StageCosts, cluster: Cluster, network: NetworkOptions = USUAL_NETWORK
    ) -> None:
        require_simulable(schedule, costs, cluster, network, 0.0)
        self._costs, self._cluster, self._network = costs, cluster, network
        self._program = compile_lists(lower(schedule), network, has_hand_over=cluster.has_hand_over)
        self._known: dict[bool, LoopArrays] = {}  # of one that is alone, and of one of several
        self._together: dict[int, Estimate] = {}
        self._busiest_s: dict[bool, tuple[float, float]] = {}

    def together(self, num_pipelines: int) -> Estimate:
        """Return time and memory of an iteration of pipelines that begin together; the Timeline is left out.

        For one pipeline alone an Average takes no time and no memory: there is no reference. Several pipelines share
        only devices and links, and messages go as usual: see `contention_of`.

        Raises:
            As `pace` does.
        """
        if num_pipelines not in self._together:
            self._together[num_pipelines] = self._run_together(num_pipelines)
        return self._together[num_pipelines]

    def _run_together(self, num_pipelines: int) -> Estimate:
        costs = self._costs if num_pipelines > 1 else _without_averages(self._costs)
        times_s = LoadedProgram(self._program, costs, self._cluster, self._network, num_pipelines=num_pipelines).times()
        starts, ends = self._program.works_of_one
        begin_s, end_s = extent_s(times_s, starts, self._program.works[1] if num_pipelines > 1 else ends)
        peaks = {held.device: held.peak_bytes(times_s, num_pipelines) for held in self._held}
        over = self._over_capacity(times_s, num_pipelines) if self._exceeds(peaks) else None
        return Estimate(Meaning.ITERATION, end_s - begin_s, peaks, None if over is None else str(over))

    def slow_each_other(self, num_pipelines: int) -> bool:
        """Return whether pipelines slow each other, by their ops or by messages on one link, and so drift apart.

        Pipelines that begin together and take no longer than one of them alone do not drift. Pipelines with reductions
        are judged by their ops only.

        Raises:
            As `pace` does.
        """
        if num_pipelines == 1 or is_slowed(self._costs, num_pipelines):
            return num_pipelines > 1
        if len(self._arrays(num_pipelines).reductions.members):
            return False
        alone, together = (max(map(max, self.ends_s(number))) for number in (1, num_pipelines))
        return together > alone * (1 + WELL_ENOUGH)

    def held_ranges(self, num_pipelines: int) -> dict[int, tuple[int, int]]:
        """Return for each device the lower and the upper bound of its peak bytes, whatever the op times.

        Raises:
            As `pace` does.
        """
        self.together(1)  # lists that deadlock do so however many pipelines there are
        return {held.device: held.range_bytes(num_pipelines) for held in self._held}

    def pace(self, num_pipelines: int) -> Pace:
        """Return the steady-state seconds of an iteration, in which every pipeline does a batch, and their error.

        The seconds are never below the lower bound of the busiest device or link.

        Raises:
            SimulationError: The lists deadlock.
            ProfileError: The costs lack the seconds of a phase of the lists.
        """
        num_works = num_pipelines * int((self._program.kinds == WORK).sum())
        least_s = self.least_s(num_pipelines)
        return _drifting_pace(lambda count: self.ends_s(num_pipelines, count, _JITTER), num_works, least_s)

    def ends_s(self, num_pipelines: int, iterations: int = 1, jitter: float = 0.0, seed: int = 0) -> list[list[float]]:
        """Run pipelines that begin together for a number of iterations.

        Args:
            num_pipelines: At least 1.
            iterations: At least 1.
            jitter: Sigma of a log-normal factor on the seconds of each work; 0 for none.
            seed: Seed of the factors.

        Returns:
            For each pipeline, when each iteration was over on all its devices [s].

        Raises:
            As `pace` does.
        """
        arrays = _side_by_side(self._arrays(num_pipelines), num_pipelines, iterations)
        instructions: Any = arrays.instructions
        if jitter:
            instructions = instructions.each_its_own()
            is_work = instructions.kinds == WORK
            num_works = int(np.count_nonzero(is_work))
            instructions.seconds[is_work] *= np.random.default_rng(seed).lognormal(0.0, jitter, num_works)
        times_s = loop_times(arrays._replace(instructions=instructions))
        if not len(times_s):
            name = self._program.schedule.name
            raise SimulationError(f"{name}: deadlock: some rank waits forever; check the schedule")
        begins = instructions.begins
        lengths = (np.diff(begins) - 1) // iterations
        ends = begins[:-1, None] + lengths[:, None] * np.arange(1, iterations + 1)
        by_rank = times_s[ends].reshape(num_pipelines, -1, iterations)
        ends_s: list[list[float]] = by_rank.max(axis=1).tolist()
        return ends_s

    @cached_property
    def _held(self) -> tuple[HeldBytes, ...]:
        return held_on_devices(self._program, self._costs)

    def _exceeds(self, peaks: Mapping[int, int]) -> bool:
        capacities = ((self._cluster.devices[device].memory_bytes, peak) for device, peak in peaks.items())
        return any(capacity is not None and peak > capacity for capacity, peak in capacities)

    def _over_capacity(self, times_s: machine_code.Float64s, num_pipelines: int) -> OverCapacity | None:
        """Return the first moment at which a device holds more than its capacity, or None if none ever does."""
        timeline = self._program.timeline(times_s)
        if num_pipelines == 1:
            spans = tuple(span for span in timeline.spans if not isinstance(span.op, Average))
            timeline = replace(timeline, spans=spans)
        samples = memory(timeline, self._costs, self._program.schedule, num_pipelines=num_pipelines)
        return over_capacity(samples, self._cluster, timeline)

    def _arrays(self, num_pipelines: int) -> LoopArrays:
        """Return the arrays of one of `num_pipelines` pipelines."""
        is_several = num_pipelines > 1
        if is_several not in self._known:
            loaded = LoadedProgram(
                self._program, self._costs, self._cluster, self._network, num_pipelines, are_in_lockstep=False
            )
            self._known[is_several] = loaded.arrays
        return self._known[is_several]

    def least_s(self, num_pipelines: int) -> float:
        """Return the work of the busiest rank, device or link in an iteration of all pipelines [s]."""
        is_several = num_pipelines > 1
        if is_several not in self._busiest_s:
            self._busiest_s[is_several] = _busiest_s(self._arrays(num_pipelines))
        of_one_s, of_each_s = self._busiest_s[is_several]
        return max(of_one_s, num_pipelines * of_each_s)


def _busiest_s(arrays: LoopArrays) -> tuple[float, float]:
    """Return the work of the busiest rank of a pipeline, and the work per pipeline of the busiest device or link [s].

    An unshared device does the work of its rank.
    """
    instructions: Any = arrays.instructions.each_its_own()
    transfers: Any = arrays.transfers
    ranks = np.repeat(np.arange(len(instructions.sharers)), np.diff(instructions.begins))
    work_s = np.where(instructions.kinds <= OWN, instructions.seconds, 0.0)
    wires = transfers.wires[transfers.channels]
    occupied_s = transfers.load_seconds[transfers.loads]
    shared_s = [*np.bincount(wires, occupied_s)]
    sharers = instructions.sharers[ranks]
    is_shared = sharers >= 0
    shared_s += [*np.bincount(sharers[is_shared], (work_s * instructions.utilisations)[is_shared])]
    return float(max(np.bincount(ranks, work_s), default=0.0)), float(max(shared_s, default=0.0))


def is_slowed(costs: StageCosts, num_pipelines: int) -> bool:
    """Whether the ops of pipelines that begin together slow each other; their messages may do so too."""
    return any(num_pipelines * cost.utilisation > 1 for cost in costs.stages)


def predict_drifting(scenario: Scenario) -> Estimate | Inexact:
    """Predict the pace of pipelines that drift apart, without memory.

    Raises:
        ScheduleError, SimulationError: The lists cannot finish.
        ProfileError: The costs lack the seconds of a phase of the lists.
    """
    schedule, number = scenario.schedule, scenario.num_pipelines
    posts = "Reduces" if schedule.summands else "Unshards" if schedule.columns.counts[op_cells.UNSHARD] else None
    if posts is not None:
        return Inexact(
            f"{schedule.name}: got {posts} in several pipelines, expected none, as such pipelines drift apart; try "
            "simulate"
        )
    reason = obstacle_of_several(scenario)
    if reason is not None:
        return Inexact(reason)
    lists = lists_of_all(schedule, 1) if number == 1 else schedule
    pace = EqualPipelines(lists, scenario.costs, scenario.cluster, scenario.network).pace(number)
    return Estimate(Meaning.PACE, pace.seconds, {}, precision=Precision.APPROXIMATE, error=pace.error)


def _without_averages(costs: StageCosts) -> StageCosts:
    return replace(costs, stages=tuple(replace(cost, average_s=0.0) for cost in costs.stages))


class Pace(NamedTuple):
    """The seconds of an iteration in the long run.

    Attributes:
        seconds: Time in which every pipeline completes a batch [s].
        error: Relative error of `seconds`. It is the excess over a lower bound, or the standard error of the longest
            run: from the windows of the run, or from its difference to a run of half the length.
    """

    seconds: float
    error: float


def _drifting_pace(run: Run, num_works: int, least_s: float) -> Pace:
    """Run pipelines for more and more iterations until the mean time per micro-batch is known.

    Args:
        run: Runs the pipelines for a number of iterations, with ops that vary.
        num_works: Works of all pipelines in an iteration.
        least_s: Work of the busiest device or link in an iteration of all pipelines [s].
    """
    iterations = max(_LEAST, round(_WORKS / max(1, num_works)))
    earlier_s = None
    while True:
        seconds, error = _measured(run(iterations))
        if seconds <= least_s * (1 + WELL_ENOUGH) and error <= WELL_ENOUGH:
            return Pace(max(seconds, least_s), WELL_ENOUGH)
        if earlier_s is not None:
            error = max(error, abs(seconds / earlier_s - 1) / _OF_DIFFERENCE)
            if error <= WELL_ENOUGH or 2 * iterations * num_works > max(_MOST_WORKS, 4 * _LEAST * num_works):
                return Pace(seconds, error)
        earlier_s, iterations = seconds, 2 * iterations


def _measured(ends_s: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the pace of a run [s] and its standard error, as a share of it."""
    counted = len(ends_s[0]) // 2
    from_s = min(ends[counted - 1] for ends in ends_s)
    until_s = min(ends[-1] for ends in ends_s)  # after that the others have the devices for themselves
    window_s = (until_s - from_s) / _NUM_WINDOWS
    done = [sum(_done(ends, from_s + k * window_s) for ends in ends_s) for k in range(_NUM_WINDOWS + 1)]
    rates = [after - before for before, after in pairwise(done)]
    mean = statistics.fmean(rates)
    if mean <= 0:  # nothing takes time
        return 0.0, 0.0
    error = 0.0
    while len(rates) > 2:  # windows that follow one another are alike, so wider ones may spread more
        error = max(error, statistics.stdev(rates) / statistics.fmean(rates) / len(rates) ** 0.5)
        rates = [first + second for first, second in zip(rates[::2], rates[1::2], strict=False)]
    return len(ends_s) * window_s / mean, error


def _done(ends_s: Sequence[float], now_s: float) -> float:
    """Return the number of finished iterations of a pipeline at a time, plus the fraction of the current one."""
    whole = bisect_right(ends_s, now_s)
    if whole == len(ends_s):
        return whole
    begin_s = ends_s[whole - 1] if whole else 0.0
    return whole + (now_s - begin_s) / (ends_s[whole] - begin_s)


def _side_by_side(arrays: LoopArrays, num_pipelines: int, iterations: int) -> LoopArrays:
    """Return the arrays of N pipelines that do their lists K times.

    one        rank 0  F0 B0 END                transfers 0 .. T - 1 of channels 0 .. C - 1
    2 x 2      rank 0  F0 B0 F0 B0 END          transfers (k N + n) T + t of channels n C + c, k being the iteration
               rank 1  F0 B0 F0 B0 END          rank n R + r is rank r of pipeline n, on the same device

    Args:
        arrays: Arrays of one of the pipelines, without reductions; devices and wires are shared by all.
        num_pipelines: N.
        iterations: K.
    """
    assert not len(arrays.reductions.members), "nobody says who reduces with whom"
    num_sent = len(arrays.transfers.following)
    return LoopArrays(
        _instructions(arrays.instructions, num_sent, num_pipelines, iterations),
        _transfers(arrays.transfers, num_pipelines, iterations),
        arrays.reductions,
        arrays.rules,
    )


def _instructions(alone: Instructions, num_sent: int, num_pipelines: int, iterations: int) -> Instructions:
    places: list[Any] = []
    turns: list[Any] = []
    lengths: list[int] = []
    for begin, end in pairwise(alone.begins.tolist()):
        places += [np.tile(np.arange(begin, end - 1), iterations), [end - 1]]
        turns += [np.repeat(np.arange(iterations), end - 1 - begin), [0]]
        lengths.append((end - 1 - begin) * iterations + 1)
    place, turn = np.concatenate(places), np.concatenate(turns)

    def several(column: Any) -> Any:
        return np.tile(column[place], num_pipelines)

    targets = np.asarray(alone.targets, np.int64)[place] + num_sent * num_pipelines * turn
    longer = alone._replace(
        begins=np.array([*accumulate(lengths * num_pipelines, initial=0)]),
        kinds=several(alone.kinds),
        targets=(targets + num_sent * np.arange(num_pipelines)[:, None]).ravel(),
        takes=several(alone.takes),
        sharers=np.tile(alone.sharers, num_pipelines),
    )
    return in_arrays(type(alone), *longer)


def _transfers(alone: Transfers, num_pipelines: int, iterations: int) -> Transfers:
    times, num_sent, num_channels = num_pipelines * iterations, len(alone.following), len(alone.wires)
    channels, following = np.asarray(alone.channels, np.int64), np.asarray(alone.following, np.int64)
    is_last, (_, firsts) = following < 0, np.unique(channels, return_index=True)
    nexts = np.where(is_last, num_pipelines * num_sent + firsts[channels], following)
    all_following = nexts + num_sent * np.arange(times)[:, None]
    all_following[-num_pipelines:, is_last] = -1
    several_channels = (channels + num_channels * np.arange(num_pipelines)[:, None]).ravel()
    columns: dict[str, Any] = {
        "channels": np.tile(several_channels, iterations),
        "following": all_following.ravel(),
        "loads": np.tile(alone.loads, times),
    }
    longer = alone._replace(
        wires=np.tile(alone.wires, num_pipelines),
        slowed_begins=np.append(0, np.cumsum(np.tile(np.diff(alone.slowed_begins), num_pipelines))),
        slowed=np.tile(alone.slowed, num_pipelines),
        **columns,
    )
    return in_arrays(type(alone), *longer)


def contention_of(scenario: Scenario) -> str | None:
    """Return the reason why one pipeline of a scenario does not represent all, or None if it does."""
    schedule, nics, network = scenario.schedule, scenario.cluster.nics, scenario.network
    if schedule.num_devices < schedule.num_ranks:
        return (
            f"{schedule.name}: got {schedule.num_ranks} ranks on {schedule.num_devices} devices, expected a device for "
            "each rank; try simulate"
        )
    if scenario.num_pipelines == 1 or (not nics and is_usual(network)):
        return None
    return (
        f"{schedule.name}: got {scenario.num_pipelines} pipelines with {len(nics)} shared NICs, {network.protocol} "
        f"messages, {network.sends} sends and a slowdown of {network.slowdown:g}, expected no shared NIC, rendezvous "
        "messages, posted sends and no slowdown; try simulate"
    )
