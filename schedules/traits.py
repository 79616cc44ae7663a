"""The traits of a schedule: properties known to the catalogue that its op lists do not show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PredictionRule(StrEnum):
    """How a step is predicted: W - lr s delta for s steps ahead; or by taking them.

    MOMENTUM   delta is the smoothed gradient, as SGD with momentum has it (SpecTrain)
    ADAM       delta is Adam's direction, whatever the optimizer is (XPipe)
    OPTIMIZER  delta is the direction of the optimizer that trains the stage (PipeOptim, Table I)
    CODE       as OPTIMIZER, but for SGD with momentum as the authors of PipeOptim wrote it
    ZERO       the optimizer takes s steps, with gradients of zero
    CONSTANT   the optimizer takes s steps, with its last gradients again
    """

    MOMENTUM = "momentum"
    ADAM = "adam"
    OPTIMIZER = "optimizer"
    CODE = "code"
    ZERO = "zero"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTraits:
    """The nature of a schedule. The defaults are for lists of unknown nature.

    Attributes:
        is_asynchronous: Whether it steps without a flush.
        averages: Whether its pipelines have optimizers of their own, and an Average with a reference model.
        takes_chunks: Whether a rank may hold any number of stages (``-v``).
        takes_plans: Whether the planner may choose its depth and width: it is one pipeline.
        prediction: How weights are predicted for ops that look ahead; None without such ops, or if unknown.
    """

    is_asynchronous: bool = False
    averages: bool = False
    takes_chunks: bool = False
    takes_plans: bool = True
    prediction: PredictionRule | None = None
