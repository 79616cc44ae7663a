"""Predict equal pipelines that share devices and drift apart, iteration after iteration.

Nobody waits at the end of an iteration for the other pipelines. So they do not stay in lockstep: whichever is ahead
finds the device free for a moment, runs at full speed and gets further ahead, until one computes where another waits
for a message. Two pipelines, a and b, of two stages and one micro-batch; device 0 in lockstep, and at best:

    lockstep    Fa+Fb Fa+Fb ..    ..    Ba+Bb Ba+Bb      each half as fast while both compute
    drifted     Fa    Bb    Bb    Fb    Ba    Ba         one's bubble is the other's time

`simulate_lists` has the same devices, links and meetings for one iteration that all begin together; `drifting_ends_s`
equals it there; but over many iterations of many settings SimPy would take minutes. So there is an event loop of its
own (`simulator.fast.drift_loop`), for the words that AvgPipe's lists have.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from pipesched.profiles.costs import shared_slowdown
from pipesched.schedules.lowering import lower
from pipesched.simulator import Estimate, Inexact, Meaning, Precision, Scenario, SimulationError
from pipesched.simulator.engine import lists_of_all, obstacle_of_several
from pipesched.simulator.fast.drift_arrays import DriftArrays, arrays_of_lists, drift_obstacle

_JITTER = 0.05
"""Sigma of the factor on an op's seconds: without it nothing would tell equal pipelines apart."""
_COMPUTATIONS = 3000
_LEAST, _MOST = 6, 24
"""Iterations: of short lists as many as make up so many computations, for each drives pipelines a bit further apart."""


def steady_s(lists: DriftArrays, num_pipelines: int) -> float:
    """Return the seconds of an iteration in the long run, in which every pipeline does a batch.

    They begin together; the first half of the iterations, in which they drift apart, does not count. Of long lists
    there are few, of which parts count too; however it comes out, no device or link does more than it can.

    Raises:
        SimulationError: The lists deadlock.
    """
    computations = num_pipelines * lists.num_computations
    iterations = min(_MOST, max(_LEAST, round(_COMPUTATIONS / max(1, computations))))
    ends_s = drifting_ends_s(lists, [0.0] * num_pipelines, iterations, _JITTER)
    from_s = min(ends[iterations // 2 - 1] for ends in ends_s)
    until_s = min(ends[-1] for ends in ends_s)  # after that the others have the devices for themselves
    done = sum(_done(ends, until_s) - _done(ends, from_s) for ends in ends_s)
    measured_s = num_pipelines * (until_s - from_s) / done if done else 0.0
    return max(measured_s, _work_s(lists, num_pipelines))


def predict_drifting(scenario: Scenario) -> Estimate | Inexact:
    """Predict the pace of pipelines that drift apart; nothing is said of their memory.

    Raises:
        SimulationError: The lists deadlock.
        ProfileError: The costs do not say the seconds of a phase that the lists have.
    """
    arrays = drift_arrays_of(scenario)
    if isinstance(arrays, Inexact):
        return arrays
    seconds = steady_s(arrays, scenario.num_pipelines)
    return Estimate(Meaning.PACE, seconds, {}, precision=Precision.APPROXIMATE)


def drift_arrays_of(scenario: Scenario) -> DriftArrays | Inexact:
    """Return what `steady_s` goes through; the same for any number of pipelines above one.

    Raises:
        ProfileError: The costs do not say the seconds of a phase that the lists have.
    """
    lists = lists_of_all(scenario.schedule, 1) if scenario.num_pipelines == 1 else lower(scenario.schedule)
    reason = drift_obstacle(replace(scenario, schedule=lists)) or obstacle_of_several(scenario)
    return arrays_of_lists(lists, scenario.costs, scenario.cluster) if reason is None else Inexact(reason)


def _done(ends_s: Sequence[float], now_s: float) -> float:
    """Return how many iterations of a pipeline are over at a time, with the part of the one that is going on."""
    whole = bisect_right(ends_s, now_s)
    if whole == len(ends_s):
        return whole
    begin_s = ends_s[whole - 1] if whole else 0.0
    return whole + (now_s - begin_s) / (ends_s[whole] - begin_s)


def _work_s(lists: DriftArrays, num_pipelines: int) -> float:
    """Return what the busiest device or link has to do in an iteration of all pipelines [s]."""
    num_ranks = len(lists.begins) - 1
    busy_s = [sum(lists.seconds[begin:end]) for begin, end in pairwise(lists.begins)]
    links_s = [num_pipelines * sum(lists.transfer_s[begin:end]) for begin, end in pairwise(lists.lines)]
    devices_s = [shared_slowdown(num_pipelines, lists.utilisations[rank]) * busy_s[rank] for rank in range(num_ranks)]
    return max(devices_s + links_s, default=0.0)


def drifting_ends_s(
    lists: DriftArrays, starts_s: Sequence[float], iterations: int = 1, jitter: float = 0.0, seed: int = 0
) -> list[list[float]]:
    """Run equal pipelines on the same devices, `iterations` times each.

    Args:
        lists: Lists of each pipeline, as `arrays_of_lists` returns them.
        starts_s: Start of each pipeline.
        iterations: At least 1.
        jitter: Sigma of a log-normal factor on the seconds of each op; 0 for none.
        seed: Seed of the factors.

    Returns:
        For each pipeline, when each iteration was over on all its devices [s].

    Raises:
        SimulationError: The lists deadlock.
    """
    from pipesched.simulator.fast.drift_loop import run_lanes

    ends_s = run_lanes(lists, starts_s, iterations, jitter, seed)
    if not ends_s:
        raise SimulationError(f"{lists.name}: deadlock: some rank waits forever; check the schedule")
    return ends_s
