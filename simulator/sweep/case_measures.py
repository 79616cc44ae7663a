"""Predict lists under many costs and links together: one event graph, and vectors of seconds that go through it.

    case            0     1     2          k pairs of costs and machines
    F on rank 0   1 s   1 s   2 s          each duration of the graph is a vector,
    message       0 s   3 s   3 s          each time of a node the largest of up to three vectors
    ...

What contends, or is averaged, has no such graph and is left to the simulator.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, final

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Recv, Schedule, Send, Timeline, occupies_device
from pipesched.schedules.transforms import with_steps
from pipesched.simulator import NetworkOptions, Scenario
from pipesched.simulator.fast import (
    EventGraph,
    LockstepBytes,
    contention_of,
    event_graph_of,
    held_on_devices,
    shown_period_s,
    shows_period,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_Case: TypeAlias = tuple[StageCosts, Cluster]
_MOST_TIMES = 4_000_000
"""Times that are held at once, 32 MB of them."""
_NOTHING_S = 1e-100
"""Less is no work: the simulator says so."""


@dataclass(frozen=True, slots=True)
class CaseMeasures:
    """What lists amount to under some costs, on some machines.

    Attributes:
        makespan_s: Seconds from the first work to the end of the last.
        busy_s: Seconds in which the devices compute, all of them together.
        peak_bytes: Most that each device holds that holds something; empty where the costs have no bytes.
        period_s: How long after a batch the next one is the same; None where the batch alone does not show it.
        timeline: Timeline without memory, where there is no `period_s`.
    """

    makespan_s: float
    busy_s: float
    peak_bytes: Mapping[int, int]
    period_s: float | None
    timeline: Timeline | None


@final
class CaseSweep:
    """Lists whose event graph is built once, and whose bytes are followed once for each costs.

    Args:
        schedule: Lowered.
        network: How messages go.
        is_repeated: Whether the lists are a batch, after which the next one comes; else a run without a flush.
    """

    def __init__(self, schedule: Schedule, network: NetworkOptions, *, is_repeated: bool) -> None:
        self._schedule = schedule
        self._network = network
        self._is_batch = is_repeated and with_steps(schedule) is schedule
        self._graphs: dict[bool, _Graph] = {}  # without what ranks take to hand messages over, and with it

    def measures(self, cases: Sequence[_Case]) -> list[CaseMeasures | None]:
        """Return what the lists amount to in each case; None where it has to be simulated.

        Raises:
            ScheduleError: The lists cannot run.
            ProfileError: Costs do not say the seconds of a phase that the lists have.
            SimulationError: Costs or devices are missing.
        """
        answers: list[CaseMeasures | None] = [None] * len(cases)
        for numbers in self._alike(cases):
            graph = self._graph(*cases[numbers[0]])
            most = max(1, _MOST_TIMES // graph.num_times)
            for start in range(0, len(numbers), most):
                part = numbers[start : start + most]
                for number, measured in zip(part, graph.measures([cases[n] for n in part]), strict=True):
                    answers[number] = measured
        return answers

    def _alike(self, cases: Sequence[_Case]) -> Iterable[list[int]]:
        """Return the numbers of cases that have one graph: which way gradients are reduced depends on the case."""
        alike: defaultdict[tuple[bool, int], list[int]] = defaultdict(list)
        is_reduced = bool(self._schedule.reducers)
        for number, (costs, cluster) in enumerate(cases):
            scenario = Scenario(self._schedule, costs, cluster, self._network)
            if not self._schedule.averagers and contention_of(scenario) is None:
                alike[cluster.has_hand_over, number if is_reduced else 0].append(number)
        return alike.values()

    def _graph(self, costs: StageCosts, cluster: Cluster) -> _Graph:
        key = cluster.has_hand_over
        if key not in self._graphs or self._schedule.reducers:
            shows = self._is_batch and shows_period(self._schedule, cluster, self._network)
            self._graphs[key] = _Graph(event_graph_of(self._schedule, costs, cluster), shows=shows)
        return self._graphs[key]


@final
class _Graph:
    """An event graph, and which of its times say what."""

    def __init__(self, graph: EventGraph, *, shows: bool) -> None:
        self._graph = graph
        self._shows = shows
        self._bytes: tuple[StageCosts, tuple[LockstepBytes, ...]] | None = None
        others = [place for place in graph.places if not isinstance(place.op, Send | Recv)]
        works = [place for place in others if occupies_device(place.op)]
        self._all = [place.start for place in others], [place.end for place in others]
        self._works = [place.start for place in works], [place.end for place in works]
        rank_of = defaultdict[int, tuple[list[int], list[int]]](lambda: ([], []))
        channel_of = defaultdict[tuple[int, int], tuple[list[int], list[int]]](lambda: ([], []))
        for place in graph.places:
            rank_of[place.rank][0].append(place.start)
            if isinstance(place.op, Send):
                starts, ends = channel_of[place.rank, place.op.peer]
                starts.append(place.start)
                ends.append(place.end)
            elif not isinstance(place.op, Recv):
                rank_of[place.rank][1].append(place.end)
        self._ranks, self._channels = [*rank_of.values()], [*channel_of.values()]

    @property
    def num_times(self) -> int:
        return 2 * len(self._graph.takes) + 2

    def measures(self, cases: Sequence[_Case]) -> list[CaseMeasures | None]:
        import numpy as np

        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is left to the simulator
            times_s = self._graph.times_of_cases_s(cases)
            starts, ends = self._all
            makespans_s = times_s[ends].max(axis=0) - times_s[starts].min(axis=0)
            starts, ends = self._works
            busy_s = (times_s[ends] - times_s[starts]).sum(axis=0)
        peaks = self._peaks(times_s, [costs for costs, _ in cases])
        ranks, channels = _ends(times_s, self._ranks), _ends(times_s, self._channels)
        answers: list[CaseMeasures | None] = []
        for number, peak_bytes in enumerate(peaks):
            makespan_s = float(makespans_s[number])
            if not (math.isfinite(makespan_s) and busy_s[number] > _NOTHING_S):
                answers.append(None)  # the simulator says what is wrong with it
                continue
            period_s = shown_period_s(ranks[number], channels[number]) if self._shows else None
            timeline = self._graph.timeline(times_s[:, number].tolist()) if period_s is None else None
            answers.append(CaseMeasures(makespan_s, float(busy_s[number]), peak_bytes, period_s, timeline))
        return answers

    def _peaks(self, times_s: NDArray[np.float64], costs: Sequence[StageCosts]) -> list[dict[int, int]]:
        """Return the most that each device holds, in each case; cases of the same costs have the same bytes."""
        columns: defaultdict[int, list[int]] = defaultdict(list)
        for number, of_case in enumerate(costs):
            columns[id(of_case)].append(number)
        peaks: list[dict[int, int]] = [{} for _ in costs]
        for numbers in columns.values():
            if costs[numbers[0]].has_bytes:
                for held in self._held(costs[numbers[0]]):
                    for number, peak in zip(numbers, _peak_bytes(held, times_s, numbers), strict=True):
                        peaks[number][held.device] = peak
        return peaks

    def _held(self, costs: StageCosts) -> tuple[LockstepBytes, ...]:
        if self._bytes is None or self._bytes[0] is not costs:
            self._bytes = costs, held_on_devices(self._graph, costs)
        return self._bytes[1]


def _ends(
    times_s: NDArray[np.float64], numbers: Sequence[tuple[list[int], list[int]]]
) -> list[list[tuple[float, float]]]:
    """Return of each case the first of some times and the last of others, for each pair of them."""
    import numpy as np

    if not numbers:
        return [[]] * times_s.shape[1]
    first_s = np.array([times_s[starts].min(axis=0) for starts, _ in numbers])
    last_s = np.array([times_s[ends].max(axis=0, initial=0.0) for _, ends in numbers])
    return [[*zip(*pair, strict=True)] for pair in zip(first_s.T.tolist(), last_s.T.tolist(), strict=True)]


def _peak_bytes(held: LockstepBytes, times_s: NDArray[np.float64], columns: Sequence[int]) -> list[int]:
    """Return the most that a device holds in some of the cases, of one pipeline."""
    import numpy as np

    since_s = times_s[np.ix_(held.times, columns)]
    is_held = np.vstack([since_s[:-1] < since_s[1:], np.ones((1, since_s.shape[1]), bool)])
    is_held |= np.array(held.inside)[:, None]
    peaks: list[int] = np.where(is_held, np.array(held.totals)[:, None], 0).max(axis=0).tolist()
    return peaks
