"""Draw the pictures of docs/asynchronous.md, and print its table: ``python docs/draw_asynchronous.py``, some minutes.

Every scheme trains the same network from the same weights on the same samples; times are predicted for equal stages,
F 1 s and B 2 s for what a rank does of a whole batch, steps and messages for nothing.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent)]

from PIL import Image

import pipesched
from pipesched.schedules.builders import build_generated
from pipesched.simulator.analysis import CellValue, to_markdown
from pipesched.simulator.views import Curve, learning_curve_figure, save_figure, staleness_figure
from pipesched.workflows.training import TrainingResult

PICTURES = DOCS / "pictures" / "asynchronous"
MODEL, RANKS, BATCH_SIZE, STEPS = "digits:blocks=14", 8, 64, 300
SETTINGS = (("momentum", 0.01), ("adamw", 3e-4))
COST = pipesched.DeviceCost(forward_s=1.0, backward_s=2.0)
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
FEW_RANKS, FEW_MICROBATCHES = 4, 16
"""Of the pictures of staleness."""


def main() -> None:
    """Draw all pictures of the page on asynchronous schedules."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in SCHEMES:
        lists = build_generated(name, FEW_RANKS, FEW_MICROBATCHES)
        title = f"{name}, {FEW_RANKS} ranks, {FEW_MICROBATCHES} micro-batches"
        save_figure(partial(staleness_figure, lists, FEW_MICROBATCHES, title), PICTURES / f"{name}-staleness.png")
    rows: dict[str, dict[str, CellValue]] = {name: {"scheme": name} for name in (BASELINE, *SCHEMES)}
    for optimizer, lr in SETTINGS:
        curves = {}
        for name, row in rows.items():
            result = pipesched.train(
                MODEL,
                pipesched.ScheduleSpec(name=name, num_ranks=RANKS, num_microbatches=RANKS),
                num_steps=STEPS,
                batch_size=BATCH_SIZE,
                costs=COST,
                optimizer=optimizer,
                lr=lr,
            )
            curves[name] = result.curve
            row |= cells(result, optimizer)
        draw(curves, f"digits, {optimizer} {lr:g}, {RANKS} ranks", optimizer)
    for path in PICTURES.glob("*.png"):
        shrink(path)
    print(to_markdown(list(rows.values())))


def cells(result: TrainingResult, optimizer: str) -> dict[str, CellValue]:
    """Return the predicted time, the mean loss of the last tenth of the steps, and the accuracy on held-out scans."""
    row, outcome = result.summary(), f"diverged at step {result.diverged_at}"
    assert row.run_s is not None, "its costs are known"
    loss = outcome if row.training_loss is None else round(row.training_loss, 3)
    accuracy = None if row.held_out_accuracy is None else f"{row.held_out_accuracy:.1%}"
    return {"predicted run [s]": round(row.run_s), f"{optimizer}: loss": loss, f"{optimizer}: accuracy": accuracy}


def draw(curves: dict[str, Curve], title: str, optimizer: str) -> None:
    """Draw all curves at once, and each scheme's beside those that it is measured by."""
    together = [curve for name, curve in curves.items() if name not in APART]
    save_figure(lambda: learning_curve_figure(together, title), PICTURES / f"all-{optimizer}.png")
    if optimizer != SETTINGS[0][0]:
        return
    for name in SCHEMES:
        shown = dict.fromkeys((BASELINE, REFERENCE, name))
        own = [curves[name] for name in shown]
        save_figure(partial(learning_curve_figure, own, title), PICTURES / f"{name}-curve.png")


def shrink(path: Path) -> None:
    """Store a picture with a palette, which takes a third of the bytes."""
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(128)
    small.save(path, optimize=True)


if __name__ == "__main__":
    main()
