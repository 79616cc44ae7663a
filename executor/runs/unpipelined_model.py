"""The un-pipelined model, whose losses are the reference of every run."""

from __future__ import annotations

import torch

from pipesched.executor.core import LayerGenerators, make_batch
from pipesched.executor.launch import Measure, RunSpec
from pipesched.profiles.models import Model, build_layers, kept_random_state, resolve_model, torch_dtype
from pipesched.schedules.formats import from_json


@kept_random_state()
def whole_model_losses(spec: RunSpec, model: Model | None = None) -> tuple[float, ...]:
    """Return the mean loss of every micro-batch of a measured run, from the initial weights, without a pipeline.

    Args:
        spec: Specification of the run.
        model: The model of the run (default: looked up by name).
    """
    job = spec.job
    assert isinstance(job, Measure), "of this kind"
    assert spec.model is not None, "an emulated run has no losses"
    model = model or resolve_model(spec.model)
    dtype, device = torch_dtype(spec.dtype), torch.device(spec.device)
    num_microbatches = from_json(job.schedule, "the job's schedule").num_microbatches
    batch = make_batch(model, num_microbatches, job.microbatch_size, seed=spec.seed, dtype=dtype, device=device)
    module = build_layers(model, 0, len(model.layers), seed=spec.seed, dtype=dtype, device=device)
    draws = LayerGenerators(module, 0, spec.seed, device)
    draws.begin()
    losses = []
    for microbatch, (x, y) in enumerate(zip(batch.inputs, batch.targets, strict=True)):
        with torch.no_grad(), draws.of(microbatch):
            losses.append(model.loss(module(x), y).item())
    return tuple(losses)
