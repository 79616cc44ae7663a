"""A setting of a sweep, its outcome, and the order of outcomes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from pipesched.profiles.io import STRICT
from pipesched.simulator.search.search_candidate import SearchCandidate
from pipesched.simulator.search.search_outcome import SearchOutcome, front_of

ParameterSetting: TypeAlias = int | float | tuple[int, ...]

SETTING_COLUMNS = ("schedule", "num_ranks", "num_microbatches", "num_chunks", "recomputes", "microbatch_size")
"""The columns that every setting has; the columns of parameters and links come after them."""
COLUMN_HEADINGS = {
    "num_ranks": "p",
    "num_microbatches": "m",
    "num_chunks": "v",
    "recomputes": "recompute",
    "microbatch_size": "samples",
    "latency_s": "latency",
    "bandwidth_bytes_per_s": "bandwidth",
    "makespan_s": "makespan",
    "s_per_microbatch": "time / m",
    "s_per_sample": "time / sample",
    "bubble_fraction": "bubble",
    "steady_s_per_microbatch": "steady / m",
    "steady_bubble_fraction": "steady bubble",
    "peak_memory_bytes": "memory",
}
"""Headings for people, by column."""


@dataclass(frozen=True, slots=True)
class SweptSetting(SearchCandidate):
    """A setting: a schedule by name, its counts, and the other varied values.

    Attributes:
        schedule: Name in the catalogue, or of a builder of the user's own.
        num_ranks: Ranks of the pipeline.
        num_microbatches: Micro-batches, of all pipelines together.
        num_chunks: Stages per rank, or None if the schedule has a fixed number.
        parameters: Parameters of the schedule, by name.
        recomputes: Whether every stage keeps only its input, and recomputes the rest.
        microbatch_size: Samples of a micro-batch, or None if the costs have no samples.
        link: Values of all links, by the names of a `Link`; empty if the links are not varied.
    """

    schedule: str
    num_ranks: int
    num_microbatches: int
    num_chunks: int | None = None
    parameters: tuple[tuple[str, ParameterSetting], ...] = ()
    recomputes: bool = False
    microbatch_size: int | None = None
    link: tuple[tuple[str, float], ...] = ()

    __pydantic_config__ = STRICT

    @property
    def order(self) -> SweptSetting:
        return replace(self, microbatch_size=None, link=())

    @property
    def num_cells(self) -> int:
        """Stages times micro-batches, or one stage per rank where the schedule fixes their number."""
        return self.num_ranks * self.num_microbatches * (self.num_chunks or 1)

    @property
    def label(self) -> str:
        """The schedule and its counts, for pictures."""
        chunks = "" if self.num_chunks is None else f" v={self.num_chunks}"
        recompute = " recompute" if self.recomputes else ""
        return f"{self.schedule} p={self.num_ranks} m={self.num_microbatches}{chunks}{recompute}"

    def to_row(self) -> dict[str, str | int | float | tuple[int, ...] | None]:
        """Return plain data."""
        return {name: getattr(self, name) for name in SETTING_COLUMNS} | dict(self.parameters) | dict(self.link)


@dataclass(frozen=True, slots=True, repr=False)
class SweptOutcome(SearchOutcome):
    """A setting with its predicted time and memory, or the reason of its refusal.

    Attributes:
        setting: The setting.
        seconds: Makespan, from the first work to the end of the last [s]; None if it cannot be predicted.
        bubble_fraction: idle / (devices x makespan).
        steady_s_per_microbatch: Steady-state time per micro-batch [s], or None if unknown.
        steady_bubble_fraction: Idle share of all device time in the steady state.
        held_bytes: Peak memory of the fullest device [bytes], or None if the costs have no bytes.
        is_judged: Whether the memory was checked: the costs have bytes, and some device has a limit.
        reason: Why it is invalid or does not fit, or None if it fits.
    """

    setting: SweptSetting
    seconds: float | None = None
    bubble_fraction: float | None = None
    steady_s_per_microbatch: float | None = None
    steady_bubble_fraction: float | None = None
    held_bytes: int | None = None
    is_judged: bool = False
    reason: str | None = None

    __pydantic_config__ = STRICT

    MEASURES: ClassVar[tuple[str, ...]] = (
        "makespan_s",
        "s_per_microbatch",
        "s_per_sample",
        "bubble_fraction",
        "steady_s_per_microbatch",
        "steady_bubble_fraction",
        "peak_memory_bytes",
        "fits",
        "reason",
    )
    """The columns of measures."""

    def __repr__(self) -> str:
        known = {**self.setting.to_row(), **self.measures()}
        told = [f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value!r}"
                for name, value in known.items() if value not in (None, False) or name == "fits"]  # fmt: skip
        return f"SweptOutcome({', '.join(told)})"

    @property
    def most_bytes(self) -> int | None:
        return self.held_bytes

    @property
    def s_per_microbatch(self) -> float | None:
        """The makespan over the micro-batches [s]."""
        return None if self.seconds is None else self.seconds / self.setting.num_microbatches

    @property
    def s_per_sample(self) -> float | None:
        """The makespan over the samples [s], or None if the costs have no samples."""
        size, each_s = self.setting.microbatch_size, self.s_per_microbatch
        return None if size is None or each_s is None else each_s / size

    def measures(self) -> dict[str, str | int | float | None]:
        """Return the measures as plain data."""
        known = self.seconds is not None and self.is_judged
        return {
            "makespan_s": self.seconds,
            "s_per_microbatch": self.s_per_microbatch,
            "s_per_sample": self.s_per_sample,
            "bubble_fraction": self.bubble_fraction,
            "steady_s_per_microbatch": self.steady_s_per_microbatch,
            "steady_bubble_fraction": self.steady_bubble_fraction,
            "peak_memory_bytes": self.held_bytes,
            "fits": self.fits if known else None,
            "reason": self.reason,
        }


def measured_columns(settings: Iterable[SweptSetting]) -> tuple[str, ...]:
    """Return the columns of a table of settings: counts, parameters and links, then the measures."""
    settings = tuple(settings)
    parameters = dict.fromkeys(name for setting in settings for name, _ in setting.parameters)
    link = dict.fromkeys(name for setting in settings for name, _ in setting.link)
    return (*SETTING_COLUMNS, *parameters, *link, *SweptOutcome.MEASURES)


def ordered_by(outcomes: Iterable[SweptOutcome], by: str) -> tuple[SweptOutcome, ...]:
    """Return the fitting outcomes, then the unfitting, then the invalid ones, each by rising `by` and memory.

    Args:
        outcomes: The outcomes.
        by: Name of a measure that is a number; outcomes without it come last.
    """

    def cost(outcome: SweptOutcome) -> tuple[bool, bool, float, float]:
        value = outcome.measures()[by]
        assert not isinstance(value, str), "a number"
        memory = math.inf if outcome.held_bytes is None else outcome.held_bytes
        return not outcome.fits, outcome.seconds is None, math.inf if value is None else value, memory

    return tuple(sorted(outcomes, key=cost))


def pareto_front(outcomes: Iterable[SweptOutcome], by: str) -> tuple[SweptOutcome, ...]:
    """Return the fitting outcomes that no other one beats in `by` and memory at once, by rising `by`."""
    return front_of(outcome for outcome in ordered_by(outcomes, by) if outcome.measures()[by] is not None)
