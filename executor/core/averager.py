"""The interface between a stage and the averager of its weights with the weights of other pipelines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor


class Averager(ABC):
    """Moves the weights of one stage on one rank towards the weights of other pipelines.

    If an answer is False, the caller gives up its turn and asks again.
    """

    @abstractmethod
    def may_step(self) -> bool:
        """Return whether the stage may step."""

    @abstractmethod
    def remember(self) -> None:
        """Keep the weights before a Step, the first since the last Average."""

    @abstractmethod
    def may_average(self) -> bool:
        """Return whether all inputs of an Average are available.

        Raises:
            ExecutionError: There was no Step since the last Average.
        """

    @abstractmethod
    def average(self) -> None:
        """Change the weights as an Average does."""

    @abstractmethod
    def settle(self) -> bool:
        """Set the weights to the final weights of the run; return whether that is done."""

    @abstractmethod
    def resident_bytes(self) -> int:
        """Return the bytes held on the device of the weights."""

    @abstractmethod
    def held_reference(self) -> Sequence[Tensor]:
        """Return the reference by parameter, with the updates of all pipelines; call it between two runs.

        The reference is empty on all ranks but the first that averages the stage.

        Raises:
            ExecutionError: Some update is missing.
        """
