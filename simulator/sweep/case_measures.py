"""Predict lists under many costs and links together: one program, and the vectors of its times.

Ranks that share devices, and those that are averaged, are left to the simulator.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, final

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Recv, Schedule, Send, Timeline, occupies_device
from pipesched.schedules.transforms import with_steps
from pipesched.simulator import NetworkOptions, differ
from pipesched.simulator.engine import require_simulable
from pipesched.simulator.fast import (
    Case,
    CaseProgram,
    CaseTimes,
    HeldBytes,
    Program,
    compile_lists,
    held_on_devices,
    is_unshared,
    shown_period_s,
    shows_period,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MOST_TIMES = 4_000_000
"""Times that are held at once, 32 MB of them."""
NOTHING_S = 1e-100
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
    """Lists that are compiled once, and whose bytes are followed once for each costs.

    Args:
        schedule: Lowered.
        network: How messages go.
        is_repeated: Whether the lists are a batch, after which the next one comes; else a run without a flush.
    """

    def __init__(self, schedule: Schedule, network: NetworkOptions, *, is_repeated: bool) -> None:
        self._schedule = schedule
        self._network = network
        self._is_batch = is_repeated and with_steps(schedule) is schedule
        self._lists: dict[bool, _Lists] = {}  # without what ranks take to hand messages over, and with it

    def measures(self, cases: Sequence[Case]) -> list[CaseMeasures | None]:
        """Return what the lists amount to in each case; None where it has to be simulated.

        Raises:
            ScheduleError: The lists cannot run.
            ProfileError: Costs do not say the seconds of a phase that the lists have.
            SimulationError: Costs or devices are missing.
        """
        answers: list[CaseMeasures | None] = [None] * len(cases)
        if self._schedule.averagers or self._schedule.num_devices < self._schedule.num_ranks:
            return answers
        for numbers in self._alike(cases):
            cluster = cases[numbers[0]][1]
            lists, shows = self._compiled(cluster), self._shows_period(cluster)
            is_shared = shows and not is_unshared(self._schedule, cluster)
            most = max(1, _MOST_TIMES // lists.num_times)
            for start in range(0, len(numbers), most):
                part = numbers[start : start + most]
                measured = lists.measures([cases[n] for n in part], shows=shows, is_shared=is_shared)
                for number, measures in zip(part, measured, strict=True):
                    answers[number] = measures
        return answers

    def _alike(self, cases: Sequence[Case]) -> Iterable[list[int]]:
        """Return the numbers of cases whose machines differ in nothing but seconds."""
        alike: defaultdict[object, list[int]] = defaultdict(list)
        for number, (costs, cluster) in enumerate(cases):
            require_simulable(self._schedule, costs, cluster, self._network, 0.0)
            alike[cluster.has_hand_over, cluster.nics, *(device.node for device in cluster.devices)].append(number)
        return alike.values()

    def _compiled(self, cluster: Cluster) -> _Lists:
        key = cluster.has_hand_over
        if key not in self._lists:
            program = compile_lists(self._schedule, self._network, has_hand_over=key)
            self._lists[key] = _Lists(program, self._network)
        return self._lists[key]

    def _shows_period(self, cluster: Cluster) -> bool:
        return self._is_batch and shows_period(self._schedule, cluster, self._network)


@final
class _Lists:
    """Compiled lists, and which of their times say what."""

    def __init__(self, program: Program, network: NetworkOptions) -> None:
        self._program = program
        self._cases = CaseProgram(program, network)
        self._bytes: tuple[StageCosts, tuple[HeldBytes, ...]] | None = None
        self._all: tuple[list[int], list[int]] = [], []
        self._works: tuple[list[int], list[int]] = [], []
        rank_of = defaultdict[int, tuple[list[int], list[int]]](lambda: ([], []))
        channel_of = defaultdict[tuple[int, int], tuple[list[int], list[int]]](lambda: ([], []))
        ops = chain.from_iterable(program.schedule.ops)
        for rank, op, _, start, end in zip(program.ranks(), ops, *program.spans, strict=True):
            rank_of[rank][0].append(start)
            if isinstance(op, Send):
                _add(channel_of[rank, op.peer], start, end)
            elif not isinstance(op, Recv):
                rank_of[rank][1].append(end)
                _add(self._all, start, end)
                if occupies_device(op):
                    _add(self._works, start, end)
        self._ranks, self._channels = [*rank_of.values()], [*channel_of.values()]

    @property
    def num_times(self) -> int:
        return self._program.num_times

    def measures(self, cases: Sequence[Case], *, shows: bool, is_shared: bool) -> list[CaseMeasures | None]:
        import numpy as np

        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is left to the simulator
            times = self._cases.times(cases)
            starts, ends = self._all
            makespans_s = times.of(ends).max(axis=0) - times.of(starts).min(axis=0)
            starts, ends = self._works
            busy_s = (times.of(ends) - times.of(starts)).sum(axis=0)
        peaks = self._peaks(times, [costs for costs, _ in cases])
        ranks, channels = _ends(times, self._ranks), _ends(times, self._channels)
        answers: list[CaseMeasures | None] = []
        for number, peak_bytes in enumerate(peaks):
            makespan_s = float(makespans_s[number])
            if not (math.isfinite(makespan_s) and busy_s[number] > NOTHING_S):
                answers.append(None)  # the simulator says what is wrong with it
                continue
            period_s = shown_period_s(ranks[number], channels[number], is_shared=is_shared) if shows else None
            timeline = None
            if period_s is None:
                timeline = self._program.timeline(times.rows[times.row_of, number].tolist())
            answers.append(CaseMeasures(makespan_s, float(busy_s[number]), peak_bytes, period_s, timeline))
        return answers

    def _peaks(self, times: CaseTimes, costs: Sequence[StageCosts]) -> list[dict[int, int]]:
        """Return the most that each device holds, in each case; cases of the same costs have the same bytes."""
        columns: defaultdict[int, list[int]] = defaultdict(list)
        for number, of_case in enumerate(costs):
            columns[id(of_case)].append(number)
        peaks: list[dict[int, int]] = [{} for _ in costs]
        for numbers in columns.values():
            if costs[numbers[0]].has_bytes:
                for held in self._held(costs[numbers[0]]):
                    times_s = times.of(held.times)[:, numbers]
                    for number, peak in zip(numbers, _peak_bytes(held, times_s), strict=True):
                        peaks[number][held.device] = peak
        return peaks

    def _held(self, costs: StageCosts) -> tuple[HeldBytes, ...]:
        if self._bytes is None or self._bytes[0] is not costs:
            self._bytes = costs, held_on_devices(self._program, costs)
        return self._bytes[1]


def _add(pair: tuple[list[int], list[int]], start: int, end: int) -> None:
    pair[0].append(start)
    pair[1].append(end)


def _ends(times: CaseTimes, numbers: Sequence[tuple[list[int], list[int]]]) -> list[list[tuple[float, float]]]:
    """Return of each case the first of some times and the last of others, for each pair of them."""
    import numpy as np

    if not numbers:
        return [[]] * times.rows.shape[1]
    first_s = np.array([times.of(starts).min(axis=0) for starts, _ in numbers])
    last_s = np.array([times.of(ends).max(axis=0, initial=0.0) for _, ends in numbers])
    return [[*zip(*pair, strict=True)] for pair in zip(first_s.T.tolist(), last_s.T.tolist(), strict=True)]


def _peak_bytes(held: HeldBytes, times_s: NDArray[np.float64]) -> list[int]:
    """Return the most that a device holds in some cases, of one pipeline."""
    import numpy as np

    with np.errstate(invalid="ignore"):  # of times that are not finite
        is_held = np.vstack([differ(times_s[:-1], times_s[1:]), np.ones((1, times_s.shape[1]), bool)])
    is_held |= np.array(held.inside)[:, None]
    peaks: list[int] = np.where(is_held, np.array(held.totals)[:, None], 0).max(axis=0).tolist()
    return peaks
