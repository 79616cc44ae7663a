"""The words that say how ranks run together, and the limits of a run."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Literal, TypeAlias

from pipesched.schedules import PredictionRule, shown

How: TypeAlias = Literal["sleep", "busy"]
"""Asleep, an emulated stage leaves its core to others; busy, it keeps it."""


TransportKind: TypeAlias = Literal["auto", "processes", "streams"]
"""A process per rank, or all ranks in one process, each on a stream of its GPU."""


Averaging: TypeAlias = Literal["asynchronous", "synchronous"]
"""Elastically, as executor.averaging.elastic_averager says."""


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What ends a run early; held back while its processes are being started."""


PAUSE_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""What lets a training run with checkpoints write one and leave."""


PAUSED = 75
"""The exit code of a training run that has left so: what sysexits.h calls a temporary failure, to be tried again."""


STACKS = signal.SIGUSR2
"""What lets a rank write the Python stacks of its threads."""


LAST_STACKS = signal.SIGVTALRM
"""What lets a rank that is stopped write them when it goes on, and ends it right behind them, as nobody handles it."""


LAUNCHER_S = 2.0
"""How much later than its launcher, which sees all ranks, a rank finds that it has waited too long [s]."""


START_S = 300.0
"""How long the ranks may take to get ready for their lists [s]: importing, building, meeting."""


def cut_fault(bounds: Sequence[tuple[int, int]], num_layers: int | None = None) -> str | None:
    """Return the first stage whose layers do not continue a cut of the model; None if every layer has one stage.

    Args:
        bounds: Half-open range of layers of every stage.
        num_layers: Layers of the model; None where that is not known.
    """
    begin, most = 0, 2**31 - 1 if num_layers is None else num_layers
    for stage, (first, last) in enumerate(bounds):
        if first != begin or not first < last <= most:
            limit = "a larger number" if num_layers is None else f"a larger number up to {most}"
            return (
                f"got layers {shown(first)} to {shown(last)} (exclusive) on stage {stage}, expected layers {begin} to "
                f"{limit}; give every layer to one stage, in order"
            )
        begin = last
    if num_layers is None or begin == num_layers:
        return None
    return (
        f"got {begin} layers on {len(bounds)} stages, expected all {num_layers} of the model; give every layer to one"
    )


def epsilon_fault(dtype: str, optimizer: str, rule: PredictionRule | None = None) -> str | None:
    """Return what is wrong with training so; None if nothing is.

    Adam divides by the root of its second moment plus an epsilon of 1e-8. In float16 that is 0, and so is the moment
    where gradients are small: after a step the weights are no numbers.

    Args:
        optimizer: Name in `OPTIMIZERS`.
        rule: Rule by which weights are predicted; Adam's has moments of its own beside another optimizer.
    """
    adam = (
        optimizer
        if optimizer in ("adam", "adamw")
        else "Adam's rule of prediction"
        if rule is PredictionRule.ADAM
        else None
    )
    if dtype != "float16" or adam is None:
        return None
    other = "`optimizer=momentum`" if adam == optimizer else "`prediction=momentum`"
    return (
        f"got float16 with {adam}, whose epsilon of 1e-08 is 0 in it, expected bfloat16, float32 or float64; "
        f"try bfloat16, or {other}"
    )
