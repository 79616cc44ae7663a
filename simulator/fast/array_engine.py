"""The array engine: it computes SimPy's Timeline in a loop over arrays, which numba compiles if installed.

    lists ── compile_lists ──> Program ── costs, cluster ──> numbers ── event loop ──> times ──> Timeline

It covers all of `simulator.engine`. Lists that cannot finish are handed to SimPy, which reports the reason.
If ops vary, the distribution of the makespan takes many simulations, each with its own seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import asdict, dataclass
from functools import partial
from statistics import quantiles
from typing import Any, final

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster, flat
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule, ScheduleError, Timeline
from pipesched.schedules.lowering import lower
from pipesched.simulator import USUAL_NETWORK, Engine, Estimate, NetworkOptions, Scenario, SimulationError
from pipesched.simulator import engine as simulator_engine
from pipesched.simulator.engine import lists_of_all, obstacle_of_several, require_simulable
from pipesched.simulator.fast.list_compiler import compile_lists
from pipesched.simulator.fast.loaded_program import LoadedProgram
from pipesched.simulator.fast.program import Program
from pipesched.simulator.fast.program_memory import HeldBytes, held_on_devices
from pipesched.simulator.memory import iteration, peak_bytes

_UNABLE = (ScheduleError, SimulationError, ProfileError)


def simulate_arrays(
    schedule: Schedule,
    costs: StageCosts,
    cluster: Cluster | None = None,
    *,
    network: NetworkOptions = USUAL_NETWORK,
    jitter: float = 0.0,
    seed: int = 0,
) -> Timeline:
    """Predict the time of every op of `schedule`.

    Args, errors and result are the same as in `simulate_lists`, without given seconds.
    """
    cluster = flat(max(schedule.rank_to_device, default=-1) + 1) if cluster is None else cluster
    return CompiledLists(schedule, costs, cluster, network).timeline(jitter, seed)


@final
class CompiledLists:
    """Lists whose instructions are found once, for any seed, costs and links.

    Args:
        schedule: Lowered or not.
        costs: Seconds of each op alone on its device.
        cluster: Devices and links.
        network: How messages go.

    Raises:
        As `simulate_lists` does.
    """

    def __init__(
        self,
        schedule: Schedule,
        costs: StageCosts,
        cluster: Cluster,
        network: NetworkOptions = USUAL_NETWORK,
    ) -> None:
        require_simulable(schedule, costs, cluster, network, 0.0)
        self._lowered = lower(schedule)
        self._costs, self._cluster, self._network = costs, cluster, network
        self._program: Program | None = None  # None if SimPy has to report an error
        self._loaded: LoadedProgram | None = None
        self._held: tuple[HeldBytes, ...] | None = None
        with suppress(*_UNABLE):
            self._program = compile_lists(self._lowered, network, has_hand_over=cluster.has_hand_over)

    def under(self, costs: StageCosts, cluster: Cluster) -> CompiledLists:
        """Return the same lists under other costs and on other machines.

        Args:
            costs: What each op takes when it is alone on its device.
            cluster: Devices and links; handing over takes time if it did, and else none.

        Raises:
            SimulationError: Costs or devices are missing.
        """
        require_simulable(self._lowered, costs, cluster, self._network, 0.0)
        held = self._held if costs is self._costs else None
        other = copy(self)
        vars(other).update(_costs=costs, _cluster=cluster, _loaded=None, _held=held)
        return other

    def timeline(self, jitter: float = 0.0, seed: int = 0) -> Timeline:
        """Return the Timeline, with or without jitter; raises the same errors as `simulate_lists`."""
        return self._timeline(self._times_s(jitter, seed)) or self._simpys(jitter, seed)

    def timeline_and_peaks(self, jitter: float = 0.0, seed: int = 0) -> tuple[Timeline, Mapping[int, int]]:
        """Return the Timeline, and the peak memory of each device where costs have bytes [bytes]."""
        times_s = self._times_s(jitter, seed)
        timeline = self._timeline(times_s)
        if timeline is not None and not self._costs.has_bytes:
            return timeline, {}
        if timeline is None or self._program is None or self._lowered.ranks_per_device > 1:
            timeline = timeline or self._simpys(jitter, seed)
            return timeline, peak_bytes(timeline, self._costs, self._lowered)
        if self._held is None:
            self._held = held_on_devices(self._program, self._costs)
        return timeline, {held.device: held.peak_bytes(times_s, 1) for held in self._held}

    def _timeline(self, times_s: Any) -> Timeline | None:
        """Return the Timeline that has these times, or None if SimPy has to report the fault."""
        timeline = self._program.timeline(times_s) if self._program and len(times_s) else None
        return timeline if timeline is not None and math.isfinite(timeline.makespan_s) else None

    def makespan_s(self, jitter: float = 0.0, seed: int = 0) -> float:
        """Return the makespan of `timeline` [s]."""
        times_s = self._times_s(jitter, seed)
        makespan_s = self._program.makespan_s(times_s) if self._program and len(times_s) else math.inf
        return makespan_s if math.isfinite(makespan_s) else self._simpys(jitter, seed).makespan_s

    def _times_s(self, jitter: float, seed: int) -> Any:
        """Return the times, or an empty list if SimPy has to report an error."""
        require_simulable(self._lowered, self._costs, self._cluster, self._network, jitter)
        if self._program is not None:
            with suppress(*_UNABLE):
                if self._loaded is None:
                    self._loaded = LoadedProgram(self._program, self._costs, self._cluster, self._network)
                return self._loaded.times(jitter, seed)
        return []

    def _simpys(self, jitter: float, seed: int) -> Timeline:
        return simulator_engine.simulate_lists(
            self._lowered, self._costs, self._cluster, network=self._network, jitter=jitter, seed=seed
        )  # fmt: skip


@final
class ScenarioLists:
    """Lists that are compiled once for scenarios of any costs and links.

    Args:
        schedule: Lowered or not.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._compiled: dict[tuple[NetworkOptions, bool], CompiledLists] = {}

    def under(self, scenario: Scenario) -> CompiledLists:
        """Return the lists under the costs, on the machines and with the network of a scenario.

        Raises:
            As `simulate_lists` does.
        """
        costs, cluster, network = scenario.costs, scenario.cluster, scenario.network
        key = network, cluster.has_hand_over
        known = self._compiled.get(key)
        self._compiled[key] = (
            CompiledLists(self.schedule, costs, cluster, network) if known is None else known.under(costs, cluster)
        )
        return self._compiled[key]


def predict_scenario(scenario: Scenario) -> Estimate:
    """Predict an iteration of all pipelines, as `predict_by_events` does, with the array engine.

    Raises:
        ScheduleError, ProfileError: As `simulate_lists` does.
        SimulationError: Also where the schedule cannot be run by several pipelines at once.
    """
    reason = obstacle_of_several(scenario)
    if reason is not None:
        raise SimulationError(reason)
    costs, cluster = scenario.costs, scenario.cluster
    lists = lists_of_all(scenario.schedule, scenario.num_pipelines)
    return iteration(simulate_arrays(lists, costs, cluster, network=scenario.network), lists, costs, cluster)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Makespans of several runs [s]; a percentile lies between two of them, in proportion."""

    runs: int
    min_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float

    def to_dict(self) -> dict[str, float]:
        """Return plain data."""
        return asdict(self)


def distribution(makespans_s: Sequence[float]) -> Distribution:
    """Return the distribution of at least one makespan."""
    several = [*makespans_s] * 2 if len(makespans_s) == 1 else makespans_s  # there is nothing between one and itself
    cuts = quantiles(several, n=100, method="inclusive")
    return Distribution(len(makespans_s), min(makespans_s), cuts[49], cuts[89], cuts[98], max(makespans_s))


def makespans(
    schedule: Schedule,
    costs: StageCosts,
    cluster: Cluster,
    *,
    network: NetworkOptions,
    jitter: float,
    seeds: Sequence[int],
    num_processes: int = 1,
    engine: Engine = "fast",
) -> Iterator[float]:
    """Yield the makespan under each of `seeds`, in their order [s].

    Args:
        schedule: Lowered.
        num_processes: More than one: new processes share the work.
        engine: Engine of the simulation.

    Raises:
        As `simulate_lists` does.
    """
    makespan_of: Callable[[int], float]
    if engine == "simpy":
        makespan_of = partial(_makespan_by_simpy, schedule, costs, cluster, network, jitter)
    else:
        makespan_of = partial(CompiledLists(schedule, costs, cluster, network).makespan_s, jitter)
    if num_processes == 1:
        yield from map(makespan_of, seeds)
        return
    from pipesched.profiles.processes import worker_pool

    size = max(1, len(seeds) // (8 * num_processes))
    with worker_pool(num_processes, makespan_of) as pool:
        for answers in [pool.submit(seeds[start : start + size]) for start in range(0, len(seeds), size)]:
            yield from answers.result()


def _makespan_by_simpy(
    schedule: Schedule, costs: StageCosts, cluster: Cluster, network: NetworkOptions, jitter: float, seed: int
) -> float:
    return simulator_engine.simulate_lists(
        schedule, costs, cluster, network=network, jitter=jitter, seed=seed
    ).makespan_s
