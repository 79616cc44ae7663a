"""A plan: the settings of a training on given machines, made by `simulator.planner` and executed by a run."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated, Literal, TypeAlias, get_args

from annotated_types import Ge, MaxLen

from pipesched.profiles import MessagePrecision, ProfileError
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import LayerSharding
from pipesched.schedules import Yardstick
from pipesched.schedules.common import Seconds, Share
from pipesched.schedules.transforms import ScheduleSpec, TrainingRun

PlanFormat: TypeAlias = Literal["pipesched-plan"]
"""The ``format`` field of a plan in JSON."""

PLAN_FORMAT: str = get_args(PlanFormat)[0]
_AtLeast0: TypeAlias = Annotated[float, Ge(0)]


@dataclass(frozen=True, slots=True)
class Predicted:
    """The prediction of a plan.

    Attributes:
        seconds: Predicted seconds of an optimizer step.
        throughput: Samples per second.
        memory_bytes: Peak memory of each device; empty if unknown.
        bubble_fraction: Idle share of all device time, or None if not computed.
        communication_fraction: Share of all device time spent waiting for a transfer or a sum of gradients, or None if
            not computed.
    """

    seconds: Seconds
    throughput: _AtLeast0
    memory_bytes: Annotated[tuple[_AtLeast0, ...], MaxLen(100_000)] = ()
    bubble_fraction: Share | None = None
    communication_fraction: Share | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All settings of a run.

    Attributes:
        model: The model's name, as `profiles.models.model_lookup.resolve_model` takes it.
        schedule_spec: The schedule, its copies and their places.
        partition: Layers of each stage.
        microbatch_size: Samples of a micro-batch.
        batch_size: Samples of an optimizer step, over all copies.
        compression: Compression of the messages between stages.
        predicted: The prediction of the planner.
        origin: Profile and cluster of the plan, in a few words.
        sharding: Split and computation of the layers in the profile; None for measured layers.
        dtype: Data type of the weights and activations in the profile, or empty if unknown.
        yardstick: Speed of the machine that measured the profile, or None if unknown.
        cluster: Cluster of the plan; None if unknown.
    """

    model: str
    schedule_spec: ScheduleSpec
    partition: tuple[int, ...]
    microbatch_size: int
    batch_size: int
    compression: MessagePrecision | None
    predicted: Predicted
    origin: str = ""
    sharding: LayerSharding | None = None
    dtype: str = ""
    yardstick: Yardstick | None = None
    cluster: Cluster | None = None

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Half-open range of layers of every stage."""
        return tuple(pairwise(accumulate(self.partition, initial=0)))

    def run(self, num_steps: int) -> TrainingRun:
        """Return the training run of `num_steps` steps.

        Raises:
            ProfileError: The plan has another number of stages or samples than its schedule.
            ScheduleError: There is no such schedule.
        """
        run = self.schedule_spec.run(num_steps)
        num_stages = run.lists(num_steps).num_stages
        if num_stages != len(self.partition):
            raise ProfileError(
                f"plan: partition: got {len(self.partition)} stages, expected {num_stages}, the stages of {run.name}; "
                "make the plan again"
            )
        if self.microbatch_size * run.microbatches_per_step != self.batch_size:
            raise ProfileError(
                f"plan: batch_size: got {self.batch_size} samples, expected {run.microbatches_per_step} micro-batches "
                f"of {self.microbatch_size}, the samples of a step of {run.name}; make the plan again"
            )
        return run
