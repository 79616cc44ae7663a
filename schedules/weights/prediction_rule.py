"""How weights are predicted for ops that look ahead."""

from __future__ import annotations

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
