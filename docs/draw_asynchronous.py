"""Draw the pictures of docs/asynchronous.md, and print its predicted times: ``python docs/draw_asynchronous.py``.

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
from pipesched.schedules.transforms import ScheduleSpec
from pipesched.simulator.analysis import to_markdown
from pipesched.simulator.views import Curve, learning_curve_figure, save_figure, staleness_figure

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
    run_s: dict[str, float | None] = {}
    for optimizer, lr in SETTINGS:
        curves = {}
        for name in (BASELINE, *SCHEMES):
            result = pipesched.train(
                MODEL,
                ScheduleSpec(name=name, num_ranks=RANKS, num_microbatches=RANKS),
                num_steps=STEPS,
                batch_size=BATCH_SIZE,
                costs=COST,
                optimizer=optimizer,
                lr=lr,
            )
            curves[name] = result.curve
            run_s[name] = result.summary().run_s
        draw(curves, f"digits, {optimizer} {lr:g}, {RANKS} ranks", optimizer)
    for path in PICTURES.glob("*.png"):
        shrink(path)
    print(to_markdown([{"scheme": name, "predicted run [s]": seconds} for name, seconds in run_s.items()]))


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
