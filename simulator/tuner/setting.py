"""A setting of the tuner, and the space of all settings that a user asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product

from pipesched.schedules import Schedule
from pipesched.schedules.builders import build, find, one_pipeline, simplest_case
from pipesched.schedules.transforms import recompute
from pipesched.simulator.search import SearchCandidate

AVGPIPE = "avgpipe"


class Learning(StrEnum):
    """The training of a setting: equal to plain training on the same samples, or not."""

    PLAIN = "plain"
    AVERAGING = "elastic averaging"


@dataclass(frozen=True, slots=True)
class Setting(SearchCandidate):
    """A setting: the schedule, its counts and other choices that determine how a model is trained.

    Attributes:
        schedule: Name in the catalogue, or of a builder of a user's own; AvgPipe's with one pipeline has the lists of
            another schedule, which is its `name`.
        num_microbatches: M, of a batch.
        num_pipelines: N, each with a batch of its own; 1 but for AvgPipe's schedule.
        advance: Advance of AvgPipe's schedule, or None for others.
        num_chunks: Stages per device, or None if the schedule has a fixed number.
        recomputes: Whether every stage keeps only its input, and recomputes the rest.
    """

    schedule: str
    num_microbatches: int
    num_pipelines: int = 1
    advance: int | None = None
    num_chunks: int | None = None
    recomputes: bool = False

    def __str__(self) -> str:
        parts = [self.name, f"M={self.num_microbatches}", f"N={self.num_pipelines}"]
        parts += [f"advance={self.advance}"] if "advance" in self.parameters else []
        parts += [] if self.num_chunks is None else [f"chunks={self.num_chunks}"]
        return " ".join([*parts, *(["recompute"] if self.recomputes else [])])

    @property
    def order(self) -> Setting:
        return replace(self, num_pipelines=1)

    @property
    def name(self) -> str:
        """The catalogue's name of the lists: one pipeline of AvgPipe's is 1F1B, or 1F1B with advance forwards."""
        return simplest_case(self.schedule, self._settings)[0].name

    @property
    def parameters(self) -> dict[str, int]:
        """The parameters with which the catalogue builds the lists under their `name`."""
        return simplest_case(self.schedule, self._settings)[1]

    @property
    def training(self) -> Learning:
        """Whether training is equal to plain training; several pipelines have gradients of their own."""
        return Learning.AVERAGING if self.num_pipelines > 1 else Learning.PLAIN

    @property
    def is_plain(self) -> bool:
        """Whether this is 1F1B as it was before AvgPipe."""
        return self.num_pipelines == 1 and self.advance == 0 and not self.recomputes

    def build_one(self, num_devices: int) -> Schedule:
        """Return the lists of one batch, in one pipeline; the others do the same with theirs.

        Raises:
            ScheduleError: The schedule cannot have these counts.
        """
        if self.advance is None:
            return self.build(num_devices)
        schedule = one_pipeline(num_devices, self.num_microbatches, self.num_pipelines, self.advance)
        return recompute(schedule) if self.recomputes else schedule

    def build(self, num_devices: int) -> Schedule:
        """Return the lists of one iteration: N batches.

        Raises:
            ScheduleError: The schedule cannot have these counts.
        """
        num_microbatches = self.num_microbatches * self.num_pipelines
        schedule = build(self.schedule, num_devices, num_microbatches, self.num_chunks, **self._settings)
        return recompute(schedule) if self.recomputes else schedule

    @property
    def _settings(self) -> dict[str, int]:
        """The parameters of `schedule`."""
        return {} if self.advance is None else {"pipelines": self.num_pipelines, "advance": self.advance}


@dataclass(frozen=True, slots=True)
class Space:
    """A space of settings: the options, one tuple for each choice.

    Attributes:
        schedules: Names of schedules in the catalogue, or of builders of a user's own (`OwnName`).
        chunks: Numbers of chunks, for schedules that take chunks.
        recomputes: Without, with, or both.
    """

    microbatches: Sequence[int]
    pipelines: Sequence[int] = (1,)
    advances: Sequence[int] = (0,)
    schedules: Sequence[str] = (AVGPIPE,)
    chunks: Sequence[int] = (2,)
    recomputes: Sequence[bool] = (False,)

    def settings(self) -> tuple[Setting, ...]:
        """Return every setting once; settings with the same lists count once, and plain 1F1B is always included."""
        settings = [Setting(AVGPIPE, m, 1, 0) for m in self.microbatches]
        for schedule, m, recomputes in product(self.schedules, self.microbatches, self.recomputes):
            settings += self._of(schedule, m, recomputes)
        return tuple(dict.fromkeys(settings))

    def _of(self, schedule: str, m: int, recomputes: bool) -> Iterator[Setting]:
        entry = find(schedule)
        fixed = {} if entry.case_of is None else entry.case_of.settings
        general = entry if entry.case_of is None else find(entry.case_of.name)
        if general.traits.averages:
            pipelines = (fixed["pipelines"],) if "pipelines" in fixed else self.pipelines
            advances = (fixed["advance"],) if "advance" in fixed else self.advances
            for n, advance in product(pipelines, _distinct(advances, m)):
                yield Setting(general.name, m, n, advance, recomputes=recomputes)
        elif entry.traits.takes_chunks:
            for num_chunks in self.chunks:
                yield Setting(entry.searched_name, m, num_chunks=num_chunks, recomputes=recomputes)
        else:
            yield Setting(entry.searched_name, m, recomputes=recomputes)


def _distinct(advances: Iterable[int], m: int) -> list[int]:
    """Return the advances without duplicates in effect.

    The last rank but one runs 1 + advance of M forwards ahead, and one more before its first backward.
    """
    return sorted({min(advance, max(0, m - 2)) for advance in advances})
