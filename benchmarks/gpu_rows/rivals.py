"""Step times beside torch.distributed.pipelining, with the same stages in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from torch.testing._internal.distributed.fake_pg import FakeStore

from gpu_rows.card import Card
from gpu_rows.row import Row
from gpu_rows.whole_model import even_bounds, streams_on
from pipesched.executor import RunSettings
from pipesched.executor.core import Batch, build_stages, make_batch
from pipesched.executor.runs import local_ranks, run_local
from pipesched.profiles import Dtype
from pipesched.profiles.models import Model, build_layers, resolve_model, tensors_of, torch_dtype
from pipesched.profiles.models.torch_names import make_optimizer
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower

NUM_MICROBATCHES, LR = 8, 1e-3
WIDTHS = {"short ops": (256, 64), "medium ops": (4096, 1024), "long ops": (4096, 4096)}
"""Width of the layers, and samples of a micro-batch."""
Step = Callable[[], None]


def lines(card: Card) -> Iterator[str]:
    """Yield the lines of this row's section."""
    yield "One process has two stages on one device, without messages between processes: NCCL refuses two ranks on one"
    yield "GPU, so `torch.distributed.pipelining` cannot run two ranks here. Both run interleaved 1F1B on one rank;"
    yield "pipesched also runs 1F1B with two ranks on two streams. Median step, steps in turn."
    yield ""
    yield "| stages | torch | pipesched, 1 rank | pipesched, 2 streams | pipesched / torch |"
    yield "|---|---|---|---|---|"
    begins = not dist.is_initialized()
    if begins:
        # torch 2.11 sends to the neighbours of each stage, also on this rank, which only the fake backend supports
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        yield from card.rows(card.pick([*WIDTHS], ["short ops"]), partial(_row, card), 6.0)
    finally:
        if begins:
            dist.destroy_process_group()


def _row(card: Card, case: str) -> str:
    width, size = card.pick(WIDTHS[case], (32, 8))
    name: Dtype = card.pick("bfloat16", "float32")
    model, dtype = resolve_model(f"mlp:layers=8,width={width}"), torch_dtype(name)
    batch = make_batch(model, NUM_MICROBATCHES, size, seed=0, dtype=dtype, device=card.device)
    steps = [
        _their_step(model, batch, dtype, card.device),
        _our_step(model, batch, name, card.device, "interleaved", 1),
        _our_step(model, batch, name, card.device, "1f1b", 2),
    ]
    seconds: list[list[float]] = [[] for _ in steps]
    for turn in range(card.pick(20, 4)):
        for step, taken in zip(steps, seconds, strict=True):
            card.synchronize()
            begun_s = time.perf_counter()
            step()
            card.synchronize()
            if turn >= 2:
                taken.append(time.perf_counter() - begun_s)
    torch_s, *own_s = map(statistics.median, seconds)
    cells = " | ".join(f"{taken * 1e3:.2f} ms" for taken in (torch_s, *own_s))
    return f"| {case}: width {width}, {size} samples | {cells} | {own_s[0] / torch_s:.3f} |"


def _our_step(model: Model, batch: Batch, dtype: Dtype, device: torch.device, name: str, num_ranks: int) -> Step:
    schedule = lower(build(name, num_ranks, NUM_MICROBATCHES, 2 if name == "interleaved" else None))
    bounds = even_bounds(len(model.layers), schedule.num_stages)
    settings = RunSettings(optimizer="sgd", lr=LR, dtype=dtype)
    ranks = local_ranks(
        schedule,
        lambda rank: build_stages(schedule, rank, model, bounds, settings, device),
        streams=streams_on(device, num_ranks),
    )

    def step() -> None:
        run_local(ranks, batch)

    return step


def _their_step(model: Model, batch: Batch, dtype: torch.dtype, device: torch.device) -> Step:
    modules = [
        build_layers(model, *cut, seed=0, dtype=dtype, device=device) for cut in even_bounds(len(model.layers), 2)
    ]
    stages: list[Any] = [PipelineStage(module, index, 2, device) for index, module in enumerate(modules)]
    schedule = ScheduleInterleaved1F1B(stages, NUM_MICROBATCHES, loss_fn=model.loss)
    optimizers = [make_optimizer("sgd", list(module.parameters()), LR) for module in modules]
    x, y = (
        torch.cat([tensor for value in part for tensor in tensors_of(value)]) for part in (batch.inputs, batch.targets)
    )

    def step() -> None:
        schedule.step(x, target=y, losses=[])
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


ROW = Row("Step time beside PyTorch's pipelining", "no longer than PyTorch's, where both can run", 35.0, lines)
