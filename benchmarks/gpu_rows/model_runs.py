"""Runs of GPTs on streams of one device, each beside its prediction; several rows share them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import median
from typing import Any

import torch

import pipesched
from gpu_rows.card import Card
from pipesched import CATALOGUE, Profile, Schedule, build
from pipesched.executor.core import green_streams
from pipesched.executor.launch import RunSpec
from pipesched.executor.runs import Measured, RankListener, measure_on_streams
from pipesched.profiles import Dtype
from pipesched.profiles.models import Model, resolve_model
from pipesched.questions import MeasureSettings
from pipesched.schedules import Timeline
from pipesched.schedules.ops import Compute
from pipesched.simulator.fidelity import ErrorSplit
from pipesched.simulator.memory import peak_memory
from pipesched.workflows.arguments import read_schedule_argument
from pipesched.workflows.measuring import modelled_spec
from pipesched.workflows.simulating import Setup, predict_source
from pipesched.workflows.timelines import explain_error
from pipesched.workflows.verifying.verified_schedule import with_buffers_of


@dataclass(frozen=True, slots=True)
class Case:
    """A schedule of a model on one device.

    Attributes:
        model: The model's name.
        size: Samples of a micro-batch.
        name: The schedule's name.
        num_ranks: Ranks.
        num_microbatches: Micro-batches.
        own: Whether each rank has a device of its own in the prediction; otherwise all ranks share one device.
        settings: Further settings of the run, such as ``has_green_contexts``.
    """

    model: str
    size: int
    name: str
    num_ranks: int
    num_microbatches: int = 8
    own: bool = False
    settings: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        more = "".join(f", {name.removeprefix('has_').replace('_', ' ')}" for name, _ in self.settings)
        return f"{self.label}, {self.name}, {self.num_ranks} ranks{more}"

    @property
    def label(self) -> str:
        """The model's parameters, in millions."""
        return f"{num_parameters(self.model) / 1e6:.3g} M"

    @property
    def num_shares(self) -> int:
        """Shares of the device's processors, one for each rank with green contexts."""
        return self.num_ranks if self.settings else 1

    @property
    def schedule(self) -> Schedule:
        """The lists, with two stages per rank if the schedule takes chunks."""
        chunks = 2 if CATALOGUE[self.name].traits.takes_chunks else None
        schedule = build(self.name, self.num_ranks, self.num_microbatches, chunks)
        return schedule if self.own else replace(schedule, rank_to_device=(0,) * schedule.num_ranks)


@dataclass(frozen=True, slots=True)
class Verified:
    """A run beside its prediction.

    Attributes:
        predicted: The prediction.
        measured: The run.
        split: The parts of the makespan's error; None where it cannot be split.
    """

    predicted: Timeline
    measured: Measured
    split: ErrorSplit | None = field(default=None)

    @property
    def makespan_error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted.makespan_s / self.makespan_s - 1

    @property
    def makespan_s(self) -> float:
        """Median makespan [s]."""
        return self.measured.timeline.makespan_s

    @property
    def op_s(self) -> float:
        """Median time of an op that computes [s]."""
        spans = self.measured.timeline.spans
        return median(span.end_s - span.start_s for span in spans if isinstance(span.op, Compute))

    @property
    def memory_errors(self) -> Mapping[int, tuple[int, float]]:
        """Measured peak [bytes] and (predicted - measured) / measured, of each device."""
        predicted, measured = (peak_memory(timeline.memory) for timeline in (self.predicted, self.measured.timeline))
        return {
            device: (peak.total_bytes, predicted[device].total_bytes / peak.total_bytes - 1)
            for device, peak in measured.items()
        }


@cache
def num_parameters(model: str) -> int:
    """Return the number of parameters of a model, without an allocation on a device."""
    with torch.device("meta"):
        layers = [build_layer() for build_layer in resolve_model(model).layers]
    return sum(parameter.numel() for layer in layers for parameter in layer.parameters())


def settings_of(card: Card, **more: Any) -> MeasureSettings:
    """Return the settings of all runs on this device."""
    dtype: Dtype = "float32" if card.is_dry else "bfloat16"
    return MeasureSettings(device=card.kind, transport="streams", dtype=dtype, **more)


@cache
def profiled(
    card_kind: str, dtype: str, model: str, sizes: tuple[int, ...], num_shares: int = 1, *, splits: bool = False
) -> Profile:
    """Profile a model once, on one of some shares of the device's processors.

    Args:
        card_kind: ``cuda`` or ``cpu``.
        dtype: Type of weights and activations.
        model: The model's name.
        sizes: Samples of a micro-batch.
        num_shares: Shares of the device's processors.
        splits: Whether to measure I and W too.
    """
    few = {"repeats": 5, "warmup": 2} if card_kind == "cuda" else {"repeats": 1, "warmup": 1}
    how: dict[str, Any] = {"device": card_kind, "dtype": dtype, "splits": splits} | few
    whole = num_shares == 1
    with nullcontext() if whole else torch.cuda.stream(green_streams(torch.device(card_kind, 0), num_shares)[0]):
        return pipesched.profile(model, list(sizes), **how).profile


def streamed(spec: RunSpec, model: Model | None = None) -> Measured:
    """Run all ranks in this process, on streams, without callbacks."""
    return measure_on_streams(spec, lambda rank: RankListener(), model)  # noqa: ARG005


_VERIFIED: dict[tuple[str, Case], Verified] = {}


def verified(card: Card, case: Case) -> Verified:
    """Return a case predicted and run; a case is run once."""
    if (card.kind, case) not in _VERIFIED:
        _VERIFIED[card.kind, case] = _verified(card, case)
    return _VERIFIED[card.kind, case]


def _verified(card: Card, case: Case) -> Verified:
    counts = {"iterations": card.pick(3, 2), "warmup": card.pick(2, 1)}
    settings, source = settings_of(card, **dict(case.settings), **counts), read_schedule_argument(case.schedule)
    profile = profiled(
        card.kind, settings.dtype, case.model, (max(1, case.size // 4), case.size), case.num_shares,
        splits=source.schedule.columns.splits_backward,
    )  # fmt: skip
    setup = Setup(costs=profile, microbatch_size=case.size, partition="balanced")
    setup = with_buffers_of(settings, setup)
    prediction = predict_source(source, setup)
    bounds = setup.bounds_of(source)
    measured = streamed(modelled_spec(source.schedule, case.model, bounds, case.size, settings))
    split = explain_error(measured.timeline, prediction.timeline).split
    return Verified(prediction.timeline, measured, split)
