"""How to make a schedule's lists, as plain data: what is told to another process, which makes them itself.

A training run of a million steps is a few words, not a file of lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from schedules.entry import Value
from schedules.formats.schedule_json import from_json
from schedules.recompute import recompute
from schedules.training_run import TrainingRun, repeated_run, training_run, with_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A schedule by name and counts, or by its lists.

    Attributes:
        name: In the catalogue.
        num_ranks: Of the pipeline.
        num_microbatches: Of a batch.
        num_chunks: Stages per rank, where the schedule takes them.
        parameters: Of the schedule.
        lists: In JSON (`schedules.formats.schedule_json`), instead of all above.
        recompute: Stages that keep only their input.
    """

    name: str = ""
    num_ranks: int = 1
    num_microbatches: int = 1
    num_chunks: int | None = None
    parameters: Mapping[str, Value] = field(default_factory=dict)
    lists: str | None = None
    recompute: tuple[int, ...] | Literal["all"] | None = None

    def run(self, num_steps: int) -> TrainingRun:
        """Return the schedule as a training run of `num_steps` steps.

        Raises:
            ScheduleError: No such schedule or parameter, counts that it cannot have, or bad lists.
        """
        if self.lists is not None:
            run = repeated_run(with_steps(from_json(self.lists, "the recipe's lists")))
        else:
            run = training_run(
                self.name, self.num_ranks, self.num_microbatches, num_steps, self.num_chunks, **self.parameters
            )
        if self.recompute is None:
            return run
        stages = None if self.recompute == "all" else self.recompute
        return replace(run, lists=lambda steps: recompute(run.lists(steps), stages))
