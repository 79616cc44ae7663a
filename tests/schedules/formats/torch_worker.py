"""One rank of PyTorch's own runtime: loads schedule CSVs, steps each once in float64, saves gradients and losses."""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from pipesched.profiles.models import build_layers, resolve_model
from tests.executor.pipelines import even_bounds

GROUPS = ([0, 1], [2, 3], [0, 1, 2, 3])


def step(folder, group, name, file_format, model, num_stages, num_microbatches, stages):
    """Run one CSV and save gradients and losses; `stages` are those of each rank of the group."""
    rank = dist.get_rank(group)
    model, held = resolve_model(model), stages[rank]
    bounds = even_bounds(len(model.layers), num_stages)
    modules = {stage: build_layers(model, *bounds[stage], seed=0, dtype=torch.float64) for stage in held}
    cpu = torch.device("cpu")
    pipeline = [PipelineStage(module, stage, num_stages, cpu, group=group) for stage, module in modules.items()]
    runtime = _PipelineScheduleRuntime(pipeline, num_microbatches, loss_fn=model.loss)
    runtime._load_csv(str(folder / f"{name}.csv"), format=file_format)
    inputs, targets = (data.double() for data in model.batch(2 * num_microbatches, 0))
    losses = []
    last = {"target": targets} if num_stages - 1 in held else {}
    runtime.step(*([inputs] if 0 in held else []), losses=losses, return_outputs=False, **last)
    tensors = {f"{stage}.{key}": p.grad for stage, module in modules.items() for key, p in module.named_parameters()}
    tensors |= {f"loss.{number}": loss.detach().clone() for number, loss in enumerate(losses)}
    save_file(tensors, folder / f"{name}-{rank}.safetensors")


def main(arguments):
    folder, rank = Path(arguments[0]), int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=4)
    groups = [dist.new_group(ranks) for ranks in GROUPS]
    for number, case in json.loads((folder / "cases.json").read_text()):
        if rank in GROUPS[number]:
            step(folder, groups[number], *case)
    dist.barrier()
    return 0
