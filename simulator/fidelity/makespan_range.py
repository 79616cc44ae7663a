"""The range of makespans of runs whose op seconds vary as they did in a profile, and the range of a median."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts, Variation
from pipesched.schedules import Schedule
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import WorkOp
from pipesched.schedules.weights import stashing_steps
from pipesched.simulator import NetworkOptions, SimulationError, engine
from pipesched.simulator.engine import OpSeconds

if TYPE_CHECKING:
    from numpy.random import Generator
_DRAWS = 2000


@dataclass(frozen=True, slots=True)
class MakespanRange:
    """Where the makespans of runs lie [s]: a tenth below `low_s`, a tenth above `high_s`."""

    draws: int
    low_s: float
    median_s: float
    high_s: float

    def to_dict(self) -> dict[str, float]:
        """Return plain data."""
        return asdict(self)


def makespan_range(
    schedule: Schedule,
    costs: StageCosts,
    cluster: Cluster,
    network: NetworkOptions,
    variation: Variation,
    draws: int,
    seed: int = 0,
) -> MakespanRange:
    """Return the range with the makespans of 80 % of a schedule's runs.

    A simulated run has one factor for all its works, like a pass of the profile, and one factor for each work.

    Args:
        schedule: Lowered or not.
        costs: Costs of the schedule's stages.
        cluster: A device for each rank.
        network: How messages go.
        variation: Variation of the seconds of the costs.
        draws: Simulated runs.
        seed: Seed of the draws.

    Raises:
        SimulationError: Ranks share a device. Their ops slow each other, so the times are not known in advance.
    """
    import numpy as np

    shared = next((device for device, count in Counter(schedule.rank_to_device).items() if count > 1), None)
    if shared is not None:
        raise SimulationError(
            f"{schedule.name}: got several ranks on device {shared}, expected one on each for a range of the makespan; "
            "leave the range out"
        )
    lowered = lower(schedule)
    works = [list(_work_s(lowered, rank, costs, cluster)) for rank in range(lowered.num_ranks)]
    rng = np.random.default_rng(seed)
    makespans_s = []
    for _ in range(draws):
        of_run = _drawn(rng, variation.passes, 1)[0]
        given = [
            [
                OpSeconds(work_s=None if work_s is None else work_s * of_run * factor)
                for work_s, factor in zip(row, _drawn(rng, variation.works, len(row)), strict=True)
            ]
            for row in works
        ]
        makespans_s.append(engine.simulate_lists(lowered, costs, cluster, network=network, given=given).makespan_s)
    low_s, median_s, high_s = np.percentile(makespans_s, [10, 50, 90])
    return MakespanRange(draws, float(low_s), float(median_s), float(high_s))


def _work_s(schedule: Schedule, rank: int, costs: StageCosts, cluster: Cluster) -> Iterator[float | None]:
    """Yield the seconds of each op of a rank's list, or None for an op without work of its own."""
    speed, stashing = cluster.devices[schedule.rank_to_device[rank]].speed, stashing_steps(schedule.ops[rank])
    for index, op in enumerate(schedule.ops[rank]):
        if isinstance(op, WorkOp):
            yield costs.seconds(op, copies=index in stashing) / speed
        else:
            yield None


def _drawn(rng: Generator, deciles: tuple[float, ...], count: int) -> list[float]:
    """Return `count` random factors whose distribution has these deciles, uniform between neighbouring deciles."""
    import numpy as np

    levels = np.linspace(0.0, 1.0, len(deciles))
    return [float(factor) for factor in np.interp(rng.random(count), levels, deciles)]


@dataclass(frozen=True, slots=True)
class MedianInterval:
    """A median, and the interval with 95 % of the medians of bootstrap samples, each as large as the data."""

    median: float
    low: float
    high: float

    @property
    def furthest(self) -> float:
        """The end of the interval that is further from 0, without its sign."""
        return max(abs(self.low), abs(self.high))

    def to_dict(self) -> dict[str, float]:
        """Return plain data."""
        return asdict(self)


def median_interval(values: Sequence[float], seed: int = 0) -> MedianInterval:
    """Return the median of at least one value with its bootstrap interval (Efron, 1979), percentiles of the draws.

    Args:
        values: Independent of each other, as of rounds.
        seed: Seed of the draws.
    """
    import numpy as np

    draws = np.random.default_rng(seed).choice(np.asarray(values), (_DRAWS, len(values)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return MedianInterval(float(np.median(values)), float(low), float(high))
