"""The settings of the tuner: every combination of micro-batches, pipelines and schedules that a user asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from pipesched.schedules.builders import find
from pipesched.schedules.transforms import RecomputeWhen
from pipesched.simulator.search import Setting

AVGPIPE = "avgpipe"


def tuned(
    schedule: str,
    num_ranks: int,
    num_each: int,
    num_pipelines: int = 1,
    advance: int | None = None,
    num_chunks: int | None = None,
    *,
    recompute_when: RecomputeWhen | None = None,
) -> Setting:
    """Return a setting of the tuner.

    Args:
        schedule: Name in the catalogue, or of a builder of a user's own.
        num_ranks: Ranks of a pipeline.
        num_each: M, the micro-batches of one pipeline's batch.
        num_pipelines: N, pipelines of AvgPipe's schedule; 1 of others.
        advance: Advance of AvgPipe's schedule, or None for others.
        num_chunks: Stages per rank, or None if the schedule has a fixed number.
        recompute_when: As in `Setting`.
    """
    setting = Setting(schedule, num_ranks, num_each, num_chunks, recompute_when=recompute_when)
    return setting if advance is None else setting.in_pipelines(num_pipelines, advance)


@dataclass(frozen=True, slots=True)
class Space:
    """A space of settings: the options, one tuple for each choice.

    Attributes:
        num_ranks: Ranks of a pipeline.
        microbatches: Micro-batches M of one pipeline's batch.
        pipelines: Pipelines N of AvgPipe's schedule.
        advances: Advances of AvgPipe's schedule.
        schedules: Names of schedules in the catalogue, or of builders of a user's own (`OwnName`).
        chunks: Numbers of chunks, for schedules that take chunks.
        recomputes: Values of `Setting.recompute_when`.
    """

    num_ranks: int
    microbatches: Sequence[int]
    pipelines: Sequence[int] = (1,)
    advances: Sequence[int] = (0,)
    schedules: Sequence[str] = (AVGPIPE,)
    chunks: Sequence[int] = (2,)
    recomputes: Sequence[RecomputeWhen | None] = (None,)

    def settings(self) -> tuple[Setting, ...]:
        """Return every setting once; settings with the same lists count once, and plain 1F1B is always included."""
        settings = [tuned(AVGPIPE, self.num_ranks, m, 1, 0) for m in self.microbatches]
        for schedule, m, when in product(self.schedules, self.microbatches, self.recomputes):
            settings += self._of(schedule, m, when)
        return tuple(dict.fromkeys(settings))

    def _of(self, schedule: str, m: int, when: RecomputeWhen | None) -> Iterator[Setting]:
        entry, num_ranks = find(schedule), self.num_ranks
        fixed = {} if entry.case_of is None else entry.case_of.settings
        general = entry if entry.case_of is None else find(entry.case_of.name)
        if general.traits.averages:
            pipelines = (fixed["pipelines"],) if "pipelines" in fixed else self.pipelines
            advances = (fixed["advance"],) if "advance" in fixed else self.advances
            for n, advance in product(pipelines, _distinct(advances, m)):
                yield tuned(general.name, num_ranks, m, n, advance, recompute_when=when)
        else:
            for num_chunks in self.chunks if entry.traits.takes_chunks else (None,):
                yield tuned(entry.searched_name, num_ranks, m, num_chunks=num_chunks, recompute_when=when)


def _distinct(advances: Iterable[int], m: int) -> list[int]:
    """Return the distinct advances; a larger advance than m - 2 has the same effect as m - 2.

    The last rank but one runs 1 + advance of M forwards ahead, and one more before its first backward.
    """
    return sorted({min(advance, max(0, m - 2)) for advance in advances})
