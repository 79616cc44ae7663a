"""Simulate a schedule: time, bubbles, idle time by cause, and what the devices would hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pipesched.profiles import MessagePrecision
from pipesched.profiles.costs import Profile, RunCosts, Variation
from pipesched.profiles.processes import num_cores
from pipesched.schedules.builders import ParameterValue
from pipesched.schedules.lowering import lower
from pipesched.simulator import Buffers, Engine, NetworkOptions
from pipesched.simulator.analysis import metrics
from pipesched.simulator.fast import distribution, makespans
from pipesched.simulator.fidelity import makespan_range
from pipesched.workflows import ArgumentError, require_at_least, require_number
from pipesched.workflows.arguments import (
    ClusterArgument,
    CostsArgument,
    PartitionArgument,
    ScheduleArgument,
    ScheduleSource,
    load_costs,
    partition_text,
    read_schedule_argument,
)
from pipesched.workflows.simulating.prediction import (
    Conditions,
    Prediction,
    predict_source,
)
from pipesched.workflows.simulating.simulation_result import Simulation

if TYPE_CHECKING:
    from pipesched.workflows.simulating.least_time import LeastTime

_LONG = 2_000_000
"""Ops that take about half a minute."""


def simulate(
    schedule: ScheduleArgument,
    costs: CostsArgument,
    cluster: ClusterArgument = None,
    *,
    num_ranks: int | None = None,
    num_microbatches: int | None = None,
    num_chunks: int | None = None,
    parameters: Mapping[str, ParameterValue] | None = None,
    microbatch_size: int | None = None,
    partition: PartitionArgument | None = None,
    input_share: float | None = None,
    network: NetworkOptions = NetworkOptions(),  # noqa: B008 -- frozen
    compression: MessagePrecision | None = None,
    convert_bytes_per_s: float | None = None,
    buffers: Buffers = "pooled",
    jitter: float = 0.0,
    seed: int = 0,
    engine: Engine = "fast",
    num_runs: int = 1,
    spread: int = 0,
    bound_seconds: float | None = None,
) -> Simulation:
    """Predict time, bubbles, idle time by cause and memory of a schedule.

    Args:
        schedule: A Schedule, a Plan, a file, or with `num_ranks` and `num_microbatches` a name of the catalogue, or a
            builder of your own: a function of them, or its name as ``package.module:builder`` or ``path.py:builder``.
        costs: StageCosts, LayerCosts, a DeviceCost, a Profile, RunCosts, or a file of a profile, of costs from runs, or
            a table of stages or layers.
        cluster: Machines, or a file of them; None: those of a plan, else equal devices whose links take no time.
        num_ranks: Ranks of a schedule given by name.
        num_microbatches: Micro-batches of a schedule given by name.
        num_chunks: Stages per rank of a schedule given by name, where it takes them.
        parameters: Parameters of a schedule given by name, as its entry of the catalogue lists them.
        microbatch_size: Samples of a micro-batch, with a profile; None: the smallest size that was measured.
        partition: Layers to stages, with a profile or layers: ``balanced`` (None), ``uniform``, or layers per stage:
            ``3,3,4``, or a list.
        input_share: Share of B that I takes where the costs say B alone, and W the rest; None: schedules that split
            the backward are refused.
        network: How messages go.
        compression: ``"half"``: messages go in half precision.
        convert_bytes_per_s: How quickly a device compresses; None: in no time.
        buffers: Receive buffers as our executor has them, ``pooled`` from the Recv on or ``at_use`` on the streams of a
            GPU, or as PyTorch's stages, ``per_microbatch``, always.
        jitter: Sigma of a log-normal factor on the seconds of every op.
        seed: Seed of the jitter.
        engine: Who simulates: ``"fast"``, or ``"simpy"``, the reference, which says the same.
        num_runs: Runs with jitter, with seeds from `seed` on, whose makespans are the `distribution`.
        spread: How often seconds are drawn as they varied when the profile, or the runs, were measured, for a range
            of the makespan; 0: no range.
        bound_seconds: Seconds of a search for what no order of the ops under the same memory takes less than, as
            `optimize` does it; 0: by simple bounds alone; None: not asked for.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        ModuleNotFoundError: OR-tools is not installed, and there is something to search for a bound.
        NotRunnableError: The lists cannot run to their end.
        ScheduleError: No such schedule, bad counts, or a bad file.
        ProfileError: A file is bad, or does not fit the schedule.
        SimulationError: The schedule cannot be simulated.
    """
    source = read_schedule_argument(
        schedule, num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks, parameters=parameters
    )
    conditions = Conditions(
        costs=load_costs(costs),
        cluster=cluster,
        microbatch_size=microbatch_size,
        partition=partition_text(partition),
        input_share=input_share,
        network=network,
        compression=compression,
        convert_bytes_per_s=convert_bytes_per_s,
        buffers=buffers,
        jitter=jitter,
        seed=seed,
        engine=engine,
    )
    return simulate_source(source, conditions, num_runs, spread=spread, bound_seconds=bound_seconds)


def simulate_source(
    source: ScheduleSource,
    conditions: Conditions,
    num_runs: int = 1,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    *,
    spread: int = 0,
    bound_seconds: float | None = None,
) -> Simulation:
    """Do what `simulate` does; `progress` is told which share of several runs is over."""
    num_runs = require_runs(num_runs, conditions.jitter)
    spread = require_at_least("spread", spread, 0)
    variation = _variation(conditions) if spread else None
    if bound_seconds is not None:
        require_number("bound_seconds", bound_seconds)
        if conditions.jitter:
            raise ArgumentError("bound_seconds: got `jitter` too, expected one of them; leave one out")
    prediction = predict_source(source, conditions)
    return Simulation(
        source,
        conditions,
        prediction.costs,
        prediction.cluster,
        prediction.bare_timeline,
        bare_metrics=metrics(prediction.bare_timeline),
        distribution=None if num_runs == 1 else distribution(makespans_of_runs(prediction, num_runs, progress)),
        spread=None
        if variation is None
        else makespan_range(
            prediction.schedule,
            prediction.costs,
            prediction.cluster,
            conditions.network,
            variation,
            spread,
            conditions.seed,
        ),
        least=None if bound_seconds is None else _least_time(prediction, bound_seconds),
    )


def _least_time(prediction: Prediction, seconds: float) -> LeastTime:
    """Return what is proven of the ops in other orders; where these would do something else, a simple bound of all."""
    from pipesched.simulator.optimum import NotOrderableError, least_seconds_of_lists
    from pipesched.workflows.simulating.least_time import LeastTime, order_search

    asked = prediction.schedule, prediction.costs, prediction.cluster
    try:
        search = order_search(*asked, has_device_limits=False)
    except NotOrderableError:
        return LeastTime(least_seconds_of_lists(*asked), math.inf, None, prediction.makespan_s)
    return search.least_time(prediction.makespan_s, search.prove(seconds) if seconds else None)


def _variation(conditions: Conditions) -> Variation:
    """Return how the seconds of the costs vary.

    Raises:
        ArgumentError: They do not say it, or vary by jitter.
    """
    if conditions.jitter:
        raise ArgumentError("spread: got `jitter` too, expected one of them; leave one out")
    costs = conditions.costs
    if not isinstance(costs, Profile | RunCosts):
        raise ArgumentError(
            "spread: got costs of neither profile nor runs, expected one of them, which says how seconds vary"
        )
    if costs.variation is None:
        what, advice = "runs", "give two runs or more of one schedule"
        if isinstance(costs, Profile):
            what, advice = f"a profile of {costs.model}", "profile the model again, with 2 `repeats` or more"
        raise ArgumentError(f"spread: got {what} without how seconds vary, expected costs that say it; {advice}")
    return costs.variation


def require_runs(num_runs: int, jitter: float) -> int:
    """Return the number of runs; several need jitter.

    Raises:
        ArgumentError: It is not at least 1, or above 1 without jitter.
    """
    num_runs = require_at_least("num_runs", num_runs, 1)
    if num_runs > 1 and not jitter:
        raise ArgumentError(
            f"num_runs: got {num_runs} without `jitter`, expected both: all would be the same; try `jitter=0.1`"
        )
    return num_runs


def makespans_of_runs(
    prediction: Prediction,
    num_runs: int,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    *,
    is_shared: bool = True,
) -> list[float]:
    """Return the makespans of runs with jitter [s].

    Args:
        prediction: The run with the first seed; the others have the seeds that follow.
        num_runs: Number of runs.
        progress: Is called with the share of the runs that is over.
        is_shared: Whether several processes share long work.
    """
    conditions, lowered = prediction.conditions, lower(prediction.schedule)
    is_long = num_runs * sum(map(len, lowered.ops)) > _LONG
    seconds = []
    for makespan_s in makespans(
        lowered,
        prediction.costs,
        prediction.cluster,
        network=conditions.network,
        jitter=conditions.jitter,
        seeds=range(conditions.seed, conditions.seed + num_runs),
        num_processes=num_cores() if is_long and is_shared else 1,
        engine=conditions.engine,
    ):
        seconds.append(makespan_s)
        progress(len(seconds) / num_runs)
    return seconds
