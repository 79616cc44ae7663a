"""Sweep: predict every combination of schedules, counts, links and more, each as `simulate` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated

from pipesched.profiles.clusters import Cluster, Link
from pipesched.profiles.io import machine_name_of
from pipesched.profiles.processes import num_cores
from pipesched.questions import OnShare, SweepSettings, unheard
from pipesched.schedules.common import Counts, Description, tuple_of
from pipesched.simulator.search import (
    MEASURES,
    Journal,
    ParameterNumber,
    Setting,
    ordered_by,
    own_sources,
    search_all,
)
from pipesched.workflows import (
    ArgumentError,
    asks,
    estimate_notes,
    given_stages,
    other_device,
    refused_settings,
    require_choice,
    require_kind,
    require_number,
    require_rate,
    require_some,
)
from pipesched.workflows.arguments import (
    NamedSchedule,
    read_cluster_argument,
    read_microbatch_size,
    read_recomputes,
    read_workers,
    require_taken,
    searched_entries,
)
from pipesched.workflows.simulating import (
    REFUSED,
    Setup,
    SetupArgument,
    read_setup_argument,
    require_layers,
    require_runs,
    require_unused,
)
from pipesched.workflows.sweeping.setting_condition import SettingCondition
from pipesched.workflows.sweeping.sweep_judge import SweepJudge
from pipesched.workflows.sweeping.sweep_result import RATES, SweepResult
from pipesched.workflows.sweeping.sweep_space import SweepSpace

_COMPILED = 3
"""Time of compiling op lists, as a multiple of the time of a setting with them."""
_FEW = 1_000_000
"""Stages times micro-batches of all settings, and of compiled lists, below which one process is as quick as several."""


@dataclass(frozen=True)
class SweepQuestion(SweepSettings):
    """The question of `sweep`; its fields are the arguments of that function."""

    schedules: Sequence[NamedSchedule]
    setup: SetupArgument
    parameters: Mapping[str, Sequence[ParameterNumber]] | None = field(default=None, kw_only=True)
    link: Mapping[str, Sequence[float]] | None = field(default=None, kw_only=True)
    say: Annotated[
        Callable[[Exception], str],
        Description("Makes the reason of an invalid setting from its error.", has_option=False),
    ] = field(default=str, kw_only=True)
    progress: OnShare = field(default=unheard, kw_only=True)


@asks(SweepQuestion)
def sweep(question: SweepQuestion) -> SweepResult:
    """Predict every combination of the given values, each as `simulate` does; an invalid setting has its reason.

    Args:
        schedules: Names of the catalogue, and builders of your own or their names (``package.module:builder``).
        setup: Costs, machines and other conditions, a `Setup`; or the costs alone. Layers are cut, and a DeviceCost
            shared, as each schedule needs it. With jitter there is no steady state.
        parameters: Values of parameters, for the schedules that have them.
        link: Values for all links, in place of a cluster, as ``{"bandwidth_bytes_per_s": [1e9, 1e10]}``.

    A script that may start several processes calls it below ``if __name__ == "__main__":``.

    Raises:
        ArgumentError: There is no setting, all settings are invalid, or an argument is; or a limit is given with costs
            without bytes.
        ModuleNotFoundError: Ray is not installed.
        ProfileError: A file is bad.
        ScheduleError: A schedule does not exist.
        SimulationError: The Ray cluster fails.
    """
    setup = read_setup_argument(question.setup)
    require_unused(setup, "sweep", "engine", "buffers", "tied_bytes")
    require_layers(setup)
    if setup.cluster is not None:
        setup = replace(setup, cluster=read_cluster_argument(setup.cluster, 1, "a sweep"))
    space = _space(question, setup)
    judge = SweepJudge(setup, question.is_steady, question.say, require_runs(question.num_runs, setup.jitter))
    settings = space.settings()
    by = question.by or ("s_per_microbatch" if settings[0].microbatch_size is None else "s_per_sample")
    require_choice("by", by, sorted({*MEASURES} - {"fits", "reason"}))
    if by == "s_per_sample" and settings[0].microbatch_size is None:
        raise ArgumentError(
            "by: got s_per_sample without sizes of micro-batches, expected costs of a profile; try s_per_microbatch"
        )
    if setup.limit_bytes is not None or by == "peak_memory_bytes":
        _require_judged(settings, judge, "by" if setup.limit_bytes is None else "limit_bytes")
    num_workers, ray_runner = read_workers(question, space.schedules)
    journal = None
    if question.resume is not None:
        what = setup, judge.is_steady, judge.num_runs, *own_sources(settings)
        journal = Journal(Path(question.resume), what, "these costs, machines, network and builders")

    left = [setting for setting in settings if journal is None or setting not in journal.known]
    orders = {setting.order for setting in left}
    work = sum(setting.num_cells for setting in left) + _COMPILED * sum(order.num_cells for order in orders)
    outcomes = search_all(
        settings,
        judge,
        alike=attrgetter("num_cells"),
        workers=num_workers or (num_cores() if work > _FEW else 1),
        runner=ray_runner,
        journal=journal,
        tick=question.progress,
    )
    if all(outcome.seconds is None for outcome in outcomes):
        raise refused_settings(len(outcomes), outcomes[0].reason)
    rates = () if setup.loaded_costs.sample_work is None else RATES
    columns = (*space.columns, *MEASURES, *rates)
    return SweepResult(ordered_by(outcomes, by), by, columns, setup, tuple(_notes(setup)))


def _notes(setup: Setup) -> Iterator[str]:
    """Yield cautions about the costs of all settings."""
    costs = setup.loaded_costs
    yield from estimate_notes(costs)
    if isinstance(setup.cluster, Cluster):
        yield from other_device(costs, machine_name_of(setup.cluster))
    if setup.partition is None:
        yield from given_stages(costs)


def _space(question: SweepQuestion, setup: Setup) -> SweepSpace:
    """Return the space of all settings.

    Raises:
        ArgumentError: An argument is invalid, or no schedule takes it.
        ScheduleError: A schedule does not exist.
    """
    entries = searched_entries(question.schedules, "['1f1b', 'zbv']")
    chunks = () if question.num_chunks is None else tuple_of(question.num_chunks)
    parameters, link = question.parameters, question.link
    require_kind("parameters", parameters, Mapping | None, "names with lists of values; try {'pipelines': [1, 2]}")
    require_kind("link", link, Mapping | None, "names with lists of values; try {'bandwidth_bytes_per_s': [1e9]}")
    if link and setup.cluster is not None:
        raise ArgumentError("link: got a cluster too, expected only one of them; leave one out")
    require_taken(entries, ", ".join(map(str, chunks)) or None, parameters or {})
    space = SweepSpace(
        schedules=tuple(entry.searched_name for entry in entries),
        num_ranks=tuple_of(question.num_ranks),
        num_microbatches=tuple_of(question.num_microbatches),
        num_chunks=chunks,
        parameters={
            name: require_some("parameters", values, "{'pipelines': [1, 2]}")
            for name, values in (parameters or {}).items()
        },
        recomputes=read_recomputes(
            question.recompute, question.recompute_when, is_inside=setup.loaded_costs.is_recomputed
        ),
        microbatch_sizes=_sizes(question.microbatch_sizes, setup),
        has_step_barrier=question.step_barrier,
        link={name: _link_values(name, values) for name, values in (link or {}).items()},
    )
    if question.where is None:
        return space
    return replace(space, condition=SettingCondition.read(question.where, space.columns))


def _sizes(sizes: Counts | None, setup: Setup) -> tuple[int | None, ...]:
    costs = setup.loaded_costs
    if not costs.microbatch_sizes:
        if sizes is not None:
            raise ArgumentError(
                "microbatch_sizes: got sizes with costs that are not a profile, expected none; leave them out"
            )
        return (None,)
    if sizes is None:
        return (read_microbatch_size(setup.microbatch_size, costs),)
    if setup.microbatch_size is not None:
        raise ArgumentError("microbatch_sizes: got `microbatch_size` too, expected only one of them; leave one out")
    return tuple_of(sizes)


def _link_values(name: str, values: object) -> tuple[float, ...]:
    require_choice("link", name, [part.name for part in fields(Link)])
    numbers = require_some("link", values, "{'bandwidth_bytes_per_s': [1e9, 1e10]}")
    are_rates = {*map(type, numbers)} <= {int, float} and all(map((0.0).__lt__, numbers))
    for number in () if are_rates and name == "bandwidth_bytes_per_s" else numbers:
        (require_rate if name == "bandwidth_bytes_per_s" else require_number)(f"link: {name}", number)
    return tuple(map(float, numbers))


def _require_judged(settings: Sequence[Setting], judge: SweepJudge, asked: str) -> None:
    """Refuse a limit for costs without bytes; costs have bytes for all settings or for none."""
    for setting in settings:
        try:
            has_bytes = judge.has_bytes(setting)
        except REFUSED:
            continue
        if not has_bytes:
            raise ArgumentError(f"{asked}: got costs without bytes, expected costs with bytes; add bytes to the costs")
        return
