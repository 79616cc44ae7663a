"""PyTorch's own 1F1B on two processes, under its profiler: ``torchrun --nproc-per-node 2 torch_run.py``.

Writes ``rank0.json.gz`` and ``rank1.json.gz`` beside this file: a trace of each rank, of one step.
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.profiler import ProfilerActivity, profile, schedule

LAYERS, WIDTH, SAMPLES, MICROBATCHES, WARMUP = 4, 768, 128, 8, 2

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS))
stage = PipelineStage(nn.Sequential(*layers), rank, 2, torch.device("cpu"))
runtime = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.MSELoss())
optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.1)
batch = torch.randn(SAMPLES * MICROBATCHES, WIDTH)
steps = schedule(wait=0, warmup=WARMUP, active=1, repeat=1)
with profile(activities=[ProfilerActivity.CPU], schedule=steps) as profiler:
    for _ in range(WARMUP + 1):
        runtime.step(*([batch] if rank == 0 else []), **({"target": batch} if rank == 1 else {}))
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
profiler.export_chrome_trace(str(Path(__file__).with_name(f"rank{rank}.json.gz")))
dist.destroy_process_group()
