"""The states that a stage's modules were in before forwards, for the forwards that are run again (R).

A forward may change a module: batch normalisation counts batches, spectral normalisation takes a step of its iteration.
R begins in the state in which F began, and leaves no trace, so a stage changes as it would without R.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, final

from torch import nn

from pipesched.profiles.models import ModuleState, module_states

States: TypeAlias = Sequence[ModuleState]
"""The states of some modules at one moment."""


@final
class ForwardStates:
    """Copies the states of the modules that forwards change; the first forward shows which modules these are.

    Args:
        module: The stage's layers.
    """

    def __init__(self, module: nn.Module) -> None:
        self._changing = [*module.modules()]
        self._is_known = False

    def now(self) -> States:
        """Return the present states."""
        return module_states(self._changing, has_parameters=False)

    def after(self, before: States) -> States:
        """Return the states, before a finished forward, of the modules that forwards change."""
        if not self._is_known:
            before = [state for state in before if state.is_changed]
            self._changing, self._is_known = [state.module for state in before], True
        return before
