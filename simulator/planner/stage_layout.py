"""The layout of a schedule's stages, read off a few micro-batches: the ranks of each, and how the backward is split."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import InFlightRule, build_generated, find
from pipesched.schedules.columns import cell_code
from pipesched.schedules.ops import Phase
from pipesched.simulator.search import Setting

_WHOLE, _SPLIT = (Phase.BACKWARD,), (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)

_MOST_CELLS = 500_000
"""Most micro-batches on ranks of a user's own lists, which are made to read their layout: more are not predicted."""


@dataclass(frozen=True, slots=True)
class StageLayout:
    """The layout of one copy of a pipeline: the stages of its ranks, and their ops.

    Attributes:
        homes: The ranks that hold each stage.
        stages: The stages that each rank holds.
        backwards: The possible backwards of a micro-batch at a stage: B, or I and W, or both kinds.
        overlaps: Whether some forwards run beside a backward.
        in_flight_rule: The catalogue's rule of micro-batches in flight, or None without rule.
    """

    homes: tuple[tuple[int, ...], ...]
    stages: tuple[tuple[int, ...], ...]
    backwards: tuple[tuple[Phase, ...], ...]
    overlaps: bool = False
    in_flight_rule: InFlightRule | None = None

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
        """Whether rank k of p begins micro-batch i only after the backward of micro-batch i - (p - k)."""
        return self.in_flight_rule is InFlightRule.DEPTH

    def in_flight(self, rank: int, num_microbatches: int) -> int:
        """Return how many micro-batches a rank holds at once, at least."""
        if self.in_flight_rule is None:
            return 1
        return self.in_flight_rule.most(len(self.stages), rank, num_microbatches)


def layout_of(setting: Setting) -> StageLayout:
    """Return the layout of a copy's stages.

    Raises:
        ScheduleError: The schedule cannot have this number of ranks, chunks or micro-batches.
    """
    count = setting.num_microbatches if find(setting.schedule).is_own else None
    return _stage_layout(setting.schedule, setting.num_ranks, setting.num_chunks, setting.replicas, count)


def refusal_of(setting: Setting) -> str | None:
    """Return why the schedule has no layout with these counts, or None if it has one."""
    try:
        layout_of(setting)
    except ScheduleError as error:
        return str(error)
    return None


@lru_cache(maxsize=512)
def _stage_layout(
    name: str,
    num_ranks: int,
    num_chunks: int | None,
    replicas: tuple[int, ...] = (),
    num_microbatches: int | None = None,
) -> StageLayout:
    """Read the layout off lists of few micro-batches.

    Args:
        name: Name of the schedule in the catalogue, or an `OwnName`.
        num_ranks: Ranks of a copy.
        num_chunks: Stages per rank, or None if the schedule has a fixed number.
        replicas: Replicas of each stage, or empty if the schedule takes none.
        num_microbatches: Micro-batches of a user's own lists; each number may have another layout.

    Raises:
        ScheduleError: The schedule cannot have this number of ranks or chunks, or is not a pipeline with a device for
            each rank.
    """
    if replicas:
        ranks = iter(range(num_ranks))
        homes = tuple(tuple(islice(ranks, count)) for count in replicas)
        return StageLayout(homes, tuple((stage,) for stage, of in enumerate(homes) for _ in of), (_WHOLE,))
    entry, count = find(name), num_microbatches or 2 * num_ranks
    if entry.is_own and num_ranks * count > _MOST_CELLS:
        raise ScheduleError(
            f"schedule {name}: got {count} micro-batches on {num_ranks} ranks, expected at most {_MOST_CELLS} in all; "
            "try larger micro-batches"
        )
    lists = build_generated(name, num_ranks, count, num_chunks)
    columns = lists.held().columns
    stages = tuple(map(columns.stages_of, range(num_ranks)))
    if lists.rank_to_device != tuple(range(num_ranks)) or not all(stages):
        raise ScheduleError(
            f"schedule {name}: got ranks that share a device, or have no stage, expected a device and a stage for each"
        )
    homes = tuple(tuple(rank for rank, of in enumerate(stages) if stage in of) for stage in range(lists.num_stages))
    overlaps = columns.num_overlaps > 0
    backwards = tuple(way for way in (_WHOLE, _SPLIT) if columns.counts[cell_code(way[0])])
    return StageLayout(homes, stages, backwards, overlaps, entry.in_flight)
