"""The interface between a stage and what averages its weights with those of other pipelines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor


class Averager(ABC):
    """What draws the weights of one stage on one rank to those of other pipelines.

    Where an answer is False, the caller gives up its turn and asks again.
    """

    @abstractmethod
    def may_step(self) -> bool:
        """Return whether the stage may step."""

    @abstractmethod
    def remember(self) -> None:
        """Keep the weights as they are before a Step, the first since the last Average."""

    @abstractmethod
    def may_average(self) -> bool:
        """Return whether all that an Average needs is there.

        Raises:
            ExecutionError: There was no Step since the last Average.
        """

    @abstractmethod
    def average(self) -> None:
        """Change the weights as an Average does."""

    @abstractmethod
    def settle(self) -> bool:
        """Let the weights be those that the run ends with; return whether they are."""

    @abstractmethod
    def resident_bytes(self) -> int:
        """Return the bytes held on the device of the weights."""

    @abstractmethod
    def held_reference(self) -> Sequence[Tensor]:
        """Return the reference between two runs of the lists, by parameter, with the updates of all pipelines.

        Empty on all ranks but the first that averages the stage.

        Raises:
            ExecutionError: Some update is missing.
        """
