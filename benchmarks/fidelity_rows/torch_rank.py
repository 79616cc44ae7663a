"""One rank of PyTorch's runtime under its profiler: ``-m fidelity_rows.torch_rank FOLDER MODEL MICROBATCH_SIZE``."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from rank_group import be_rank
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.profiler import ProfilerActivity, profile, schedule

import pipesched
from pipesched.profiles.measuring import computing
from pipesched.profiles.models import Model, build_layers, draw_batch, resolve_model

NUM_MICROBATCHES, NUM_RANKS, WARMUP = 8, 2, 2
SCHEDULES = {"1f1b": (Schedule1F1B, 1), "gpipe": (ScheduleGPipe, 1), "interleaved": (ScheduleInterleaved1F1B, 2)}
"""PyTorch's class, and the stages of a rank; the trace of the first schedule gives the costs."""


class Contiguous(nn.Sequential):
    """Layers with a contiguous output and a contiguous gradient of the input, as gloo needs them."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layers for `x`."""
        if x.requires_grad:
            x.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]  # torch has no types there
        for layer in self:
            x = layer(x)
        return x.contiguous()


def trace(name: str, rank: int, model: Model, microbatch_size: int, path: Path) -> None:
    """Run some steps of a schedule, and write the trace of the last."""
    kind, num_chunks = SCHEDULES[name]
    num_stages = NUM_RANKS * num_chunks
    size = len(model.layers) // num_stages
    indices = range(rank, num_stages, NUM_RANKS)
    layers = [build_layers(model, size * index, size * (index + 1), seed=0) for index in indices]
    stages = [
        PipelineStage(Contiguous(*several), index, num_stages, torch.device("cpu"))
        for several, index in zip(layers, indices, strict=True)
    ]
    runtime = kind(stages if num_chunks > 1 else stages[0], NUM_MICROBATCHES, loss_fn=model.loss)
    optimizer = torch.optim.AdamW([weight for several in layers for weight in several.parameters()])
    inputs, targets = draw_batch(model, microbatch_size * NUM_MICROBATCHES, 0)
    given = [inputs] if rank == 0 else []
    wanted = {"target": targets} if rank == NUM_RANKS - 1 else {}
    steps = schedule(wait=0, warmup=WARMUP, active=1, repeat=1)
    with pipesched.annotate(*stages), profile(activities=[ProfilerActivity.CPU], schedule=steps) as profiler:
        for _ in range(WARMUP + 1):
            dist.barrier()
            runtime.step(*given, **wanted)
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    profiler.export_chrome_trace(str(path))


def main(folder: Path, model: str, microbatch_size: int, rank: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the profiler prints
    with computing(threads=1):
        for name in SCHEDULES:
            trace(name, rank, resolve_model(model), microbatch_size, folder / f"{name}{rank}.json")


if __name__ == "__main__":
    be_rank(partial(main, Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
