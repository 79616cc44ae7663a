"""A stage that only evaluates: forwards without gradients, whose results on the last stage are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import nn

from pipesched.executor.core.gradients import Term
from pipesched.executor.core.stage import Stage
from pipesched.profiles.models import Value
from pipesched.schedules.ops import Compute, Reduce

OnOutput = Callable[[int, Value, Value | None], None]
"""Called with micro-batch, output and target after each forward of the last stage."""


@final
class ForwardStage(Stage):
    """The layers of a stage, for lists that have only forwards.

    Args:
        module: The layers; one `Value` in, one out.
        on_output: Takes the outputs, on the last stage; None on other stages.
    """

    def __init__(self, module: nn.Module, on_output: OnOutput | None) -> None:
        self._module = module
        self._on_output = on_output

    def begin(self) -> None:
        """Do nothing: no state is kept from op to op."""

    def compute(self, op: Compute, received: Any, target: Any) -> Any:
        with torch.no_grad():
            output = self._module(received)
            if self._on_output is None:
                return output
            self._on_output(op.microbatch, output, target)
        return None

    def terms(self, op: Reduce) -> Iterable[Term]:  # noqa: ARG002 -- there are none
        return ()

    def step(self) -> None:
        """Do nothing: nothing learns."""

    def average(self) -> None:
        """Do nothing: nothing learns."""

    def settle(self) -> None:
        """Do nothing: nothing learns."""
