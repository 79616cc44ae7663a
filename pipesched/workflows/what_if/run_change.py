"""Predict the effect of another schedule, cut or machine on a measured run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from pipesched.profiles.costs import samples_of
from pipesched.questions import ScheduleCounts
from pipesched.schedules import Schedule, Timeline, schedule_of
from pipesched.schedules.builders import Entry, build, lookup
from pipesched.schedules.columns import op_cells
from pipesched.schedules.common import declared, values_of
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Op, Summed, computes
from pipesched.schedules.transforms import RecomputeWhen, can_sum_before_steps, with_step_barrier, with_tied_sum
from pipesched.schedules.transforms import recompute as recomputed
from pipesched.simulator.analysis import device_speeds, metrics
from pipesched.workflows import (
    ArgumentError,
    asks,
    require_at_least,
    require_choice,
    require_names,
)
from pipesched.workflows.arguments import (
    NamedSchedule,
    ScheduleArgument,
    entry_of,
    named_schedule,
    read_cluster_argument,
    read_schedule_argument,
)
from pipesched.workflows.measuring import cut_of_runs, profiled_stages, read_runs
from pipesched.workflows.what_if.machine_change import SlownessReadings, read_slowness
from pipesched.workflows.what_if.run_question import LayersOfRuns, Question, WhatIfQuestion
from pipesched.workflows.what_if.what_if_result import OtherReading, WhatIf, changed_quantities

_SAME = 5e-4
"""Largest difference of two changes that counts as no difference."""


@asks(WhatIfQuestion)
def what_if(asked: WhatIfQuestion) -> WhatIf:
    """Predict the effect of changes, all of them at once, with the costs of a run.

    Args:
        run: A measured Timeline, or a file of one. Of several runs, the first is changed, and all give costs.
        schedule: Another schedule, as lists or a name as in `simulate`; None: the schedule of the run. Missing counts
            are the counts of the run; each micro-batch has the same samples as before.
        recompute: Stages that keep only their input, or ``all``.
        recompute_when: Whether they recompute before the gradient has arrived (early), or after (late); None: as the
            stages of the run that recompute.
        heal: Slow devices of the run that become as fast as their peers.
        slow_devices: Slowdown factor of these devices.
        slow_links: Slowdown factor of messages between these pairs of devices.
        link: Other latency and bandwidth of all links.
        bandwidth_factor: Factor on the bandwidth of all links.
        latency_factor: Factor on the latency of all links.
        cluster: Machines of the run; None: equal devices, and messages as in the runs.
        profile: Profile of the runs' model, as for `costs_from_runs`.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense, or nothing is changed.
        NotRunnableError: The lists cannot run to their end.
        ScheduleError: A file is no Timeline, or the schedule does not exist.
        ProfileError: A Timeline is not measured, a file is bad, or costs lack the time of an op.
        SimulationError: The lists cannot be simulated.
    """
    runs = read_runs(asked.run, "run")
    samples_of(*runs, asked.warmup)  # refuses runs of other stages
    before = schedule_of(runs[0][0])
    after = _asked_lists(before, asked)
    cut = asked.partition
    assert cut is None or isinstance(cut, str), "it is a text by now"
    if after == before and not asked.changes_machines and cut is None:
        raise ArgumentError("schedule: got no change of the run, expected at least one; try `schedule=zbv`")
    known = profiled_stages(before, asked.profile, asked, asked.output_bytes)
    seconds = None if asked.profile is None else [cost.both_s for cost in known or ()]
    speeds = device_speeds(runs[0], warmup=asked.warmup, expected_s=seconds)
    readings = read_slowness(speeds, asked.slowness, asked.heal)
    before, after = lower(before), lower(after)
    num_devices = 1 + max((*before.rank_to_device, *after.rank_to_device))
    machines = None
    if asked.cluster is not None:
        machines = read_cluster_argument(asked.cluster, num_devices, "the run and the changed run")
    layers = _layers(before, asked, cut)
    question = Question(asked, runs, before, after, machines, known, layers, readings.likely)
    _require_bytes(question)
    return answer(question, readings)


def answer(question: Question, readings: SlownessReadings) -> WhatIf:
    """Return the effect of the changes on the run; raises as `what_if` does.

    Args:
        question: The question, under the likely reading of the run.
        readings: Possible causes of slowness in the run.
    """
    before, after = question.pair()
    quantities = changed_quantities(*map(metrics, (question.run, before, after)))
    other = None if readings.other is None else question.with_reading(readings.other)
    likely = _change_of(before, after, question)
    opposite = likely if other is None else _change_of(*other.pair(), other)
    matters = abs(opposite - likely) > _SAME
    asked = [question] if other is None or not (matters and readings.is_open) else [question, other]
    drawn: list[tuple[float, ...]] = []
    for number, asked_of in enumerate(asked):
        changes = []
        for before_s, after_s in asked_of.drawn_makespans_s():
            changes.append(_per_microbatch(asked_of) * after_s / before_s - 1)
            question.asked.progress((number + len(changes) / question.asked.draws) / len(asked))
        drawn.append(tuple(sorted(changes)))
    return WhatIf(
        question.run,
        before,
        after,
        quantities,
        drawn[0],
        tuple(question.words()),
        (*([readings.words] if matters and not readings.is_open else []), *question.suppositions()),
        None if question.layers is None else question.layers.profile.provenance.yardstick,
        readings.likely.slowness if matters else None,
        OtherReading(readings.words, opposite, drawn[1]) if len(drawn) > 1 else None,
    )


def _per_microbatch(question: Question) -> float:
    return question.before.num_microbatches / question.after.num_microbatches


def _change_of(before: Timeline, after: Timeline, question: Question) -> float:
    return _per_microbatch(question) * after.makespan_s / before.makespan_s - 1


def counts_of_run(lists: Schedule, entry: Entry) -> tuple[int, int, int | None]:
    """Return ranks, micro-batches and stages per rank with which the schedule of `entry` is as large as a run."""
    chunks, rest = divmod(lists.num_stages, lists.num_ranks)
    takes_them = entry.traits.takes_chunks and chunks > 1 and not rest
    return lists.num_ranks, lists.num_microbatches, chunks if takes_them else None


def name_of_run(lists: Schedule) -> str:
    """Return the name in the catalogue of the schedule that a run followed: one that gives the same lists.

    Raises:
        ArgumentError: The schedule of this name has other lists, or the catalogue does not have it.
    """
    entry = lookup(lists.name)
    if entry is not None:
        num_ranks, num_microbatches, num_chunks = counts_of_run(lists, entry)
        built = build(entry.name, num_ranks, num_microbatches, num_chunks)
        if list(map(_computations, built.ops)) == list(map(_computations, lists.ops)):
            return entry.name
    raise ArgumentError(
        f"schedule: got other counts without a schedule, expected both, as the lists of the run ({lists.name}) are not "
        "from the catalogue; try `schedule=1f1b`"
    )


def _computations(ops: Sequence[Op]) -> list[Op]:
    return [op for op in ops if computes(op)]


def as_in_run(
    lists: Schedule, schedule: NamedSchedule | None, counts: ScheduleCounts, width: int = 1
) -> tuple[NamedSchedule, ScheduleCounts]:
    """Return the schedule and its counts; the run provides the schedule or counts that are not given.

    Args:
        lists: Lists of the run.
        schedule: Name or builder; None: the schedule of the run.
        counts: The given counts.
        width: Requested copies, which share the ranks of the run.

    Raises:
        ArgumentError: The schedule of the run is not in the catalogue.
        ScheduleError: The schedule does not exist.
    """
    schedule = name_of_run(lists) if schedule is None else schedule
    num_ranks, *others = counts_of_run(lists, entry_of(schedule))
    of_run = dict(zip(declared(ScheduleCounts), (max(1, num_ranks // width), *others), strict=False))
    given = {name: value for name, value in values_of(counts, ScheduleCounts).items() if value is not None}
    return schedule, ScheduleCounts(**of_run | given)


def _asked_lists(lists: Schedule, asked: WhatIfQuestion) -> Schedule:
    """Return the requested lists; by default, the lists of the run."""
    schedule: ScheduleArgument | None = asked.schedule
    counts: ScheduleCounts = asked
    named = named_schedule(schedule)
    if named is not None or (schedule is None and any(values_of(asked, ScheduleCounts).values())):
        schedule, counts = as_in_run(lists, named, asked)
    after = lists if schedule is None else read_schedule_argument(schedule, counts).schedule
    tied = lists.summed_stages(Summed.TIED)
    if tied and after.num_stages == lists.num_stages and can_sum_before_steps(after):
        after = with_tied_sum(after, tied)
    if Summed.NORM in lists.summands:  # the trainer of the run clips gradients
        after = with_step_barrier(after)
    if asked.recompute_when is not None:
        require_choice("recompute_when", asked.recompute_when, get_args(RecomputeWhen))
        if asked.recompute is None:
            raise ArgumentError(
                f"recompute_when: got {asked.recompute_when} without `recompute`, expected both; try `recompute=all`"
            )
    when = asked.recompute_when or recompute_when_of(lists)
    return after if asked.recompute is None else recomputed(after, _stages_of(asked.recompute), when)


def recompute_when_of(lists: Schedule) -> RecomputeWhen:
    """Return late if the lists have a late R, else early."""
    return "late" if lists.columns.counts[op_cells.LATE_R] else "early"


def _stages_of(recompute: Literal["all"] | Sequence[int]) -> Sequence[int] | None:
    if isinstance(recompute, str):
        require_choice("recompute", recompute, ("all",))
        return None
    return [require_at_least("recompute", stage, 0) for stage in require_names("recompute", recompute)]


def _layers(lists: Schedule, asked: WhatIfQuestion, partition: str | None) -> LayersOfRuns | None:
    if asked.profile is None:
        if partition is not None:
            raise ArgumentError(
                f"partition: got {partition} without `profile`, expected both; add `profile`, or leave `partition` out"
            )
        return None
    return LayersOfRuns(*cut_of_runs(lists, asked.profile, asked), partition)


def _require_bytes(question: Question) -> None:
    """Refuse a change of bandwidth if no message has known bytes.

    Raises:
        ArgumentError: The bandwidth is refused.
    """
    change = question.asked
    has_bandwidth = change.link is not None and change.link.bandwidth_bytes_per_s < float("inf")
    is_wider = question.machines is not None and change.bandwidth_factor != 1.0
    knows_bytes = any(cost.output_bytes for cost in question.known or ())
    if not knows_bytes and (has_bandwidth or is_wider):
        name = "link" if has_bandwidth else "bandwidth_factor"
        raise ArgumentError(
            f"{name}: got a bandwidth, expected the bytes of messages too, which a Timeline lacks; give `profile` or "
            "`output_bytes`"
        )
