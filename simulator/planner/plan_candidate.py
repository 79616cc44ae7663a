"""One way to train, and its layout: which ranks hold which stage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from pipesched.profiles import MessagePrecision
from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import find
from pipesched.schedules.transforms import Placement, ScheduleSpec
from pipesched.simulator.planner.stage_layout import StageLayout, stage_layout
from pipesched.simulator.search import SearchCandidate


@dataclass(frozen=True, slots=True)
class Candidate(SearchCandidate):
    """Layout, schedule, micro-batches, partition and message compression.

    Attributes:
        schedule: Name of the schedule in the catalogue, or the `OwnName` of a builder of a user's own.
        depth: Ranks of a copy.
        width: Copies, which share every batch.
        num_microbatches: M, of one copy's share of a batch.
        microbatch_size: Samples.
        partition: Layers of each stage.
        placement: Which ranks are side by side in a node.
        num_chunks: Stages per rank, or None if the schedule has a fixed number.
        replicas: Replicas of each stage, or empty if the schedule takes none.
        recomputes: Whether every stage keeps only its input.
        compression: Compression of messages.
    """

    schedule: str
    depth: int
    width: int
    num_microbatches: int
    microbatch_size: int
    partition: tuple[int, ...]
    placement: Placement = "pipeline"
    num_chunks: int | None = None
    replicas: tuple[int, ...] = ()
    recomputes: bool = False
    compression: MessagePrecision | None = None

    def __str__(self) -> str:
        parts = [f"{self.depth}x{self.width}"]
        parts += [f"{self.placement} inside the node"] if self.width > 1 and self.depth > 1 else []
        parts += [self.named_schedule, f"M={self.num_microbatches}"]
        parts += ["recompute"] if self.recomputes else []
        return " ".join([*parts, *(["half messages"] if self.compression else [])])

    @property
    def named_schedule(self) -> str:
        """The schedule with its chunks or replicas."""
        chunks = "" if self.num_chunks is None else f" v={self.num_chunks}"
        return self.schedule + chunks + (f" {':'.join(map(str, self.replicas))}" if self.replicas else "")

    @property
    def num_devices(self) -> int:
        """Number of devices in use, from the first on."""
        return self.depth * self.width

    @property
    def samples_per_step(self) -> int:
        """Samples that an optimizer step takes, of all copies."""
        return self.width * self.num_microbatches * self.microbatch_size

    @property
    def order(self) -> Candidate:
        return replace(self, microbatch_size=1, partition=(), placement="pipeline", compression=None)

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """The first layer of each stage, and the layer after its last."""
        return tuple(pairwise(accumulate(self.partition, initial=0)))

    @property
    def layout(self) -> StageLayout:
        """The layout of a copy's stages.

        Raises:
            ScheduleError: The schedule cannot have this number of ranks, chunks or micro-batches.
        """
        count = self.num_microbatches if find(self.schedule).is_own else None
        return stage_layout(self.schedule, self.depth, self.num_chunks, self.replicas, count)

    @property
    def refusal(self) -> str | None:
        """Why the schedule has no layout with these counts; None where it has one."""
        try:
            self.layout  # noqa: B018 -- asked for its error
        except ScheduleError as error:
            return str(error)
        return None

    def schedule_spec(self) -> ScheduleSpec:
        """Return the schedule specification from which the lists are built."""
        return ScheduleSpec(
            name=self.schedule,
            num_ranks=self.depth,
            num_microbatches=self.num_microbatches,
            num_chunks=self.num_chunks,
            parameters={"replicas": self.replicas} if self.replicas else {},
            recompute="all" if self.recomputes else None,
            width=self.width,
            placement=self.placement,
        )

    def device(self, rank: int, copy: int) -> int:
        """Return where a rank of a copy runs."""
        return copy * self.depth + rank if self.placement == "pipeline" else rank * self.width + copy
