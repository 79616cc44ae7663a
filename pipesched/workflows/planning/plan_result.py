"""The result of the planner: the plans that fit, the fastest first, and the plans that do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pipesched.profiles.io import Plan, save_json
from pipesched.questions import TrainerName
from pipesched.schedules.formats import suffix_of, write_text
from pipesched.simulator.analysis import readable_bytes, readable_reason, readable_s, readable_share
from pipesched.simulator.planner import ASYNCHRONOUS, PROOF, PlanRanking, Request, reasons
from pipesched.simulator.search import Outcome, Setting, TimeParts
from pipesched.workflows import ArgumentError, Table, estimate_data, require_path, without_dull
from pipesched.workflows.exporting import TrainerRule, export_setting
from pipesched.workflows.planning.partitioning import number_ranges

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_MOST_REJECTED = 5
"""Most kinds of rejection in a table."""
_TELLING = {"recompute": "M x size", "in a node": "memory"}
"""Columns that come early if plans differ in them, each with the column before it."""
_AMOUNTS = ("depth x width", "per step", "memory", "samples/s", "samples", "staleness")
"""Columns that merged plans share: the layout, and its results."""
_CHOSEN = ("schedule", "M x size", "recompute", "messages", "in a node", "partition")
"""Columns in which merged plans may differ."""


@dataclass(frozen=True, slots=True, repr=False)
class PlanSearch:
    """The result of a planner's search.

    Attributes:
        request: The request.
        ranking: The plans that fit, the fastest first, and the plans that do not.
        notes: Cautions about profile, machines and prediction, a line each.
        untried: Names of schedules that were not tried because none was named.
    """

    request: Request
    ranking: PlanRanking
    notes: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()

    @property
    def best(self) -> Outcome | None:
        """The fastest plan that fits, or None if nothing fits."""
        return next(iter(self.ranking.ranked), None)

    @property
    def plan(self) -> Plan | None:
        """The best plan, which `simulate` takes as a schedule, or None if nothing fits."""
        return None if self.best is None else self.request.plan_of(self.best)

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
            save_json(self.request.plan_of(self._best()), path)

    def page(self, notes: Sequence[str] = ()) -> str:
        """Return a page for a browser: a table of the plans, and the placement and timing of the best.

        Args:
            notes: Lines below the table, before the notes of the result.

        Raises:
            ArgumentError: Nothing fits.
        """
        from pipesched.simulator.views import plan_page

        best, (rows, ties) = self._best(), _ties_in_one(self._rows())
        losses = [f"instead of the first: {readable_reason(line)}" for line in self.reasons]
        rejected = [f"rejected, {why}: {count}" for why, count in self._rejected_counts().items()]
        lines = "\n".join([*ties, *self._lines(notes), *losses, *rejected])
        return plan_page(best, self.request, self._title, rows, lines)

    def export(self, trainer: TrainerName) -> str:
        """Return the best plan as flags or configuration of another trainer, as `pipesched.export_setting` does.

        Raises:
            ArgumentError: Nothing fits, the trainer is unknown, or it cannot express the plan.
            ScheduleError: PyTorch's CSV cannot express the schedule.
        """
        return export_setting(self.request.plan_of(self._best()), trainer)

    @property
    def trainers(self) -> dict[TrainerName, tuple[int, ...]]:
        """The numbers of the ranked plans, from 1, that each trainer can express."""
        rules: list[TrainerRule] = [TrainerRule.of(name, self.request.profile) for name in get_args(TrainerName)]
        numbered = [*enumerate((outcome.setting for outcome in self.ranking.ranked), 1)]
        return {rule.trainer: tuple(number for number, plan in numbered if rule(plan) is None) for rule in rules}

    @property
    def reasons(self) -> list[str]:
        """At most four lines on the loss of the best plan's neighbours."""
        return list(reasons(self.ranking, self.request)) if self.ranking.ranked else []

    def to_frame(self) -> pd.DataFrame:
        """Return a row per plan that fits, the fastest first."""
        import pandas as pd

        return pd.DataFrame([_frame_row(outcome) for outcome in self.ranking.ranked])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched plan --json`` prints it."""
        ranking, request = self.ranking, self.request
        return {
            "model": request.profile.model,
            "batch_size": request.batch_size,
            "num_devices": len(request.cluster.devices),
            "candidates": len(ranking.considered),
            "predicted": ranking.num_predicted,
            "complete": ranking.is_complete,
            "headroom": ranking.headroom if ranking.ranked else None,
            "estimate_errors": estimate_data(request.profile.gpu_family),
            "plans": [_data(outcome) for outcome in ranking.ranked],
            "trainers": self.trainers,
            "reasons": self.reasons,
            "rejected": self._rejected_counts(),
        }

    def plot(self) -> Figure:
        """Draw the placement and timing of the best plan.

        Raises:
            ArgumentError: Nothing fits.
        """
        from pipesched.simulator.views import plan_figure

        return plan_figure(self._best(), self.request)

    def table(self) -> Table:
        """Return a row per plan that fits; below, the effort of the search, notes, and the losses of other plans."""
        return self.tables()[0]

    def tables(self, notes: Sequence[str] = (), say: Callable[[str], str] = str) -> list[Table]:
        """Return the table of the plans that fit, and of the kinds of rejection if there are any.

        Args:
            notes: Lines below the first table, before the notes of the result.
            say: Returns the text of a reason.
        """
        rows, ties = _ties_in_one(self._rows())
        losses = [f"  {readable_reason(line)}" for line in self.reasons]
        caption = [*ties, *self._lines(notes), *(["instead of the first:", *losses] if losses else [])]
        plans = Table(self._title, tuple(rows), "\n".join(caption))
        return [plans, Table("", tuple(self._rejected_rows(say)))] if self.ranking.rejected else [plans]

    @property
    def _title(self) -> str:
        request = self.request
        return (
            f"{request.profile.model}, {request.batch_size} samples per batch, {len(request.cluster.devices)} devices"
        )

    @property
    def _effort(self) -> str:
        ranking = self.ranking
        text = f"{len(ranking.considered)} candidates, {ranking.num_predicted} predicted in full; "
        if ranking.is_complete:
            return text + PROOF
        if ranking.headroom > 0:
            faster = f"another plan may be {ranking.headroom:.1%} faster"
            return text + f"stopped with the best so far; {faster}{ranking.shortage}"
        return text + f"stopped: the first plan is the best; the order of the others is not final{ranking.shortage}"

    def _lines(self, notes: Sequence[str]) -> list[str]:
        """Return the lines on the effort of the search, the notes, untried schedules and other trainers."""
        stale = "; --asynchronous tries schedules with stale weights"
        told = "" if set(ASYNCHRONOUS) <= set(self.request.schedules) else stale
        untried = [f"not tried unless named, as -s 1f1b,zbv: {', '.join(self.untried)}{told}"] if self.untried else []
        trainers = [f"{trainer} {number_ranges(numbers) or 'none'}" for trainer, numbers in self.trainers.items()]
        line = f"plans that each trainer can run (--export): {'; '.join(trainers)}"
        is_early = any(outcome.setting.recompute_when == "early" for outcome in self.ranking.ranked)
        late = ["trainers recompute inside the backward: predict this with --recompute-when late"] if is_early else []
        return [self._effort, *notes, *self.notes, *untried, line, *late]

    def _rows(self) -> list[dict[str, str]]:
        """Return a row per plan, with distinguishing columns early and usual values left out."""
        rows = [{"": str(number), **_row(outcome)} for number, outcome in enumerate(self.ranking.ranked, 1)]
        usual = {
            "samples": str(self.request.batch_size),
            "recompute": "no",
            "messages": "whole",
            "staleness": "0",
            "waits for messages": "0 s",
            "for reductions": "0 s",
        }
        names = [*without_dull(rows, usual)[0]] if rows else []
        for name, before in _TELLING.items():
            if {name, before} <= {*names} and len({row[name] for row in rows}) > 1:
                names.remove(name)
                names.insert(names.index(before) + 1, name)
        return [{name: row[name] for name in names} for row in rows]

    def _rejected_rows(self, say: Callable[[str], str]) -> list[dict[str, str]]:
        """Return each kind of rejection, with the plan that is nearest to fitting."""
        rows = []
        for why in dict.fromkeys(map(_kind, self.ranking.rejected)):
            some = [outcome for outcome in self.ranking.rejected if _kind(outcome) == why]
            nearest = min(some, key=lambda outcome: outcome.held_bytes or 0)
            rows.append(
                {
                    "rejected": str(len(some)),
                    "why": why,
                    "the nearest": str(nearest.setting),
                    "because": say(readable_reason(nearest.reason)),
                }
            )
        return rows[:_MOST_REJECTED]

    def _rejected_counts(self) -> dict[str, int]:
        return dict(Counter(map(_kind, self.ranking.rejected)))

    def __repr__(self) -> str:
        best = "nothing fits" if self.best is None else f"{self.best.setting}, {self.best.throughput:.4g} samples/s"
        return f"PlanSearch({self.request.profile.model!r}: {best})"

    def _repr_html_(self) -> str:
        return "".join(table.to_html() for table in self.tables())

    def _best(self) -> Outcome:
        if self.best is None:
            raise ArgumentError("plan: got no plan that fits, expected one; try more devices or a smaller `batch_size`")
        return self.best


def _kind(outcome: Outcome) -> str:
    """Return the kind of a rejection."""
    return "over memory" if (outcome.reason or "").startswith("over memory") else "cannot be predicted"


def _columns(plan: Setting) -> dict[str, Any]:
    """Return a plan's setting as plain data."""
    names = ("width", "num_microbatches", "microbatch_size", "partition", "placement", "num_chunks", "replicas",
             "recomputes", "recompute_when", "compression")  # fmt: skip
    return {"schedule": plan.schedule, "depth": plan.num_ranks, **{name: getattr(plan, name) for name in names}}


def _data(outcome: Outcome) -> dict[str, Any]:
    """Return a plan as plain data for JSON."""
    return {
        "candidate": _columns(outcome.setting),
        **_measures(outcome),
        "held_bytes": outcome.device_bytes,
        "costs": None if outcome.parts is None else asdict(outcome.parts),
        "reason": outcome.reason,
    }


def _measures(outcome: Outcome) -> dict[str, Any]:
    """Return the measures of a plan as plain data."""
    names = ("seconds", "samples", "throughput", "sent_bytes", "bubble_fraction", "steady_s_per_microbatch",
             "steady_bubble_fraction", "staleness")  # fmt: skip
    return {**{name: getattr(outcome, name) for name in names}, "most_bytes": outcome.held_bytes or 0}


def _frame_row(outcome: Outcome) -> dict[str, Any]:
    """Return a plan as a row of a data frame."""
    parts = {} if outcome.parts is None else asdict(outcome.parts)
    return {"plan": str(outcome.setting), **_columns(outcome.setting), **_measures(outcome), **parts}


def _row(outcome: Outcome) -> dict[str, str]:
    """Return a plan as cells for people."""
    plan, parts = outcome.setting, outcome.parts
    steady_s = outcome.steady_s_per_microbatch
    return {
        "depth x width": f"{plan.num_ranks} x {plan.width}",
        "schedule": plan.named_schedule,
        "M x size": f"{plan.num_microbatches} x {plan.microbatch_size}",
        "per step": readable_s(outcome.seconds or 0.0),
        "memory": readable_bytes(outcome.held_bytes or None),  # unknown where costs have no bytes
        "samples/s": f"{outcome.throughput:.4g}",
        "recompute": plan.recompute_cell,
        "messages": plan.compression or "whole",
        "partition": _short_partition(plan.partition),
        "in a node": "-" if 1 in (plan.num_ranks, plan.width) else plan.placement,
        "samples": str(outcome.samples),
        "bubble_fraction": readable_share(outcome.bubble_fraction),
        "steady / micro-batch": "-" if steady_s is None else readable_s(steady_s),
        "steady_bubble_fraction": readable_share(outcome.steady_bubble_fraction),
        **_waits(parts),
        "sent": readable_bytes(outcome.sent_bytes or None),
        "staleness": str(outcome.staleness),
    }


def _waits(parts: TimeParts | None) -> dict[str, str]:
    if parts is None:
        return {"waits for messages": "-", "for reductions": "-"}
    return {"waits for messages": readable_s(parts.transfer_s), "for reductions": readable_s(parts.reduce_s)}


def _short_partition(partition: Sequence[int]) -> str:
    """Return ``3,3,4``, with ``6x3`` for six equal stages in a row."""
    runs = [(layers, len(list(group))) for layers, group in groupby(partition)]
    return ",".join(str(layers) if count == 1 else f"{count}x{layers}" for layers, count in runs)


def _ties_in_one(rows: Sequence[dict[str, str]]) -> tuple[list[dict[str, str]], list[str]]:
    """Return the rows, with plans of equal results merged into the first, and a line on their differences."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in _AMOUNTS if name in row), []).append(row)
    folded, lines = [], []
    for first, *others in groups.values():
        if not others:
            folded.append(first)
            continue
        alike = [first, *others]
        named = number_ranges([int(row[""]) for row in alike])
        folded.append({**first, "": named})
        values = {name: dict.fromkeys(row[name] for row in alike) for name in _CHOSEN if name in first}
        differing = "; ".join(f"{name}: {', '.join(cells)}" for name, cells in values.items() if len(cells) > 1)
        lines.append(f"{named}: {len(alike)} plans of the same time and memory, only the first is shown; {differing}")
    return folded, lines
