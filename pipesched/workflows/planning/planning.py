"""Planning: find the fastest layout, schedule and partition for a model on given machines that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipesched.profiles import MessagePrecision
from pipesched.profiles.io import machine_name_of
from pipesched.questions import OnShare, PlanLimits, PlanSettings, unheard
from pipesched.schedules.builders import CATALOGUE
from pipesched.schedules.common import tuple_of
from pipesched.simulator.planner import ASYNCHRONOUS, SCHEDULES, LayoutRequest, PlanRanking, Request, search_plans
from pipesched.workflows import (
    ArgumentError,
    asks,
    estimate_notes,
    given_stages,
    gpus_in_all,
    other_device,
    require_settings,
    unknown_bytes,
)
from pipesched.workflows.arguments import (
    NamedSchedule,
    read_devices_argument,
    read_recomputes,
    require_one_step,
    searched_entries,
    workers_for,
)
from pipesched.workflows.exporting import TrainerRule
from pipesched.workflows.planning.plan_result import PlanSearch
from pipesched.workflows.simulating import SetupArgument, read_setup_argument, require_table_size, require_unused

_COMPRESSIONS: Mapping[str, tuple[MessagePrecision | None, ...]] = {
    "no": (None,),
    "half": ("half",),
    "both": (None, "half"),
}


@dataclass(frozen=True, slots=True)
class PlanQuestion(PlanSettings):
    """The question of `plan`; its fields are the arguments of that function."""

    setup: SetupArgument
    progress: OnShare = field(default=unheard, kw_only=True)


@asks(PlanQuestion)
def plan(question: PlanQuestion) -> PlanSearch:
    """Find the fastest layout, schedule and partition that fits; a KeyboardInterrupt ends the search.

    Args:
        setup: The profile of the model, machines and other conditions, a `Setup`; or the profile alone; or a table of
            layers with the `microbatch_size` of its times. A device is the group of GPUs that share a layer of the
            profile. Without a cluster there are `num_devices` equal devices whose links take no time.

    A script that may start several processes calls it below ``if __name__ == "__main__":``.

    Raises:
        ArgumentError: A word is unknown, a number is below 1, machines are missing, there are too few devices, or a
            schedule cannot be used for planning.
        ProfileError: A file is bad, or there are more stages than layers.
        ScheduleError: A schedule does not exist.
    """
    require_planning(question)
    setup = read_setup_argument(question.setup)
    require_unused(setup, "plan", "partition", "compression", "jitter", "seed", "engine", "buffers", "tied_bytes")
    require_table_size(setup, "plan")
    rule = None if question.trainer is None else TrainerRule.of(question.trainer, setup.profile)
    request = Request(
        profile=setup.profile,
        cluster=setup.limited(read_devices_argument(setup.cluster, question.num_devices)),
        batch_size=question.batch_size,
        schedules=plannable_schedules(question.schedules, question.asynchronous),
        depths=None if question.depths is None else tuple_of(question.depths),
        chunks=(2,) if question.chunks is None else tuple_of(question.chunks),
        recomputes=read_recomputes(
            question.recompute,
            question.recompute_when,
            "early" if rule is None else "late",
            is_inside=setup.profile.is_recomputed,
        ),
        compressions=_COMPRESSIONS[question.compression],
        fewer=question.fewer,
        convert_bytes_per_s=setup.convert_bytes_per_s,
        network=setup.network,
        refusal=rule,
        is_uniform=rule is not None and rule.is_uniform,
    )
    ranking = ranking_of(request, question, question.progress)
    cluster, profile = request.cluster, request.profile
    notes = (
        *gpus_in_all(profile, len(cluster.devices)),
        *estimate_notes(profile),
        *other_device(profile, machine_name_of(cluster)),
        *unknown_bytes(profile),
        *given_stages(profile),
        *ranking.notes,
    )
    untried = _untried(request.schedules, question.asynchronous) if question.schedules is None else ()
    return PlanSearch(request, ranking, notes, untried)


def ranking_of(request: Request | LayoutRequest, limits: PlanLimits, progress: OnShare) -> PlanRanking:
    """Return the ranking of a search with the limits of a question; `progress` receives the share of settled plans."""
    return search_plans(
        request,
        top=limits.top,
        time_limit_s=limits.time_limit_s,
        workers=workers_for(request.schedules, limits.num_workers),
        tick=lambda so_far: progress(so_far.settled),
    )


def require_planning(settings: PlanSettings) -> None:
    """Refuse settings that are invalid or contradict each other, whatever the profile.

    Raises:
        ArgumentError: A setting is invalid, or a schedule cannot be planned with, or a trainer recomputes late.
        ScheduleError: A schedule does not exist.
    """
    require_settings(settings)
    if settings.trainer is not None and settings.recompute_when == "early":
        raise ArgumentError(
            f"recompute_when: got early with `trainer={settings.trainer}`, expected late, as trainers recompute inside "
            "the backward; leave `recompute_when` out"
        )
    read_recomputes(settings.recompute, settings.recompute_when)
    plannable_schedules(settings.schedules, settings.asynchronous)


def plannable_schedules(schedules: Sequence[NamedSchedule] | None, asynchronous: bool) -> tuple[str, ...]:
    """Return the names, as a search knows them, of the schedules that a plan may have.

    Args:
        schedules: Names in the catalogue, and builders of a user's own or their names; None: the usual ones.
        asynchronous: Whether schedules may train on stale weights.

    Raises:
        ArgumentError: A schedule has several pipelines or none, or trains on stale weights without permission.
        ScheduleError: A schedule does not exist.
    """
    if schedules is None:
        return SCHEDULES + (ASYNCHRONOUS if asynchronous else ())
    entries = searched_entries(schedules, "['1f1b']", require_one_step)
    for entry in entries:
        if not entry.traits.takes_plans:
            advice = "try pipesched.tune" if entry.traits.averages else "it is the layout of depth 1: leave it out"
            raise ArgumentError(f"schedules: got {entry.name}, expected schedules of one pipeline; {advice}")
        if entry.traits.is_asynchronous and not asynchronous:
            raise ArgumentError(
                f"schedules: got {entry.name}, which trains on stale weights, expected `asynchronous` too; add it"
            )
    return tuple(entry.searched_name for entry in entries)


def _untried(tried: Sequence[str], asynchronous: bool) -> tuple[str, ...]:
    """Return the names of the other schedules that a plan could have."""
    return tuple(
        name
        for name, entry in CATALOGUE.items()
        if entry.traits.takes_plans and name not in tried and (asynchronous or not entry.traits.is_asynchronous)
    )
