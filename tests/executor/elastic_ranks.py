"""One rank of pipelines that are averaged: ``python -m tests.executor.elastic_ranks FOLDER``, RANK and WORLD_SIZE set.

All cases one after the other in the same processes; the weights after each iteration go to FOLDER/CASE.RANK.ITERATION.
"""

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from pipesched.executor.core import HostClock, Recorder, build_stages, make_batch
from pipesched.executor.launch import references
from pipesched.executor.launch.rank_context import connected
from pipesched.executor.transport import find_shapes
from pipesched.profiles.models import resolve_model
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from tests.executor.pipelines import CPU, MLP, even_bounds

ITERATIONS, NUM_MICROBATCHES, SIZE = 3, 8, 2
CASES = [(2, 2, "adam", "synchronous"), (2, 2, "momentum", "asynchronous"), (1, 4, "adamw", "asynchronous")]
"""K ranks of N pipelines, the optimizer, the form."""


def run(folder, index):
    k, n, optimizer, averaging = CASES[index]
    schedule, model = lower(build("avgpipe", k, NUM_MICROBATCHES, pipelines=n)), resolve_model(MLP)
    batch = make_batch(model, NUM_MICROBATCHES, SIZE, seed=0, dtype=torch.float64, device=CPU)
    meet = f"file://{folder}/store{index}"
    with connected(schedule, device="cpu", backend="gloo", threads=1, timeout_s=60.0, meet=meet) as context:
        stages = build_stages(
            schedule, context.rank, model, even_bounds(len(model.layers), k),
            optimizer=optimizer, lr=0.05, seed=0, dtype=torch.float64, device=CPU,
        )  # fmt: skip
        shapes = find_shapes(schedule, context.rank, stages, batch.inputs[0])
        me = context.join(schedule, stages, shapes, Recorder(HostClock()))
        (stage,) = stages.values()
        with references(schedule, context, stages, averaging):
            for iteration in range(ITERATIONS):
                context.run(me, batch)
                stage.averager._pool.has(context.rank % k, iteration + 1)
                kinds = {"model": stage.parameters, "reference": stage.averager._reference}
                held = {f"{kind}{i}": p.detach().clone() for kind, them in kinds.items() for i, p in enumerate(them)}
                save_file(held, str(folder / f"{index}.{context.rank}.{iteration}"))
                context.meet()


if __name__ == "__main__":
    for number in range(len(CASES)):
        run(Path(sys.argv[1]), number)
    os._exit(0)  # as pipesched.executor.__main__, and for its reason
