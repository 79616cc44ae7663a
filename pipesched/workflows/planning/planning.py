"""Planning: find the fastest layout, schedule and partition for a model on given machines that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pipesched.profiles import MessagePrecision
from pipesched.profiles.io import Plan, save_plan
from pipesched.schedules.builders import CATALOGUE
from pipesched.schedules.formats import suffix_of, write_text
from pipesched.simulator import NetworkOptions
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
from pipesched.workflows import (
    MAX_PROCESSES,
    ArgumentError,
    Table,
    TrainerName,
    require_at_least,
    require_choice,
    require_each_at_least,
    require_flag,
    require_flags,
    require_optional,
    require_path,
    require_rate,
    require_some,
)
from pipesched.workflows.arguments import (
    ClusterArgument,
    NamedSchedule,
    ProfileArgument,
    read_devices_argument,
    read_profile_argument,
    require_network,
    require_one_step,
    searched_entries,
    workers_for,
)
from pipesched.workflows.exporting import TrainerRule, export_setting

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


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


def plan(
    profile: ProfileArgument,
    cluster: ClusterArgument,
    batch_size: int,
    *,
    num_devices: int | None = None,
    schedules: Sequence[NamedSchedule] | None = None,
    asynchronous: bool = False,
    depths: Sequence[int] | None = None,
    chunks: Sequence[int] = (2,),
    recomputes: Sequence[bool] = (False, True),
    compressions: Sequence[MessagePrecision | None] = (None,),
    convert_bytes_per_s: float | None = None,
    network: NetworkOptions = NetworkOptions(),  # noqa: B008 -- frozen
    fewer: bool = False,
    top: int = 10,
    time_limit_s: float | None = 20.0,
    num_workers: int | None = 1,
    input_share: float | None = None,
    trainer: TrainerName | None = None,
) -> PlanSearch:
    """Find the fastest layout, schedule and partition that fits.

    Args:
        profile: Profile of the model: a Profile, or a file of one.
        cluster: Machines, or a file of them; None: `num_devices` equal ones whose links take no time. A device is the
            group of GPUs that share a layer of the profile.
        batch_size: Samples of an optimizer step.
        num_devices: Number of devices, the first of the cluster; None: all.
        schedules: Names of the catalogue, and builders of your own or their names; None: gpipe, 1f1b, interleaved and
            zb_h1.
        asynchronous: Whether to allow schedules that train on stale weights; without names, also try three of them.
        depths: Ranks of a copy of the pipeline; None: any.
        chunks: Stages per rank, where a schedule takes them.
        recomputes: Whether stages keep only their input: no, yes, or both.
        compressions: Compressions of messages to try.
        convert_bytes_per_s: Compression throughput of a device [bytes/s]; None: compression takes no time.
        network: Options of the network.
        fewer: Whether devices may be left idle.
        top: Plans to rank.
        time_limit_s: Time after which the search ends if it has a plan [s]; None: no limit.
        num_workers: Processes, with the same result in less time; None: one per core if that is quicker. A script that
            asks for several does so below ``if __name__ == "__main__"``.
        input_share: Share of B that I takes in a profile with B alone; W takes the rest.
        trainer: Trainer of the plan: only plans that it can express are tried; None: any.

    Raises:
        ArgumentError: An unknown word, a number below 1, no machines, too few devices, or schedules that cannot be
            planned with.
        ProfileError: A file is bad, or there are more stages than layers.
        ScheduleError: A schedule does not exist.
    """
    batch_size = require_at_least("batch_size", batch_size, 1)
    top = require_at_least("top", top, 1)
    num_workers = require_optional("num_workers", num_workers, 1, MAX_PROCESSES)
    if depths is not None:
        depths = require_each_at_least("depths", depths, 1)
    chunks = require_each_at_least("chunks", chunks, 1)
    recomputes = require_flags("recomputes", recomputes)
    require_flag("asynchronous", asynchronous)
    require_flag("fewer", fewer)
    if time_limit_s is not None:
        require_rate("time_limit_s", time_limit_s)
    compressions = require_some("compressions", compressions, "[None]")
    for compression in compressions:
        require_choice("compressions", compression, (None, *get_args(MessagePrecision)))
    require_network(network)
    if convert_bytes_per_s is not None:
        require_rate("convert_bytes_per_s", convert_bytes_per_s)
    request = Request(
        profile=read_profile_argument(profile, input_share),
        cluster=read_devices_argument(cluster, num_devices),
        batch_size=batch_size,
        schedules=plannable_schedules(schedules, asynchronous),
        depths=depths,
        chunks=chunks,
        recomputes=recomputes,
        compressions=compressions,
        fewer=fewer,
        convert_bytes_per_s=convert_bytes_per_s,
        network=network,
    )
    request = for_trainer(request, trainer)
    return search_request(request, top, time_limit_s, workers_for(request.schedules, num_workers))


def for_trainer(request: Request, trainer: TrainerName | None) -> Request:
    """Return the request restricted to plans that a trainer can express; None: no restriction.

    Raises:
        ArgumentError: The trainer does not exist.
    """
    if trainer is None:
        return request
    require_choice("trainer", trainer, get_args(TrainerName))
    rule = TrainerRule.of(trainer, request.profile)
    return replace(request, refusal=rule, is_uniform=rule.is_uniform)


def search_request(
    request: Request,
    top: int,
    time_limit_s: float | None,
    num_workers: int | None,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> PlanSearch:
    """Search for plans; a KeyboardInterrupt ends the search with the plans found so far.

    Args:
        request: The request.
        top: Plans to rank.
        time_limit_s: Time after which the search ends if it has a plan [s]; None: no limit.
        num_workers: Processes; None: one per core if that is quicker.
        progress: Receives the share of settled candidates.
    """
    ranking = search_plans(
        request,
        top=top,
        time_limit_s=time_limit_s,
        workers=num_workers,
        tick=lambda so_far: progress(so_far.settled),
    )
    return PlanSearch(request, ranking)


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
