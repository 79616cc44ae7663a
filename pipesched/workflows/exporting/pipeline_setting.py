"""The setting of a training run, as far as other trainers can express it."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TypeVar

from pipesched.profiles import MessagePrecision
from pipesched.profiles.costs import LINEAR_BYTES, LayerSharding
from pipesched.profiles.io import Plan
from pipesched.schedules import Schedule
from pipesched.schedules.builders import find
from pipesched.schedules.transforms import Placement, ScheduleSpec
from pipesched.simulator.planner import TransformerLayout
from pipesched.workflows import ArgumentError, require_at_least

_Layer = TypeVar("_Layer")


@dataclass(frozen=True, kw_only=True)
class PipelineSetting:
    """The partition of a model and the schedule of its pipelines.

    Attributes:
        schedule_spec: The schedule, its copies and their placement.
        partition: Layers of each stage.
        microbatch_size: Samples.
        compression: Compression of the messages between stages.
        sharding: Split and computation of the layers of a stage.
        dtype: Data type of weights and activations; only ``bfloat16`` and ``float16`` are exported.
        is_planned: Whether a plan chose the setting, so that another schedule needs another plan.
        is_estimated: Whether an estimate assumes the software of `sharding`; a measured model has its own.
        prediction: Seconds and memory in words, for a comment; empty without a prediction.
    """

    schedule_spec: ScheduleSpec
    partition: tuple[int, ...]
    microbatch_size: int
    compression: MessagePrecision | None = None
    sharding: LayerSharding = LayerSharding()  # noqa: RUF009 -- frozen
    dtype: str = ""
    is_planned: bool = False
    is_estimated: bool = False
    prediction: str = ""

    @classmethod
    def of_plan(cls, plan: Plan) -> PipelineSetting:
        """Return the setting that `plan` chose."""
        return cls(
            schedule_spec=plan.schedule_spec,
            partition=plan.partition,
            microbatch_size=plan.microbatch_size,
            compression=plan.compression,
            sharding=plan.sharding or LayerSharding(),
            dtype=plan.dtype,
            is_planned=True,
            is_estimated=plan.sharding is not None,
        )

    @classmethod
    def of_layout(cls, layout: TransformerLayout, prediction: str = "") -> PipelineSetting:
        """Return the setting of a layout of a transformer, with its seconds and memory in words for a comment."""
        precision = layout.sharding.precision
        return cls(
            schedule_spec=layout.order.schedule_spec(),
            partition=layout.partition,
            microbatch_size=layout.size,
            sharding=layout.sharding,
            dtype="bfloat16" if precision in LINEAR_BYTES else precision,
            is_planned=True,
            is_estimated=True,
            prediction=prediction,
        )

    @property
    def schedule(self) -> str:
        """The name of the schedule in the catalogue, or a fixed label for lists, whose own name is not for a script."""
        spec = self.schedule_spec
        return find(spec.name).name if spec.lists is None else "lists of your own"

    @cached_property
    def lists(self) -> Schedule:
        """The lists of one batch of one copy, in which nothing is recomputed."""
        return replace(self.schedule_spec, width=1, recompute=None).run(1).lists(1).held()

    @property
    def num_ranks(self) -> int:
        """Ranks of one copy."""
        return self.lists.num_ranks

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of one copy in a step."""
        return self.lists.num_microbatches

    @property
    def width(self) -> int:
        """Copies, which share every batch."""
        return self.schedule_spec.width

    @property
    def batch_size(self) -> int:
        """Samples of an optimizer step, over all copies."""
        return self.width * self.sharding.data * self.num_microbatches * self.microbatch_size

    @property
    def num_copies(self) -> int:
        """Copies of each stage that process different samples: pipelines times data-parallel groups inside a stage."""
        return self.width * self.sharding.data

    @property
    def recomputes(self) -> bool:
        """Whether every stage keeps only its input; `require_exportable` refuses a mix."""
        return bool(self.schedule_spec.recompute)

    @property
    def placement(self) -> Placement | None:
        """The ranks that are side by side on the devices, or None without a choice."""
        return self.schedule_spec.placement if self.width > 1 and self.num_ranks > 1 else None

    @property
    def size_text(self) -> str:
        """The number of processes and their roles, for a comment."""
        gpus = self.sharding.num_gpus
        shared = f"; {gpus} GPUs share the layers of a rank" if gpus > 1 else ""
        ranks = f"{self.width} x {self.num_ranks} ranks of {self.schedule}"
        return f"{self.width * self.num_ranks * gpus} processes: {ranks}{shared}"

    def advice(self, trainer: str, alone: str) -> str:
        """Return the advice if the trainer cannot run the schedule; `alone` is used for a setting without a plan."""
        name = trainer.lower().removesuffix("-lm")
        return f"try pipesched.plan with `trainer={name}`" if self.is_planned else alone

    def cut(self, layers: Sequence[_Layer]) -> list[Sequence[_Layer]]:
        """Return `layers` stage by stage."""
        return [layers[first:last] for first, last in pairwise(accumulate(self.partition, initial=0))]

    def require_exportable(self, trainer: str) -> None:
        """Refuse a setting that no trainer can express; errors name `trainer`.

        Raises:
            ArgumentError: Weight versions, averaging, compression, recomputation of some stages, or another number of
                stages than the schedule has.
            ScheduleError: The schedule does not exist.
        """
        traits = self.schedule_spec.traits
        if traits.is_asynchronous:
            raise ArgumentError(
                f"schedule: got {self.schedule}, which trains on stale weights, expected a flush before each step, as "
                f"{trainer} keeps no weight versions; {self.advice(trainer, 'try 1f1b')}"
            )
        if traits.averages:
            raise ArgumentError(
                f"schedule: got {self.schedule}, which averages several pipelines, expected one, as {trainer} has no "
                f"reference model; {self.advice(trainer, 'try 1f1b')}"
            )
        if self.compression is not None:
            raise ArgumentError(
                f"compression: got {self.compression}, expected none, as {trainer} does not compress messages; "
                f"{self.advice(trainer, 'leave it out')}"
            )
        require_at_least("microbatch_size", self.microbatch_size, 1)
        for num_layers in self.partition:
            require_at_least("partition", num_layers, 1)
        if len(self.partition) != self.lists.num_stages:
            raise ArgumentError(
                f"partition: got {len(self.partition)} stages, expected {self.lists.num_stages}, the stages of "
                f"{self.schedule}"
            )
        recompute = self.schedule_spec.recompute
        if recompute and recompute != "all" and set(recompute) != set(range(self.lists.num_stages)):
            raise ArgumentError(
                f"recompute: got stages {', '.join(map(str, recompute))}, expected all or none, as {trainer} has one "
                "rule for all; try `recompute=all`"
            )

    def require_copies_side_by_side(self, trainer: str) -> None:
        """Refuse ranks of a pipeline side by side, if there are several copies.

        Raises:
            ArgumentError: The ranks of a pipeline are side by side.
        """
        if self.placement == "pipeline":
            raise ArgumentError(
                f"placement: got pipeline, expected data, as {trainer} has the copies of a stage side by side; "
                "try `placement=data`"
            )

    def require_transformer(self, trainer: str) -> None:
        """Refuse a model without an embedding, a transformer layer and an output layer.

        Raises:
            ArgumentError: The model is too small.
        """
        if sum(self.partition) < 3:
            raise ArgumentError(
                f"partition: got {sum(self.partition)} layers, expected at least 3 for {trainer}: an embedding, a "
                "transformer layer, an output layer"
            )


TRANSFORMER_COMMENT = (
    "The model's first layer is its embedding, the last its output layer, all others are transformer layers."
)
"""The kinds of the layers of a partition for trainers that distinguish them."""


def recompute_comments(setting: PipelineSetting, num_layers: int) -> list[str]:
    """Return the differences between the recomputation of a trainer and of a setting.

    Args:
        setting: A setting with recomputation.
        num_layers: Transformer layers of which the trainer keeps only the input of the first.
    """
    layers = "transformer layer" if num_layers == 1 else f"{num_layers} transformer layers"
    comments = [f"Recomputation keeps the input of every {layers}; the setting keeps one input per stage."]
    if setting.schedule_spec.recompute_when == "early":
        comments += ["Recomputation runs inside the backward; the setting recomputes before the gradient has arrived."]
    return comments


def estimate_comments(setting: PipelineSetting, has: Mapping[str, Collection[object]], trainer: str) -> list[str]:
    """Return a line on the prediction, and one on the software that an estimate assumes and the trainer lacks.

    Args:
        setting: A setting.
        has: For some fields of `LayerSharding`, the values that the trainer supports. It supports all values of other
            fields.
        trainer: Name of the trainer.
    """
    values = {name: getattr(setting.sharding, name) for name in has} if setting.is_estimated else {}
    assumed = [f"{name}={value}" for name, value in values.items() if value not in has[name]]
    predicted = [f"Predicted: {setting.prediction}."] if setting.prediction else []
    lacks = [f"The estimate assumes, but {trainer} does not have: {', '.join(assumed)}."] if assumed else []
    return predicted + lacks


def bash_array(comments: Sequence[str], options: Sequence[Sequence[str]]) -> str:
    """Return `options` as a file that bash sources: an array PIPELINE_ARGS, an option with its values on each line."""
    lines = [*(f"# {comment}" for comment in comments), "PIPELINE_ARGS=("]
    return "\n".join([*lines, *(f"    {shlex.join(option)}" for option in options), ")", ""])
