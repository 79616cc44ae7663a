"""Optimize: order the ops of a schedule anew, so that they take the least time under a memory limit, and prove it."""

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
    """Find the order of a schedule's ops that takes the least time, and prove how near it is to the least possible.

    The ops, and on which rank each is, are those of `schedule`: one stage per rank (``1f1b``, ``zb_h1``), chunks
    (``interleaved``, ``interleaved_zb``), a V (``zbv``) or waves (``hanayo``). The search starts from the best of the
    catalogue's schedules of these stages that keep to the limit, and of a planner's; CP-SAT of OR-tools
    (``pip install "pipesched[optimize]"``) looks for a better one where a simple bound does not prove that there is
    none.

    Of a run without a flush (``pipedream``, ``pipedream_2bw``, ``vanilla_1f1b``, ``stale_weights``, ``spectrain``,
    ``xpipe``, ``pipeoptim``) it is the period of a micro-batch that is the least, and how many each rank has in flight
    for it; every rank keeps to its order, one F and one B in turn, and no search is
    needed.

    Args:
        schedule: As `simulate` takes it: one pipeline and one batch, or run, each stage on one rank.
        costs: As `simulate` takes them.
        cluster: Machines, or a file of them; None: equal devices whose links take no time. Where costs have bytes,
            what the devices hold is the limit, if they have one.
        num_ranks: Ranks of a schedule given by name.
        num_microbatches: Micro-batches of a schedule given by name.
        num_chunks: Stages per rank of a schedule given by name, where it takes them.
        parameters: Parameters of a schedule given by name, as its entry of the catalogue lists them.
        microbatch_size: Samples of a micro-batch, with a profile; None: the smallest size that was measured.
        partition: Layers to stages, as `simulate` takes it.
        input_share: Share of B that I takes where the costs say B alone, and W the rest.
        network: How messages go. The proof is of messages that wait for no other one, which makes the bound no higher.
        compression: ``"half"``: messages go in half precision.
        convert_bytes_per_s: How quickly a device compresses; None: in no time.
        in_flight: The most micro-batches in flight on a rank; None: what the devices hold, or where that is not known
            as many as `schedule` has on the rank where it has most.
        is_split: Whether backwards may be split into I and W, if they are not; None: as `schedule` has them.
        is_repeated: Whether the batch is repeated without a pause, each stage stepping once between: then the period
            is to be the least, as `simulate` says it of every micro-batch in the long run; else the makespan.
        may_recompute: Whether each stage may keep only its input of all micro-batches and recompute the rest, so that
            more of them fit, or may not; which do is part of what is sought.
        seconds: How long to search at most [s]; 0: only what is known, and simple bounds.
        num_workers: Threads of the search; None: one for each core.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        ModuleNotFoundError: OR-tools is not installed, and there is something to search.
        NotRunnableError: The lists cannot run to their end.
        ScheduleError: No such schedule, bad counts, or a bad file.
        ProfileError: A file is bad, or does not fit the schedule.
        SimulationError: The schedule cannot be ordered anew, or a rank has no room for one micro-batch.
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
    """Do what `optimize` does; `progress` is told how far it is."""
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
    proof = search.prove(seconds, workers, progress)  # after what takes time, so that an interrupt is answered at once
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
