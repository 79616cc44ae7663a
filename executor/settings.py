"""Names of the ways in which ranks run together, and the limits of a run."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Literal, TypeAlias

from pipesched.schedules import PredictionRule
from pipesched.schedules.common import shown

How: TypeAlias = Literal["sleep", "busy"]
"""A sleeping emulated stage leaves its core to others; a busy one keeps it."""


TransportKind: TypeAlias = Literal["auto", "processes", "streams"]
"""A process per rank, or all ranks in one process, each on a stream of its GPU."""


Averaging: TypeAlias = Literal["asynchronous", "synchronous"]
"""Forms of elastic averaging, as in executor.averaging.elastic_averager."""


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that end a run early; blocked while its processes are started."""


PAUSE_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Signals that let a training run with checkpoints write one and leave."""


PAUSED = 75
"""Exit code of a training run after such a signal: temporary failure in sysexits.h, to be tried again."""


STACKS = signal.SIGUSR2
"""Signal that lets a rank write the Python stacks of its threads."""


LAST_STACKS = signal.SIGVTALRM
"""Signal that lets a stopped rank write its stacks when it continues, and ends it right after, as it has no handler."""


LAUNCHER_S = 2.0
"""Time by which a rank times out later than its launcher, which sees all ranks [s]."""


START_S = 300.0
"""Longest time of the ranks to get ready for their lists: importing, building, meeting [s]."""


def cut_fault(bounds: Sequence[tuple[int, int]], num_layers: int | None = None) -> str | None:
    """Return the first stage whose layers do not continue a cut of the model, or None if every layer has one stage.

    Args:
        bounds: Half-open range of layers of every stage.
        num_layers: Layers of the model, or None if unknown.
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
    """Return the reason why `dtype` cannot be trained with `optimizer`, or None.

    Adam divides by the root of its second moment plus an epsilon of 1e-8. In float16 that is 0, and so is the moment of
    small gradients: after a step the weights are NaN.

    Args:
        dtype: Name of the data type.
        optimizer: Name in `OPTIMIZERS`.
        rule: Rule of weight prediction; Adam's rule keeps its own moments beside another optimizer.
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
