"""The layout of a schedule's stages, known without its lists: the ranks of each, and how the backward is split."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from pipesched.schedules import Overlap, Phase, computes, stages_of
from pipesched.schedules.builders import build_lazily

_ONE_F_ONE_B = ("1f1b", "zb_h1", "pipedream", "pipedream_2bw", "vanilla_1f1b")
"""Their rank k has at most p - k micro-batches in flight: its F of i + p - k comes after its B (or I) of i."""


_WHOLE, _SPLIT = (Phase.BACKWARD,), (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)


@dataclass(frozen=True, slots=True)
class StageLayout:
    """One copy.

    Attributes:
        homes: The ranks that hold each stage.
        stages: The stages that each rank holds.
        backwards: What a micro-batch may do on its way back at a stage: B, or I and W, or some the one, some the other.
        overlaps: Whether some forwards run beside a backward.
    """

    name: str
    homes: tuple[tuple[int, ...], ...]
    stages: tuple[tuple[int, ...], ...]
    backwards: tuple[tuple[Phase, ...], ...]
    overlaps: bool = False

    @property
    def num_stages(self) -> int:
        """Pieces of the model."""
        return len(self.homes)

    @property
    def splits(self) -> bool:
        """Whether some I and W are ops of their own."""
        return _SPLIT in self.backwards

    @property
    def is_straight(self) -> bool:
        """Whether every stage is in one place, so that every micro-batch takes one way."""
        return all(len(ranks) == 1 for ranks in self.homes)

    @property
    def goes_round(self) -> bool:
        """Whether rank k of p begins a micro-batch only when the one p - k before it has come back."""
        return self.name in _ONE_F_ONE_B

    def in_flight(self, rank: int, num_microbatches: int) -> int:
        """Return how many micro-batches a rank holds at once, at least."""
        if self.name == "gpipe":
            return num_microbatches
        return min(num_microbatches, len(self.stages) - rank) if self.goes_round else 1


@lru_cache(maxsize=512)
def shape(name: str, num_ranks: int, num_chunks: int | None, replicas: tuple[int, ...] = ()) -> StageLayout:
    """Read the shape off lists of few micro-batches.

    Raises:
        ScheduleError: The schedule cannot have so many ranks or chunks.
    """
    if replicas:
        ranks = iter(range(num_ranks))
        homes = tuple(tuple(islice(ranks, count)) for count in replicas)
        return StageLayout(name, homes, tuple((stage,) for stage, of in enumerate(homes) for _ in of), (_WHOLE,))
    lists = build_lazily(name, num_ranks, 2 * num_ranks, num_chunks)
    rows = lists.held().ops
    stages = tuple(stages_of(row) for row in rows)
    homes = tuple(tuple(rank for rank, of in enumerate(stages) if stage in of) for stage in range(lists.num_stages))
    overlaps = any(isinstance(op, Overlap) for row in rows for op in row)
    phases = {part.phase for row in rows for op in row for part in computes(op)}
    return StageLayout(name, homes, stages, tuple(way for way in (_WHOLE, _SPLIT) if way[0] in phases), overlaps)
