"""Measure the layers of a model on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pipesched.profiles import DeviceKind, Dtype, OptimizerName
from pipesched.profiles.costs import median_profile
from pipesched.workflows import (
    ArgumentError,
    require_at_least,
    require_callable,
    require_each_at_least,
    require_flag,
)
from pipesched.workflows.arguments import ModelArgument, read_model_argument, read_settings, require_possible
from pipesched.workflows.measuring.profile_result import ProfileMeasurement


def profile(
    model: ModelArgument,
    microbatch_sizes: Sequence[int] = (1, 2, 4),
    *,
    repeats: int = 10,
    warmup: int = 3,
    passes: int = 1,
    companions: int = 0,
    pipelines: int = 1,
    optimizer: OptimizerName = "adamw",
    dtype: Dtype = "float32",
    device: DeviceKind = "cpu",
    threads: int = 1,
    seed: int = 0,
    splits: bool = True,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> ProfileMeasurement:
    """Measure seconds and bytes of every layer of a model at several micro-batch sizes.

    Args:
        model: A Model, or a name: ``gpt``, ``conv``, ``lstm``, ``digits``, ``mlp``, with arguments as in
            ``mlp:layers=8,width=64``, or ``module:function``.
        microbatch_sizes: Samples; costs are known from the smallest to the largest.
        repeats: Measured runs, of which the median counts.
        warmup: Runs before them.
        passes: Repetitions of the whole measurement, so that a slow moment of the machine does not distort one layer.
            Each number is the median of the passes.
        companions: Processes that keep other cores busy meanwhile, as other ranks would.
        pipelines: Most parallel pipelines. The slowdown of 2 to this many processes on one core is measured too, and
            counts in simulations. On a GPU they share by utilisation.
        optimizer: ``sgd``, ``momentum``, ``adam`` or ``adamw``.
        dtype: ``float32``, ``float64``, ``bfloat16`` or ``float16``.
        device: ``cpu`` or ``cuda``.
        threads: CPU threads of one operation.
        seed: Seed of weights and data.
        splits: Whether to measure the two halves of the backward too, which only some schedules need.
        progress: Receives the finished fraction now and then.

    Raises:
        ArgumentError: The device does not exist, or an argument makes no sense.
        ProfileError: The model does not exist or fails, or an argument is out of range.
    """
    settings = read_settings(
        {"optimizer": optimizer, "dtype": dtype, "device": device, "threads": threads, "seed": seed}
    )
    repeats = require_at_least("repeats", repeats, 1)
    warmup = require_at_least("warmup", warmup, 0)
    passes = require_at_least("passes", passes, 1)
    companions = require_at_least("companions", companions, 0)
    pipelines = require_at_least("pipelines", pipelines, 1)
    require_flag("splits", splits)
    require_callable("progress", progress)
    microbatch_sizes = require_each_at_least("microbatch_sizes", microbatch_sizes, 1)
    if pipelines > 1 and device != "cpu":
        raise ArgumentError(f"pipelines: got {pipelines} with device {device!r}, expected 1; leave it out")
    require_possible(settings)
    from pipesched.profiles.measuring import measure_sharing, profile_model
    from pipesched.profiles.models import torch_dtype

    built = read_model_argument(model)
    num_parts = passes + (pipelines > 1)

    def tick(index: int) -> Callable[[int, int, str], None]:
        return lambda done, total, text: progress((index + done / total) / num_parts)  # noqa: ARG005

    profiles = [
        profile_model(
            built,
            microbatch_sizes=microbatch_sizes,
            repeats=repeats,
            warmup=warmup,
            optimizer=optimizer,
            dtype=torch_dtype(dtype),
            device=device,
            threads=threads,
            companions=companions,
            seed=seed,
            splits=splits,
            progress=tick(index),
        )
        for index in range(passes)
    ]
    measured_profile = median_profile(*profiles)
    measured_profile = replace(
        measured_profile, provenance=replace(measured_profile.provenance, repeats=passes * repeats)
    )
    if pipelines > 1:
        prices = measure_sharing(
            built,
            microbatch_sizes=measured_profile.microbatch_sizes,
            num_processes=pipelines,
            repeats=passes * repeats,
            dtype=torch_dtype(dtype),
            threads=threads,
            seed=seed,
            progress=lambda fraction: progress((passes + fraction) / num_parts),
        )
        measured_profile = replace(measured_profile, sharing=prices)
    return ProfileMeasurement(measured_profile)
