"""Draw the pictures of docs/asynchronous.md, and print its table: ``python docs/draw_asynchronous.py``, some minutes.

Every scheme trains the same network from the same weights on the same samples; times are predicted for equal stages,
F 1 s and B 2 s for what a rank does of a whole batch, steps and messages for nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent)]

import torch
from PIL import Image

from pipesched.executor.launch import RunSpec, Train
from pipesched.executor.runs import train_locally, training_of
from pipesched.executor.training import Trained
from pipesched.profiles.costs import uniform
from pipesched.profiles.models import resolve_model
from pipesched.profiles.partitioning import uniform_partition
from pipesched.schedules.builders import build_lazily
from pipesched.schedules.transforms import ScheduleSpec, TrainingRun
from pipesched.simulator.analysis import CellValue, to_markdown
from pipesched.simulator.fast import RunTime, run_time
from pipesched.simulator.views import Curve, draw_curves, draw_staleness

PICTURES = DOCS / "pictures" / "asynchronous"
MODEL, RANKS, BATCH_SIZE, STEPS = "digits:blocks=14", 8, 64, 300
SETTINGS = (("momentum", 0.01), ("adamw", 3e-4))
BASELINE, REFERENCE = "gpipe", "pipedream"
SCHEMES = (
    REFERENCE,
    "vanilla_1f1b",
    "pipedream_2bw",
    "wpipe",
    "spectrain",
    "xpipe",
    "pipeoptim",
    "stale_weights",
    "hybrid",
    "1f1b_rr",
)
APART = ("hybrid", "1f1b_rr")
"""Drawn only on their own: the first takes four times as long, the second has other stages."""
APART = ("hybrid", "1f1b_rr")
"""Drawn only on their own: the first takes four times as long, the second has other stages."""
FEW_RANKS, FEW_MICROBATCHES = 4, 16
"""Of the pictures of staleness."""


def main() -> None:
    """Draw everything."""
    torch.set_num_threads(1)
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in SCHEMES:
        lists = build_lazily(name, FEW_RANKS, FEW_MICROBATCHES)
        title = f"{name}, {FEW_RANKS} ranks, {FEW_MICROBATCHES} micro-batches"
        draw_staleness(lists, PICTURES / f"{name}-staleness.png", FEW_MICROBATCHES, title)
    rows: dict[str, dict[str, CellValue]] = {name: {"scheme": name} for name in (BASELINE, *SCHEMES)}
    for optimizer, lr in SETTINGS:
        curves = {}
        for name, row in rows.items():
            recipe = ScheduleSpec(name=name, num_ranks=RANKS, num_microbatches=RANKS)
            run = recipe.run(STEPS)
            trained, time = trained_with(recipe, optimizer, lr), predicted(run)
            curves[name] = curve(run, trained, time)
            row |= {"predicted run [s]": round(time.makespan_s)} | cells(trained, optimizer)
        draw(curves, f"digits, {optimizer} {lr:g}, {RANKS} ranks", optimizer)
    for path in PICTURES.glob("*.png"):
        shrink(path)
    print(to_markdown(list(rows.values())))


def trained_with(recipe: ScheduleSpec, optimizer: str, lr: float) -> Trained:
    """Train the network under one schedule."""
    model, lists = resolve_model(MODEL), recipe.run(STEPS).lists(STEPS)
    spec = RunSpec(
        job=Train(recipe=recipe, num_steps=STEPS, batch_size=BATCH_SIZE),
        model=MODEL,
        bounds=uniform_partition(len(model.layers), lists.num_stages),
        optimizer=optimizer,
        lr=lr,
    )
    return train_locally(lists, training_of(spec, torch.device("cpu"), model))


def predicted(run: TrainingRun) -> RunTime:
    """Return the times on equal ranks."""
    num_stages = run.lists(STEPS).num_stages
    costs = uniform(num_stages, RANKS / num_stages, 2 * RANKS / num_stages).of_share(1 / run.microbatches_per_step)
    return run_time(run.lists, STEPS, run.microbatches_per_step, costs)


def curve(run: TrainingRun, trained: Trained, time: RunTime) -> Curve:
    """Return what is drawn of a run."""
    losses = tuple(scores.loss for scores in trained.steps)
    times_s = tuple(time.at_s(step) for step in range(len(losses)))
    return Curve(run.name, losses, times_s, has_diverged=trained.diverged is not None)


def cells(trained: Trained, optimizer: str) -> dict[str, CellValue]:
    """Return the mean loss of the last tenth of the steps, and the accuracy on held-out scans."""
    tail = trained.steps[-STEPS // 10 :]
    if trained.held_out is None or trained.held_out.accuracy is None:
        return {f"{optimizer}: loss": f"diverged: {trained.diverged}", f"{optimizer}: accuracy": None}
    loss = sum(scores.loss for scores in tail) / len(tail)
    return {f"{optimizer}: loss": round(loss, 3), f"{optimizer}: accuracy": f"{trained.held_out.accuracy:.1%}"}


def draw(curves: dict[str, Curve], title: str, optimizer: str) -> None:
    """Draw all curves at once, and each scheme's beside those that it is measured by."""
    together = [curve for name, curve in curves.items() if name not in APART]
    draw_curves(together, PICTURES / f"all-{optimizer}.png", title)
    if optimizer != SETTINGS[0][0]:
        return
    for name in SCHEMES:
        shown = dict.fromkeys((BASELINE, REFERENCE, name))
        draw_curves([curves[each] for each in shown], PICTURES / f"{name}-curve.png", title)


def shrink(path: Path) -> None:
    """Store a picture with a palette, which takes a third of the bytes."""
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(128)
    small.save(path, optimize=True)


if __name__ == "__main__":
    main()
