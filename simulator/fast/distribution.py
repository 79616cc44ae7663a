"""The distribution of the makespan when ops vary: many simulations, each with its own seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import quantiles

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.simulator import Engine, NetworkOptions
from pipesched.simulator import engine as simulator_engine
from pipesched.simulator.fast.array_engine import CompiledLists


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
