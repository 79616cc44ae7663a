"""Optimize: find the fastest order of a schedule's ops under a memory limit, and prove a lower bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipesched.profiles import MessagePrecision
from pipesched.schedules import Schedule
from pipesched.schedules.builders import ParameterValue
from pipesched.simulator import NetworkOptions, SimulationError
from pipesched.simulator.optimum import most_in_flight, require_orderable_length
from pipesched.workflows import (
    MAX_PROCESSES,
    ArgumentError,
    require_flag,
    require_number,
    require_optional,
    require_rate,
)
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
from pipesched.workflows.optimizing.optimum_result import BEST_KNOWN, OPTIMUM, Optimum, OrderedSchedule
from pipesched.workflows.optimizing.unflushed_optimum import optimize_unflushed
from pipesched.workflows.simulating import (
    Conditions,
    OnSearch,
    Prediction,
    order_search,
    predict_source,
    simulate_source,
)


def optimize(
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
    in_flight: float | None = None,
    is_split: bool | None = None,
    is_repeated: bool = False,
    may_recompute: bool = False,
    seconds: float = 20.0,
    num_workers: int | None = None,
) -> Optimum:
    """Find the fastest order of a schedule's ops, and prove a lower bound on the time of any order.

    The ops and their ranks come from `schedule`: one stage per rank (``1f1b``, ``zb_h1``), chunks (``interleaved``,
    ``interleaved_zb``), a V (``zbv``) or waves (``hanayo``). The search starts from the best schedule within the limit,
    of the catalogue or of a planner, for these stages. CP-SAT of OR-tools (``pip install "pipesched[optimize]"``)
    searches for a better order unless a simple bound proves that none exists.

    Without a flush (``pipedream``, ``pipedream_2bw``, ``vanilla_1f1b``, ``stale_weights``, ``spectrain``, ``xpipe``,
    ``pipeoptim``) the objective is the period of a micro-batch. The result gives the micro-batches in flight on each
    rank; every rank keeps its order, one F and one B in turn, and no search is needed.

    Args:
        schedule: As `simulate` takes it: one pipeline and one batch, or run, each stage on one rank.
        costs: As `simulate` takes them.
        cluster: Machines, or a file of them; None: equal devices whose links take no time. If costs have bytes and
            devices have memory, the memory of the devices is the limit.
        num_ranks: Ranks of a schedule given by name.
        num_microbatches: Micro-batches of a schedule given by name.
        num_chunks: Stages per rank of a schedule given by name, where it takes them.
        parameters: Parameters of a schedule given by name, as its entry of the catalogue lists them.
        microbatch_size: Samples of a micro-batch, with a profile; None: the smallest measured size.
        partition: Layers to stages, as `simulate` takes it.
        input_share: Share of B that I takes in costs with B alone; W takes the rest.
        network: Options of the network. The proof assumes messages that wait for no other message, which never raises
            the bound.
        compression: ``"half"``: messages are sent in half precision.
        convert_bytes_per_s: Compression throughput of a device [bytes/s]; None: compression takes no time.
        in_flight: Most micro-batches in flight on a rank; None: the memory of the devices, or if it is unknown, the
            most that `schedule` has on any rank.
        is_split: Whether whole backwards may be split into I and W; None: as in `schedule`.
        is_repeated: Whether the batch is repeated without a pause, with one step of each stage between. If so, the
            objective is the period, the steady-state time that `simulate` predicts; otherwise the makespan.
        may_recompute: Whether a stage may keep only its input for all micro-batches and recompute the rest, so that
            more of them fit. The search chooses the stages.
        seconds: Time limit of the search [s]; 0: only known orders and simple bounds.
        num_workers: Threads of the search; None: one for each core.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        ModuleNotFoundError: OR-tools is not installed, and the search needs it.
        NotRunnableError: The lists cannot run to their end.
        ScheduleError: No such schedule, bad counts, or a bad file.
        ProfileError: A file is bad, or does not fit the schedule.
        SimulationError: The schedule cannot be reordered, or a rank has no room for one micro-batch.
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
    )
    return optimize_source(
        source,
        conditions,
        in_flight=in_flight,
        is_split=is_split,
        is_repeated=is_repeated,
        may_recompute=may_recompute,
        seconds=seconds,
        num_workers=num_workers,
    )


def optimize_source(
    source: ScheduleSource,
    conditions: Conditions,
    *,
    in_flight: float | None = None,
    is_split: bool | None = None,
    is_repeated: bool = False,
    may_recompute: bool = False,
    seconds: float = 20.0,
    num_workers: int | None = None,
    progress: OnSearch = lambda share, best_s, bound_s: None,  # noqa: ARG005
) -> Optimum:
    """Do the same as `optimize`; `progress` receives the state of the search."""
    require_number("seconds", seconds)
    if in_flight is not None:
        require_number("in_flight", in_flight)
        require_rate("in_flight", in_flight)
    if is_split is not None:
        require_flag("is_split", is_split)
    require_flag("is_repeated", is_repeated)
    require_flag("may_recompute", may_recompute)
    workers = require_optional("num_workers", num_workers, 1, MAX_PROCESSES)
    if conditions.jitter:
        raise ArgumentError(
            "jitter: got some, expected none: the best order is sought for costs that stay; leave it out"
        )
    require_orderable_length(source.schedule)
    if source.schedule.traits.is_asynchronous:
        asked = {"is_split": is_split, "may_recompute": may_recompute, "is_repeated": is_repeated}
        for name in filter(asked.get, asked):
            raise ArgumentError(
                f"{name}: got it with {source.schedule.name}, a run without a flush, expected a batch with one; "
                "leave it out"
            )
        return optimize_unflushed(source, conditions, in_flight)
    given = predict_source(source, conditions)
    search = order_search(
        source.schedule,
        given.costs,
        given.cluster,
        in_flight=in_flight,
        is_split=is_split,
        is_repeated=is_repeated,
        may_recompute=may_recompute,
    )

    def judged(schedule: Schedule) -> OrderedSchedule:
        predicted = predict_source(replace(source, schedule=schedule, longer=None), conditions)
        period_s = _period_s(predicted) if is_repeated else None
        return OrderedSchedule(schedule, predicted.makespan_s, period_s, most_in_flight(schedule, given.costs))

    known = sorted((judged(order.schedule) for order in search.orders), key=lambda order: order.time_s)
    over_limit = None if search.fits else judged(search.lists)
    proof = search.prove(seconds, workers, progress)  # last, so that an interrupt is answered at once
    best = known[0]
    if proof.starts is not search.orders[0].starts:
        best = min(best, judged(search.lists_of(proof.starts, OPTIMUM)), key=lambda order: order.time_s)
    least = search.least_time(best.time_s, proof)
    lists = replace(best.schedule, name=BEST_KNOWN if least.gap else OPTIMUM, origin=None)
    simulation = simulate_source(replace(source, schedule=lists, longer=None), conditions)
    return Optimum(simulation, least, tuple(known), source.schedule.name, over_limit)


def _period_s(predicted: Prediction) -> float:
    if predicted.steady_s_per_microbatch is None:
        raise SimulationError(
            f"{predicted.schedule.name}: got a batch that settles to no period when it is repeated, expected one "
            "that does; look for the least makespan"
        )
    return predicted.steady_s_per_microbatch * predicted.schedule.num_microbatches
