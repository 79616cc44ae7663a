"""Simulate a schedule: time, bubbles, idle time by cause, and memory of the devices."""

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
        cluster: Machines, or a file of them; None: the machines of a plan, or equal devices whose links take no time.
        num_ranks: Ranks of a schedule given by name.
        num_microbatches: Micro-batches of a schedule given by name.
        num_chunks: Stages per rank of a schedule given by name, where it takes them.
        parameters: Parameters of a schedule given by name, as its entry of the catalogue lists them.
        microbatch_size: Samples of a micro-batch, with a profile; None: the smallest measured size.
        partition: Layers to stages, with a profile or layers: ``balanced`` (None), ``uniform``, or layers per stage:
            ``3,3,4``, or a list.
        input_share: Share of B that I takes in costs with B alone; W takes the rest. None: schedules that split the
            backward are refused.
        network: Options of the network.
        compression: ``"half"``: messages are sent in half precision.
        convert_bytes_per_s: Compression throughput of a device [bytes/s]; None: compression takes no time.
        buffers: Allocation of receive buffers: as in our executor, ``pooled`` from the Recv on or ``at_use`` on the
            streams of a GPU, or as in PyTorch's stages, ``per_microbatch``, always.
        jitter: Sigma of a log-normal factor on the seconds of every op.
        seed: Seed of the jitter.
        engine: ``"fast"``, or ``"simpy"``, the slower reference with the same results.
        num_runs: Runs with jitter, with seeds from `seed` on, whose makespans are the `distribution`.
        spread: Draws of the seconds, as they varied in the measurement of the profile or the runs, for a range of the
            makespan; 0: no range.
        bound_seconds: Time limit of a search for a lower bound on the time of the ops in any order under the same
            memory, as in `optimize` [s]; 0: simple bounds alone; None: no bound.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        ModuleNotFoundError: OR-tools is not installed, and the search for a bound needs it.
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
    """Do the same as `simulate`; `progress` receives the finished share of several runs."""
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
    """Return the bound for the ops in other orders, or a simple bound if the schedule cannot be reordered."""
    from pipesched.simulator.optimum import NotOrderableError, least_seconds_of_lists
    from pipesched.workflows.simulating.least_time import LeastTime, order_search

    asked = prediction.schedule, prediction.costs, prediction.cluster
    try:
        search = order_search(*asked, has_device_limits=False)
    except NotOrderableError:
        return LeastTime(least_seconds_of_lists(*asked), math.inf, None, prediction.makespan_s)
    return search.least_time(prediction.makespan_s, search.prove(seconds) if seconds else None)


def _variation(conditions: Conditions) -> Variation:
    """Return the variation of the seconds of the costs.

    Raises:
        ArgumentError: The costs have no variation, or vary by jitter.
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
        ArgumentError: The number is below 1, or above 1 without jitter.
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
        progress: Receives the finished share of the runs.
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
