"""The traits of a schedule: properties known to the catalogue that its op lists do not show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PredictionRule(StrEnum):
    """The rule of a prediction s steps ahead: W - lr s delta, or s steps of the optimizer.

    MOMENTUM   delta is the smoothed gradient, as in SGD with momentum (SpecTrain)
    ADAM       delta is Adam's direction, for any optimizer (XPipe)
    OPTIMIZER  delta is the direction of the optimizer that trains the stage (PipeOptim, Table I)
    CODE       as OPTIMIZER, but for SGD with momentum as in the code of PipeOptim's authors
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
        is_asynchronous: Whether the schedule steps without a flush.
        averages: Whether the pipelines have optimizers of their own, and an Average with a reference model.
        takes_chunks: Whether a rank may hold any number of stages (``-v``).
        takes_plans: Whether the planner may choose depth and width: the schedule is one pipeline.
        prediction: Rule of the predicted weights for ops that look ahead; None without such ops, or if unknown.
    """

    is_asynchronous: bool = False
    averages: bool = False
    takes_chunks: bool = False
    takes_plans: bool = True
    prediction: PredictionRule | None = None
