"""The conditions of a simulation beside lists, costs and machines: seconds given for single ops, and jitter.

Seconds of a single op are measured, drawn or assumed; they replace the model's seconds:

    Compute, Overlap, Step, Average     reached ── waits for messages ── own ───── work ──── own ──── next one reached
                                                   late_s of a Recv      before_s  work_s    after_s
    Send, Recv, Reduce                  reached ── own ─── posted ────── own ──── next one reached
                                                   before_s              after_s

A message that no op waits for may be late without effect.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, repeat

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.common import faults
from pipesched.simulator import MAX_JITTER, NetworkOptions, SimulationError


@dataclass(frozen=True, slots=True)
class OpSeconds:
    """The times of one op, in elapsed seconds: device speed and sharing do not scale them.

    None stands for the model's value. The model's work depends on costs and devices, and its other times on links.

    Attributes:
        work_s: Seconds of the op's work.
        before_s: Seconds of the rank's own work after all inputs have arrived, before the op's work or posting.
        after_s: Seconds of the rank's own work after the op, before the next op.
        late_s: Delay of a Recv or Reduce after its end on the network; negative if earlier.
    """

    work_s: float | None = None
    before_s: float | None = None
    after_s: float | None = None
    late_s: float = 0.0


AS_MODELLED = OpSeconds()
"""Nothing is given."""


def require_given(given: Sequence[Sequence[OpSeconds]], schedule: Schedule) -> None:
    """Refuse seconds that do not match the lists of the lowered `schedule`.

    Raises:
        SimulationError: The number of given seconds of a rank differs from its number of ops.
    """
    counts, expected = [len(row) for row in given], [len(row) for row in schedule.ops]
    if counts != expected:
        raise SimulationError(
            f"{schedule.name}: got seconds of {counts} ops on the ranks, expected {expected}; give the seconds for the "
            "lowered lists"
        )


def jitter_factors(sigma: float, seed: int, rank: int) -> Iterator[float]:
    """Yield a jitter factor for each op of a rank in turn, independent of the other ranks; 1 without jitter.

    Args:
        sigma: Sigma of the logarithm of a factor.
        seed: Seed of the factors of all ranks.
        rank: The rank.
    """
    if sigma == 0:
        return repeat(1.0)
    draw = random.Random(f"{seed} {rank}").lognormvariate
    return (draw(0.0, sigma) for _ in repeat(None))


def first_factors(sigma: float, seed: int, rank: int, count: int) -> Sequence[float]:
    """Return at least the first `count` jitter factors; short sequences are cached."""
    if count > _KEPT:
        return [*islice(jitter_factors(sigma, seed, rank), count)]
    return _kept_factors(sigma, seed, rank, 1 << count.bit_length())


_KEPT = 1 << 12


@lru_cache(maxsize=1024)
def _kept_factors(sigma: float, seed: int, rank: int, count: int) -> Sequence[float]:
    return [*islice(jitter_factors(sigma, seed, rank), count)]


def require_simulable(
    schedule: Schedule, costs: StageCosts, cluster: Cluster, network: NetworkOptions, jitter: float
) -> None:
    """Refuse an impossible simulation, with all faults in one line.

    Raises:
        SimulationError: Costs or devices are missing, or an option is out of its range.
    """
    options = [*faults(network)]
    if not 0 <= jitter <= MAX_JITTER:
        options.append(f"jitter: got {jitter}, expected 0 to {MAX_JITTER:g}, the sigma of a log-normal factor")
    if options:  # they do not depend on the schedule
        raise SimulationError("; ".join(options))
    problems = []
    if schedule.num_stages > costs.num_stages:
        problems.append(
            f"got costs ({costs.origin}) of {costs.num_stages} stages, expected {schedule.num_stages}; partition the "
            f"model into {schedule.num_stages} stages"
        )
    num_devices = max(schedule.rank_to_device, default=-1) + 1
    if num_devices > len(cluster.devices):
        problems.append(
            f"got a cluster ({cluster.origin}) of {len(cluster.devices)} devices, expected {num_devices}; "
            "add devices or use fewer ranks"
        )
    if not 0 <= costs.overlap <= 1:
        problems.append(f"got costs ({costs.origin}) of overlap {costs.overlap}, expected 0 to 1; it is a share")
    if problems:
        raise SimulationError(f"{schedule.name}: " + "; ".join(problems))
