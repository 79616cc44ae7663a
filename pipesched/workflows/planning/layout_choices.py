"""Each choice of a layout alone: its number of layouts, how many of them do not fit, and the fastest that fits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pipesched.profiles.costs import LayerSharding
from pipesched.simulator.analysis import readable_bytes
from pipesched.simulator.planner import LayoutRequest, PlanRanking, TransformerLayout, undivided
from pipesched.simulator.search import Setting
from pipesched.workflows import Table

SPLITS = {
    "pp": "pipeline",
    "v": "chunks",
    "tp": "tensor",
    "cp": "context",
    "ep": "expert",
    "dp": "data",
    "z": "zero",
    "mbs": "microbatch_size",
    "recompute": "recompute",
    "schedule": "schedule",
}
"""The columns of a layout, and the names of the same values in data."""
_LEGEND = {
    "fastest": "seconds of a step (>=: lower bound), or the least memory if no layout fits",
}
_Value = int | str | None


def choices_of(layout: TransformerLayout) -> dict[str, _Value]:
    """Return the choices of a layout by column; the number of chunks is None if each rank has one stage."""
    split = layout.sharding
    values = (
        layout.num_ranks, layout.num_chunks, split.tensor, split.context, split.expert, split.data, split.zero,
        layout.size, split.recompute, layout.schedule,
    )  # fmt: skip
    return dict(zip(SPLITS, values, strict=True))


@dataclass(slots=True)
class LayoutChoice:
    """All layouts with one value of a choice.

    Attributes:
        choice: Column of the choice.
        value: Its value.
        layouts: Number of layouts that divide the batch and the model.
        over_memory: Number of them that do not fit, by a bound or by prediction.
        seconds: Seconds of a step of the fastest one that fits, or a lower bound; None if none fits.
        is_bound: Whether `seconds` is a lower bound.
        least_bytes: Least peak memory of a GPU, or a lower bound of it, of the layouts that do not fit [bytes].
    """

    choice: str
    value: _Value
    layouts: int = 0
    over_memory: int = 0
    seconds: float | None = None
    is_bound: bool = False
    least_bytes: int | None = None

    def add(self, seconds: float | None, *, is_bound: bool) -> None:
        """Count a layout that fits, or may fit; keep `seconds` if they are the shortest so far."""
        self.layouts += 1
        if seconds is not None and (self.seconds is None or (seconds, is_bound) < (self.seconds, self.is_bound)):
            self.seconds, self.is_bound = seconds, is_bound

    def add_over(self, num_bytes: int) -> None:
        """Count a layout that does not fit."""
        self.layouts += 1
        self.over_memory += 1
        self.least_bytes = num_bytes if self.least_bytes is None else min(self.least_bytes, num_bytes)

    def row(self) -> dict[str, str]:
        """Return the cells of the choice."""
        fastest = "does not divide" if not self.layouts else "-"
        if self.seconds is not None:
            fastest = f"{'>= ' if self.is_bound else ''}{self.seconds:.4g}"
        elif self.least_bytes is not None:
            fastest = f"needs {readable_bytes(self.least_bytes)}"
        name = f"{self.choice} {'-' if self.value is None else self.value}"
        return {"choice": name, "layouts": str(self.layouts), "over memory": str(self.over_memory), "fastest": fastest}


def layout_choices(request: LayoutRequest, ranking: PlanRanking) -> list[LayoutChoice]:
    """Return every value of every choice that has several values, in the order of the columns.

    If the search was completed, a layout that is not ranked is at least as slow as the slowest ranked layout.
    """
    known: dict[tuple[str, _Value], LayoutChoice] = {}

    def of(choices: dict[str, _Value]) -> list[LayoutChoice]:
        return [known.setdefault(choice, LayoutChoice(*choice)) for choice in choices.items()]

    seconds = {_whole(outcome.setting): outcome.seconds for outcome in ranking.ranked}
    rejected = {_whole(outcome.setting): outcome.held_bytes for outcome in ranking.rejected}
    slowest = max(filter(None, seconds.values()), default=0.0) if ranking.is_complete else 0.0
    for cost, setting in ranking.considered:
        layout = _whole(setting)
        for choice in of(choices_of(layout)):
            if layout in rejected:
                num_bytes = rejected[layout]
                choice.add(None, is_bound=True) if num_bytes is None else choice.add_over(num_bytes)
            elif layout in seconds:
                choice.add(seconds[layout], is_bound=False)
            elif cost < math.inf:
                choice.add(max(slowest, cost * request.batch_size), is_bound=True)
    for depth, split in undivided(request):
        of(_group_sizes(depth, split))  # known from here on, without a layout
    return _in_order(known.values())


def choices_table(request: LayoutRequest, ranking: PlanRanking) -> Table:
    """Return a row per choice; below, the number of layouts that are out for each reason."""
    total, over = len(ranking.considered), sum(outcome.held_bytes is not None for outcome in ranking.rejected)
    refused = len(ranking.rejected) - over
    slower = total - over - refused - len(ranking.ranked)
    caption = (
        f"{sum(1 for _ in undivided(request))} splits of a layer do not divide the batch or the model; of {total} "
        f"layouts {over} are over memory, {refused} refused, {slower} slower by a bound or a simulation"
    )
    return Table(
        "each choice alone", tuple(choice.row() for choice in layout_choices(request, ranking)), caption, _LEGEND
    )


def _group_sizes(depth: int, split: LayerSharding) -> dict[str, _Value]:
    return {"pp": depth, "tp": split.tensor, "cp": split.context, "ep": split.expert, "dp": split.data}


def _whole(setting: Setting) -> TransformerLayout:
    """Return a layout without its partition."""
    assert isinstance(setting, TransformerLayout), "a layout"
    return replace(setting, partition=()) if setting.partition else setting


def _in_order(choices: Iterable[LayoutChoice]) -> list[LayoutChoice]:
    """Return the choices with several values, by column and value."""
    ordered = []
    for name in SPLITS:
        values = [choice for choice in choices if choice.choice == name]
        if len(values) > 1:
            ordered += sorted(values, key=lambda choice: (isinstance(choice.value, str), choice.value or 0))
    return ordered
