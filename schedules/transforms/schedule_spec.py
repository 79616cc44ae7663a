"""The specification of a schedule as plain data, from which another process makes the op lists.

A training run of a million steps needs a few words, and no file of lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeAlias

from annotated_types import Ge, Le, Lt, MaxLen

from pipesched.schedules import Schedule, ScheduleError, ScheduleTraits
from pipesched.schedules.builders import build, find, require_known
from pipesched.schedules.common import Text
from pipesched.schedules.transforms.recomputation import RecomputeWhen, recompute
from pipesched.schedules.transforms.replication import Placement, copied_name, place_copies, replicate, require_equal
from pipesched.schedules.transforms.sums_before_steps import with_step_barrier, with_tied_sum
from pipesched.schedules.transforms.training_run import TrainingRun, repeated_run, training_run, with_steps

_Ranks: TypeAlias = Annotated[int, Ge(1), Le(65_536)]
_Whole: TypeAlias = Annotated[int, Ge(-(2**63)), Lt(2**63)]
_Wholes: TypeAlias = Annotated[tuple[_Whole, ...], MaxLen(100_000)]
MAX_TRAINING_RANKS = 4096
"""Most ranks of a training run with all copies: each rank has a clock for every other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec:
    """A schedule by name and counts, or by its lists.

    Attributes:
        name: Name of the schedule in the catalogue.
        num_ranks: Ranks of one copy of the pipeline.
        num_microbatches: Micro-batches of a batch of one copy.
        num_chunks: Stages per rank, where the schedule takes them.
        parameters: Parameters of the schedule.
        lists: The lists in JSON (`schedules.formats.schedule_json`), instead of all attributes above.
        recompute: Stages that recompute.
        recompute_when: Whether they recompute before the gradient has arrived, or after.
        width: Number of equal copies (`schedules.transforms.replication`).
        placement: The ranks on neighbouring devices: the ranks of one copy, or the copies of one rank.
        step_barrier: Whether stages step after the backwards of all stages.
        tied_stages: Stages that share weights and sum their gradients before they step.
    """

    name: Annotated[str, MaxLen(100)] = ""
    num_ranks: _Ranks = 1
    num_microbatches: Annotated[int, Ge(1), Le(1_000_000)] = 1
    num_chunks: Annotated[int, Ge(1), Le(10_000)] | None = None
    parameters: Annotated[Mapping[Text, _Whole | float | _Wholes | None], MaxLen(100)] = field(default_factory=dict)
    lists: str | None = None
    recompute: _Wholes | Literal["all"] | None = None
    recompute_when: RecomputeWhen = "early"
    width: _Ranks = 1
    placement: Placement = "pipeline"
    step_barrier: bool = False
    tied_stages: _Wholes = ()

    def takes(self, parameter: str) -> bool:
        """Return whether the schedule has this parameter; lists have no parameters."""
        return self.lists is None and parameter in (taken.name for taken in find(self.name).parameters)

    @property
    def traits(self) -> ScheduleTraits:
        """The traits of the schedule, from its catalogue entry or its lists."""
        return find(self.name).traits if self.lists is None else self._held().traits

    def run(self, num_steps: int) -> TrainingRun:
        """Return the schedule as a training run of `num_steps` steps.

        Raises:
            ScheduleError: The schedule or a parameter is unknown, a count is invalid, the ranks are more than
                `MAX_TRAINING_RANKS`, or the lists are invalid.
        """
        if self.width * self.num_ranks > MAX_TRAINING_RANKS:
            raise ScheduleError(
                f"schedule {self.name}: got {self.width} x {self.num_ranks} ranks, "
                f"expected at most {MAX_TRAINING_RANKS} in a "
                "training run; try fewer"
            )
        return self._copies(num_steps).changed(self._finished)

    def portable(self) -> ScheduleSpec:
        """Return a specification for a file: with the lists of a user's own builder in place of its name."""
        from pipesched.schedules.formats import to_json

        if not self.name or not find(self.name).is_own:
            return self
        lists = build(self.name, self.num_ranks, self.num_microbatches, self.num_chunks)
        spec = replace(self, name="", num_ranks=1, num_microbatches=1, num_chunks=None, parameters={})
        return replace(spec, lists=to_json(lists))

    def _copies(self, num_steps: int) -> TrainingRun:
        if self.lists is not None:
            return repeated_run(replicate(with_steps(self._held()), self.width))
        entry = find(self.name)
        if entry.traits.averages:
            require_equal(self.name, self.width)
        require_known(entry, self.parameters)  # before they stand beside the arguments below
        copied_run = training_run(
            self.name, self.num_ranks, self.num_microbatches, num_steps, self.num_chunks, **self.parameters
        )
        return replace(
            copied_run.changed(lambda lists: replicate(lists, self.width)),
            name=copied_name(copied_run.name, self.width),
            microbatches_per_step=self.width * copied_run.microbatches_per_step,
        )

    def _held(self) -> Schedule:
        from pipesched.schedules.formats import from_json

        assert self.lists is not None, "it is said by its lists"
        return from_json(self.lists, "the specification's lists")

    def _finished(self, lists: Schedule) -> Schedule:
        placed = place_copies(lists, self.placement, self.width)
        if self.recompute is not None:
            placed = recompute(placed, None if self.recompute == "all" else self.recompute, self.recompute_when)
        tied = with_tied_sum(placed, self.tied_stages) if self.tied_stages else placed
        return with_step_barrier(tied) if self.step_barrier else tied
