"""One way to train a model: the setting that every search tries, and its op lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import TypeAlias

from pipesched.profiles import STRICT, MessagePrecision
from pipesched.schedules import Schedule
from pipesched.schedules.builders import build, find, simplest_case
from pipesched.schedules.transforms import Placement, RecomputeWhen, ScheduleSpec, recompute, with_step_barrier

ParameterNumber: TypeAlias = int | float | tuple[int, ...]
"""The value of a parameter of a schedule."""

SETTING_COLUMNS = ("schedule", "num_ranks", "num_microbatches", "num_chunks", "recomputes", "microbatch_size")
"""The columns of every swept setting; the columns of parameters and links come after them."""


class Learning(StrEnum):
    """The training of a setting: equal to plain training on the same samples, or not."""

    PLAIN = "plain"
    AVERAGING = "elastic averaging"


@dataclass(frozen=True, slots=True, repr=False)
class Setting:
    """A schedule by name, its counts, and every other choice of a search.

    `sweep` varies links, `tune` the pipelines of AvgPipe's schedule, `plan` copies, layers and messages.

    Attributes:
        schedule: Name in the catalogue, or the `OwnName` of a builder of a user's own.
        num_ranks: Ranks of one copy of the pipeline.
        num_microbatches: Micro-batches of one copy, of all its pipelines together.
        num_chunks: Stages per rank, or None if the schedule has a fixed number.
        parameters: Parameters of the schedule, by name.
        recompute_when: Whether every stage recomputes before the gradient has arrived, or after; None: never.
        microbatch_size: Samples of a micro-batch, or None if the costs have no samples or the batch determines them.
        link: Values of all links, by the names of a `Link`; empty if the links are not varied.
        width: Copies of the pipeline, which share every batch.
        placement: Whether the ranks of a copy or the copies of a rank are side by side in a node.
        partition: Layers of each stage; empty if the search does not choose them.
        compression: Compression of messages.
        has_step_barrier: Whether stages step after the backwards of all stages.
    """

    schedule: str
    num_ranks: int
    num_microbatches: int
    num_chunks: int | None = None
    parameters: tuple[tuple[str, ParameterNumber], ...] = ()
    recompute_when: RecomputeWhen | None = None
    microbatch_size: int | None = None
    link: tuple[tuple[str, float], ...] = ()
    width: int = 1
    placement: Placement = "pipeline"
    partition: tuple[int, ...] = ()
    compression: MessagePrecision | None = None
    has_step_barrier: bool = False

    __pydantic_config__ = STRICT

    def __str__(self) -> str:
        """Return the layout and schedule of a plan, or the schedule with M and N of a tuned setting."""
        return self._layout_name if self.partition else self._batch_name

    def __repr__(self) -> str:
        values = [(part.name, getattr(self, part.name), part.default) for part in fields(self)]
        return f"Setting({', '.join(f'{name}={value!r}' for name, value, usual in values if value != usual)})"

    @property
    def label(self) -> str:
        """The schedule and its counts, for pictures."""
        chunks = "" if self.num_chunks is None else f" v={self.num_chunks}"
        counts = f"p={self.num_ranks} m={self.num_microbatches}{chunks}"
        return " ".join([self.schedule, counts, *self._recompute_words])

    @property
    def _batch_name(self) -> str:
        simplest, advance = self.simplest, dict(self.simplest.parameters).get("advance")
        parts = [simplest.schedule, f"M={self.num_each}", f"N={self.num_pipelines}"]
        parts += [] if advance is None else [f"advance={advance}"]
        parts += [] if self.num_chunks is None else [f"chunks={self.num_chunks}"]
        return " ".join([*parts, *self._recompute_words])

    @property
    def _layout_name(self) -> str:
        parts = [f"{self.num_ranks}x{self.width}"]
        parts += [f"{self.placement} inside the node"] if self.width > 1 and self.num_ranks > 1 else []
        parts += [self.named_schedule, f"M={self.num_microbatches}", *self._recompute_words]
        return " ".join([*parts, *(["half messages"] if self.compression else [])])

    @property
    def _recompute_words(self) -> list[str]:
        return {None: [], "early": ["recompute"], "late": ["late recompute"]}[self.recompute_when]

    @property
    def recomputes(self) -> bool:
        """Whether every stage keeps only its input, and recomputes the rest."""
        return self.recompute_when is not None

    @property
    def recompute_cell(self) -> str:
        """The recomputation of the setting as a table cell: ``no``, ``yes`` (early) or ``late``."""
        return {None: "no", "early": "yes", "late": "late"}[self.recompute_when]

    @property
    def named_schedule(self) -> str:
        """The schedule with its chunks or replicas."""
        chunks = "" if self.num_chunks is None else f" v={self.num_chunks}"
        return self.schedule + chunks + (f" {':'.join(map(str, self.replicas))}" if self.replicas else "")

    @property
    def order(self) -> Setting:
        """The part that determines the op lists; settings with the same lists share it."""
        return replace(self, microbatch_size=None, link=(), placement="pipeline", partition=(), compression=None)

    @property
    def num_pipelines(self) -> int:
        """N, the pipelines of AvgPipe's schedule, each with a batch of its own; 1 of other schedules."""
        number = dict(self.parameters).get("pipelines", 1)
        assert isinstance(number, int), "a number of pipelines"
        return number

    @property
    def num_each(self) -> int:
        """M, the micro-batches of each pipeline's batch."""
        return self.num_microbatches // self.num_pipelines

    @property
    def advance(self) -> int | None:
        """Number of forwards that AvgPipe's schedule runs ahead of 1F1B; None for other schedules."""
        advance = dict(self.parameters).get("advance")
        assert advance is None or isinstance(advance, int), "a number of forwards"
        return advance

    @property
    def replicas(self) -> tuple[int, ...]:
        """Replicas of each stage, or empty if the schedule takes none."""
        replicas = dict(self.parameters).get("replicas", ())
        assert isinstance(replicas, tuple), "a number for each stage"
        return replicas

    @property
    def training(self) -> Learning:
        """Whether training is equal to plain training; several pipelines have gradients of their own."""
        return Learning.AVERAGING if self.num_pipelines > 1 else Learning.PLAIN

    @property
    def is_plain(self) -> bool:
        """Whether this is 1F1B as it was before AvgPipe."""
        return self.num_pipelines == 1 and self.advance == 0 and not self.recomputes

    @property
    def is_asynchronous(self) -> bool:
        """Whether it steps without a flush."""
        return find(self.schedule).traits.is_asynchronous

    @property
    def num_devices(self) -> int:
        """Devices in use, from the first on."""
        return self.num_ranks * self.width

    @property
    def num_cells(self) -> int:
        """Stages times micro-batches, or one stage per rank where the schedule fixes their number."""
        return self.num_ranks * self.num_microbatches * (self.num_chunks or 1)

    @property
    def size(self) -> int:
        """Samples of a micro-batch of a plan."""
        assert self.microbatch_size is not None, "a plan chooses it"
        return self.microbatch_size

    @property
    def samples_per_step(self) -> int:
        """Samples of an optimizer step of all copies of a plan."""
        return self.width * self.num_microbatches * self.size

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """The first layer of each stage, and the layer after its last."""
        return tuple(pairwise(accumulate(self.partition, initial=0)))

    @property
    def simplest(self) -> Setting:
        """The setting under the catalogue's name of its lists: one pipeline of AvgPipe's is 1F1B, or `1f1b_afp`."""
        if self.advance is None:
            return self
        numbers = {"pipelines": self.num_pipelines, "advance": self.advance}
        entry, parameters = simplest_case(self.schedule, numbers)
        return replace(self, schedule=entry.name, parameters=tuple(parameters.items()))

    def in_pipelines(self, number: int, advance: int) -> Setting:
        """Return the setting of AvgPipe's schedule with other pipelines, each with the same M, and another advance."""
        parameters = ("pipelines", number), ("advance", advance)
        return replace(self, num_microbatches=self.num_each * number, parameters=parameters)

    def to_row(self) -> dict[str, str | int | float | tuple[int, ...] | None]:
        """Return a swept setting as plain data, by column."""
        when = {"recompute_when": "late"} if self.recompute_when == "late" else {}
        row = {name: getattr(self, name) for name in SETTING_COLUMNS}
        return row | when | dict(self.parameters) | dict(self.link)

    def device(self, rank: int, copy: int) -> int:
        """Return where a rank of a copy runs."""
        return copy * self.num_ranks + rank if self.placement == "pipeline" else rank * self.width + copy

    def schedule_spec(self) -> ScheduleSpec:
        """Return the specification from which the lists are built."""
        return ScheduleSpec(
            name=self.schedule,
            num_ranks=self.num_ranks,
            num_microbatches=self.num_microbatches,
            num_chunks=self.num_chunks,
            parameters=dict(self.parameters),
            recompute="all" if self.recomputes else None,
            recompute_when=self.recompute_when or "early",
            width=self.width,
            placement=self.placement,
            step_barrier=self.has_step_barrier,
        )

    def build(self) -> Schedule:
        """Return the lists of one batch of one copy, of all its pipelines.

        Raises:
            ScheduleError: The schedule cannot have these counts, or a barrier.
        """
        lists = build(self.schedule, self.num_ranks, self.num_microbatches, self.num_chunks, **dict(self.parameters))
        lists = lists if self.recompute_when is None else recompute(lists, None, self.recompute_when)
        return with_step_barrier(lists) if self.has_step_barrier else lists


def own_sources(settings: Iterable[Setting]) -> tuple[str, ...]:
    """Return the source of each user-defined builder among `settings`: its file and the state of the file."""
    entries = map(find, dict.fromkeys(setting.schedule for setting in settings))
    return tuple(sorted(entry.source for entry in entries if entry.is_own))
