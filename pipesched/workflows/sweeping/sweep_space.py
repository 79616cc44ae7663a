"""The space of a sweep: the values of everything that is varied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Any

from pipesched.schedules.builders import Entry, find
from pipesched.schedules.transforms import RecomputeWhen
from pipesched.simulator.search import SETTING_COLUMNS, ParameterNumber, Setting
from pipesched.workflows import ArgumentError
from pipesched.workflows.sweeping.setting_condition import SettingCondition

MOST_SETTINGS = 1_000_000
"""Most settings of a sweep; their outcomes take about a GB."""


@dataclass(frozen=True, slots=True)
class SweepSpace:
    """Values to combine, at least one of each.

    Attributes:
        schedules: Names in the catalogue, or of builders of a user's own (`OwnName`).
        num_ranks: Ranks of the pipeline.
        num_microbatches: Micro-batches.
        num_chunks: Stages per rank of the schedules that take chunks; empty: the usual number of each schedule.
        parameters: Values of parameters, for the schedules that have them.
        recomputes: Values of `Setting.recompute_when`.
        microbatch_sizes: Samples of a micro-batch; None: the costs have no samples.
        has_step_barrier: Whether each optimizer step waits for the backwards of all stages, in every setting.
        link: Values of links, by the names of a `Link`; empty: the links are not varied.
        condition: Condition on settings, or None for all settings.
    """

    schedules: Sequence[str]
    num_ranks: Sequence[int]
    num_microbatches: Sequence[int]
    num_chunks: Sequence[int] = ()
    parameters: Mapping[str, Sequence[ParameterNumber]] = field(default_factory=dict)
    recomputes: Sequence[RecomputeWhen | None] = (None,)
    microbatch_sizes: Sequence[int | None] = (None,)
    has_step_barrier: bool = False
    link: Mapping[str, Sequence[float]] = field(default_factory=dict)
    condition: SettingCondition | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names that a condition may use."""
        late = ["recompute_when"] if "late" in self.recomputes else []
        return (*SETTING_COLUMNS, *late, *self.parameters, *self.link)

    @property
    def num_settings(self) -> int:
        """The number of settings without the condition."""
        rest = (self.num_ranks, self.num_microbatches, self.recomputes, self.microbatch_sizes, *self.link.values())
        return prod(map(len, rest)) * sum(
            len(self._chunks(entry)) * prod(map(len, self._parameters(entry).values())) for _, entry in self._entries()
        )

    def settings(self) -> tuple[Setting, ...]:
        """Return every setting once; settings with the same op lists and the same micro-batch size stand together.

        Raises:
            ArgumentError: There are too many settings, or the condition holds for no setting.
        """
        if self.num_settings > MOST_SETTINGS:
            raise ArgumentError(
                f"a sweep: got {self.num_settings:,} settings, expected at most {MOST_SETTINGS:,}; try fewer values"
            )
        links = [tuple(zip(self.link, values, strict=True)) for values in product(*self.link.values())]
        settings = dict.fromkeys(
            replace(order, microbatch_size=size, link=link)
            for order, size, link in product(self._orders(), self.microbatch_sizes, links)
        )
        if self.condition is None:
            return tuple(settings)
        entries, holds = dict(self._entries()), self.condition.holds
        kept = tuple(setting for setting in settings if holds(_row(setting, entries[setting.schedule])))
        if not kept:
            count = self.num_settings
            what = "the only setting does not meet" if count == 1 else f"none of {count:,} settings meets"
            raise ArgumentError(
                f"where: got {self.condition.text!r}, which {what}, expected at least one that does; try another "
                "condition"
            )
        return kept

    def _orders(self) -> Iterator[Setting]:
        for name, entry in self._entries():
            parameters = self._parameters(entry)
            axes: list[Sequence[Any]] = [self.num_ranks, self.num_microbatches, self._chunks(entry)]
            for p, m, v, *values, when in product(*axes, *parameters.values(), self.recomputes):
                numbers = tuple(zip(parameters, values, strict=True))
                yield Setting(name, p, m, v, numbers, when, has_step_barrier=self.has_step_barrier)

    def _entries(self) -> Iterator[tuple[str, Entry]]:
        return ((name, find(name)) for name in self.schedules)

    def _chunks(self, entry: Entry) -> Sequence[int | None]:
        if not entry.traits.takes_chunks:
            return (None,)
        return self.num_chunks or (None if entry.is_own else entry.chunks_with(None, {}),)

    def _parameters(self, entry: Entry) -> dict[str, Sequence[ParameterNumber]]:
        known = [parameter.name for parameter in entry.parameters]
        return {name: values for name, values in self.parameters.items() if name in known}


def _row(setting: Setting, entry: Entry) -> dict[str, object]:
    """Return a setting with its number of stages per rank, also if the schedule fixes it."""
    return {**setting.to_row(), "num_chunks": entry.chunks_with(setting.num_chunks, dict(setting.parameters))}
