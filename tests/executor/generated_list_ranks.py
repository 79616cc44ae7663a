"""One rank of generated lists: ``python -m tests.executor.generated_list_ranks FOLDER``.

The folder has a file per run, ``<schedule>.json``: [ranks, micro-batches]; each leaves its stages and their losses.
"""

import gc
import json
import os
import sys
from pathlib import Path

import torch

from pipesched.executor.core import HostClock, Recorder, build_stages, make_batch
from pipesched.executor.launch.rank_context import connected
from pipesched.executor.training import save_stages
from pipesched.executor.transport import find_shapes
from pipesched.schedules import repeat
from pipesched.schedules.builders import build, build_generated, find
from tests.executor.models import plain
from tests.executor.pipelines import CPU, even_bounds
from tests.executor.recurrences import LR

NUM_BATCHES = 3


def lists(name, num_ranks, num_microbatches):
    if find(name).build_generated is None:
        return repeat(build(name, num_ranks, num_microbatches // NUM_BATCHES), NUM_BATCHES)
    return build_generated(name, num_ranks, num_microbatches)


def run(name, num_ranks, num_microbatches, folder):
    schedule = lists(name, num_ranks, num_microbatches)
    model = plain(schedule.num_stages)
    bounds = even_bounds(schedule.num_stages, schedule.num_stages)
    losses, objects = {}, []

    def on_loss(microbatch, output, target, loss):
        losses[microbatch] = loss.item()
        if microbatch in (num_microbatches // 2, num_microbatches - 1):
            objects.append(len(gc.get_objects()))

    with connected(
        schedule, device="cpu", backend="gloo", threads=1, timeout_s=60.0, is_pinned=False,
        meet=f"file://{folder}/{name}.store",
    ) as context:  # fmt: skip
        stages = build_stages(
            schedule, context.rank, model, bounds,
            optimizer="momentum", lr=LR, seed=0, dtype=torch.float64, device=CPU, on_loss=on_loss,
        )  # fmt: skip
        batch = make_batch(model, num_microbatches, 2, seed=0, dtype=torch.float64, device=CPU)
        shapes = find_shapes(schedule, context.rank, stages, batch.inputs[0])
        me = context.join(schedule, stages, shapes, Recorder(HostClock(), keeps=False))
        context.run(me, batch)
    own = {s: stage for s, stage in stages.items() if schedule.replicas(s)[0] == context.rank}
    save_stages(folder / name, own)
    if losses:
        (folder / name).mkdir(exist_ok=True)
        (folder / name / f"losses{context.rank}.json").write_text(json.dumps([losses, objects]))


def main():
    folder = Path(sys.argv[1])
    for path in sorted(folder.glob("*.json")):
        run(path.stem, *json.loads(path.read_text()), folder)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # as pipesched.executor.__main__, and for its reason
