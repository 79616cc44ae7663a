"""One rank that runs PyTorch's own schedules under its profiler."""

import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.profiler import ProfilerActivity, profile, schedule

import pipesched

WIDTH, MICROBATCHES, STEPS = 32, 4, 2
KINDS = {
    "gpipe": (ScheduleGPipe, (0,), (1,), False),
    "1f1b": (Schedule1F1B, (0,), (1,), False),
    "annotated": (Schedule1F1B, (0,), (1,), True),
    "interleaved": (ScheduleInterleaved1F1B, (0, 2), (1, 3), True),
    "zbv": (ScheduleZBVZeroBubble, (0, 3), (1, 2), False),
}
"""The schedule, the stages of rank 0, those of rank 1, and whether the passes are named by us."""


def trace(name, rank, folder):
    kind, *stages_of, is_annotated = KINDS[name]
    num_stages = sum(map(len, stages_of))
    stages = [
        PipelineStage(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()), index, num_stages, torch.device("cpu"))
        for index in stages_of[rank]
    ]
    runtime = kind(stages if num_stages > 2 else stages[0], MICROBATCHES, loss_fn=nn.MSELoss())
    optimizer = torch.optim.SGD([p for stage in stages for p in stage.submod.parameters()], lr=0.1)
    batch = torch.randn(8 * MICROBATCHES, WIDTH)
    inputs = [batch] if 0 in stages_of[rank] else []
    target = {"target": batch} if num_stages - 1 in stages_of[rank] else {}
    steps = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    annotated = pipesched.annotate(*stages) if is_annotated else nullcontext()
    with annotated, profile(activities=[ProfilerActivity.CPU], schedule=steps) as profiler:
        for _ in range(1 + STEPS):
            runtime.step(*inputs, **target)
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    profiler.export_chrome_trace(f"{folder}/{name}{rank}.json" + (".gz" if name == "zbv" else ""))


def main(arguments):
    folder, rank = arguments[0], int(os.environ["RANK"])
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for name in KINDS:
        trace(name, rank, folder)
    dist.barrier()
    return 0
