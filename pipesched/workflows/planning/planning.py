"""Planning: find the fastest layout, schedule and partition for a model on given machines that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pipesched.profiles import MessagePrecision
from pipesched.profiles.io import Plan, save_plan
from pipesched.questions import RECOMPUTES, PlanSettings, TrainerName
from pipesched.schedules.builders import CATALOGUE
from pipesched.schedules.common import tuple_of
from pipesched.schedules.formats import suffix_of, write_text
from pipesched.simulator.analysis import readable_bytes, readable_s
from pipesched.simulator.planner import (
    ASYNCHRONOUS,
    PROOF,
    SCHEDULES,
    PlanOutcome,
    PlanRanking,
    Request,
    plan_of,
    search_plans,
)
from pipesched.workflows import ArgumentError, Table, asks, require_callable, require_path, require_settings
from pipesched.workflows.arguments import (
    NamedSchedule,
    read_devices_argument,
    require_one_step,
    searched_entries,
    workers_for,
)
from pipesched.workflows.exporting import TrainerRule, export_setting
from pipesched.workflows.simulating import SetupArgument, read_setup_argument, require_unused

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_COMPRESSIONS: Mapping[str, tuple[MessagePrecision | None, ...]] = {
    "no": (None,),
    "half": ("half",),
    "both": (None, "half"),
}


@dataclass(frozen=True, slots=True, repr=False)
class PlanSearch:
    """The result of a planner's search.

    Attributes:
        request: The request.
        ranking: The plans that fit, the fastest first, and the plans that do not.
    """

    request: Request
    ranking: PlanRanking

    @property
    def best(self) -> PlanOutcome | None:
        """The fastest plan that fits, or None if nothing fits."""
        return next(iter(self.ranking.ranked), None)

    @property
    def plan(self) -> Plan | None:
        """The best plan, which `simulate` takes as a schedule, or None if nothing fits."""
        return None if self.best is None else plan_of(self.best, self.request)

    def save(self, path: str | Path) -> None:
        """Write the best plan (.json), or a page of all of them (.html), completely or not at all.

        Raises:
            ArgumentError: Nothing fits, or `path` is no name of a file.
            ProfileError: The plan cannot be written.
            ScheduleError: The page cannot be written.
        """
        if suffix_of(require_path(path)) == ".html":
            write_text(Path(path), self.page())
        else:
            save_plan(plan_of(self._best(), self.request), path)

    def page(self, rows: Sequence[Mapping[str, str]] = (), notes: str = "") -> str:
        """Return a page for a browser: a table of the plans, and the placement and timing of the best.

        Args:
            rows: A row of cells per plan, formatted for people; empty: the rows of `table`.
            notes: Below the table; empty: the caption of `table`.

        Raises:
            ArgumentError: Nothing fits.
        """
        from pipesched.simulator.views import plan_page

        best, table = self._best(), self.table()
        return plan_page(best, self.request, table.title, rows or table.rows, notes or table.caption)

    def export(self, trainer: TrainerName) -> str:
        """Return the best plan as flags or configuration of another trainer, as `pipesched.export_setting` does.

        Raises:
            ArgumentError: Nothing fits, the trainer is unknown, or it cannot express the plan.
            ScheduleError: PyTorch's CSV cannot express the schedule.
        """
        return export_setting(plan_of(self._best(), self.request), trainer)

    @property
    def trainers(self) -> dict[TrainerName, tuple[int, ...]]:
        """The numbers of the ranked plans, from 1, that each trainer can express."""
        rules: list[TrainerRule] = [TrainerRule.of(name, self.request.profile) for name in get_args(TrainerName)]
        numbered = [*enumerate((outcome.candidate for outcome in self.ranking.ranked), 1)]
        return {
            rule.trainer: tuple(number for number, candidate in numbered if rule(candidate) is None) for rule in rules
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a row per plan that fits, the fastest first."""
        import pandas as pd

        return pd.DataFrame([_row(outcome) for outcome in self.ranking.ranked])

    def plot(self) -> Figure:
        """Draw the placement and timing of the best plan.

        Raises:
            ArgumentError: Nothing fits.
        """
        from pipesched.simulator.views import plan_figure

        return plan_figure(self._best(), self.request)

    def table(self) -> Table:
        """Return a row per plan that fits, formatted for people."""
        rows = [
            {
                "": str(number),
                "plan": str(outcome.candidate),
                "per step": readable_s(outcome.seconds or 0.0),
                "samples/s": f"{outcome.throughput:.4g}",
                "memory": readable_bytes(outcome.most_bytes or None),
            }
            for number, outcome in enumerate(self.ranking.ranked, 1)
        ]
        ranking = self.ranking
        ended = PROOF if ranking.is_complete else "stopped before the end"
        caption = f"{len(ranking.considered)} candidates, {ranking.num_predicted} predicted in full; {ended}"
        devices = len(self.request.cluster.devices)
        return Table(f"{self.request.profile.model} on {devices} devices", tuple(rows), caption)

    def __repr__(self) -> str:
        best = "nothing fits" if self.best is None else f"{self.best.candidate}, {self.best.throughput:.4g} samples/s"
        return f"PlanSearch({self.request.profile.model!r}: {best})"

    def _repr_html_(self) -> str:
        return self.table().to_html()

    def _best(self) -> PlanOutcome:
        if self.best is None:
            raise ArgumentError("plan: got none that fits, expected one; try more devices or a smaller `batch_size`")
        return self.best


def _row(outcome: PlanOutcome) -> dict[str, Any]:
    costs = {} if outcome.costs is None else asdict(outcome.costs)
    return {
        "plan": str(outcome.candidate),
        **asdict(outcome.candidate),
        "seconds": outcome.seconds,
        "samples": outcome.samples,
        "throughput": outcome.throughput,
        "most_bytes": outcome.most_bytes,
        "sent_bytes": outcome.sent_bytes,
        "bubble_fraction": outcome.bubble_fraction,
        "steady_s_per_microbatch": outcome.steady_s_per_microbatch,
        "steady_bubble_fraction": outcome.steady_bubble_fraction,
        "staleness": outcome.staleness,
        **costs,
    }


@dataclass(frozen=True, slots=True)
class PlanQuestion(PlanSettings):
    """The question of `plan`; its fields are the arguments of that function."""

    setup: SetupArgument
    progress: Callable[[float], None] = field(default=lambda share: None, kw_only=True)  # noqa: ARG005

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        require_planning(self)
        require_callable("progress", self.progress)


@asks(PlanQuestion)
def plan(question: PlanQuestion) -> PlanSearch:
    """Find the fastest layout, schedule and partition that fits; a KeyboardInterrupt ends the search.

    Args:
        setup: The profile of the model, machines and other conditions, a `Setup`; or the profile alone. A device is the
            group of GPUs that share a layer of the profile. Without a cluster there are `num_devices` equal devices
            whose links take no time.
        progress: Receives the share of settled candidates.

    A script that may start several processes calls it below ``if __name__ == "__main__":``.

    Raises:
        ArgumentError: An unknown word, a number below 1, no machines, too few devices, or schedules that cannot be
            planned with.
        ProfileError: A file is bad, or there are more stages than layers.
        ScheduleError: A schedule does not exist.
    """
    setup = read_setup_argument(question.setup)
    require_unused(setup, "plan", "partition", "microbatch_size", "compression", "jitter", "seed", "engine", "buffers")
    rule = None if question.trainer is None else TrainerRule.of(question.trainer, setup.profile)
    request = Request(
        profile=setup.profile,
        cluster=setup.limited(read_devices_argument(setup.cluster, question.num_devices)),
        batch_size=question.batch_size,
        schedules=plannable_schedules(question.schedules, question.asynchronous),
        depths=None if question.depths is None else tuple_of(question.depths),
        chunks=tuple_of(question.chunks),
        recomputes=RECOMPUTES[question.recompute],
        compressions=_COMPRESSIONS[question.compression],
        fewer=question.fewer,
        convert_bytes_per_s=setup.convert_bytes_per_s,
        network=setup.network,
        refusal=rule,
        is_uniform=rule is not None and rule.is_uniform,
    )
    ranking = search_plans(
        request,
        top=question.top,
        time_limit_s=question.time_limit_s,
        workers=workers_for(request.schedules, question.num_workers),
        tick=lambda so_far: question.progress(so_far.settled),
    )
    return PlanSearch(request, ranking)


def require_planning(settings: PlanSettings) -> None:
    """Refuse settings that are invalid or contradict each other, whatever the profile.

    Raises:
        ArgumentError: A setting is invalid, or a schedule cannot be planned with.
        ScheduleError: A schedule does not exist.
    """
    require_settings(settings)
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
                f"schedules: got {entry.name}, which trains on stale weights, expected `asynchronous` with it; add it"
            )
    return tuple(entry.searched_name for entry in entries)


def untried_schedules(tried: Sequence[str], asynchronous: bool) -> tuple[str, ...]:
    """Return the names of the other schedules that a plan could have.

    Args:
        tried: Names in the catalogue.
        asynchronous: Whether schedules may train on stale weights.
    """
    return tuple(
        name
        for name, entry in CATALOGUE.items()
        if entry.traits.takes_plans and name not in tried and (asynchronous or not entry.traits.is_asynchronous)
    )
