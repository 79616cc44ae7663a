"""What the catalogue knows of a schedule, and of the parameters that it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pipesched.schedules.lazy import LazySchedule
from pipesched.schedules.prediction import Rule
from pipesched.schedules.schedule import Schedule

Value: TypeAlias = int | float | tuple[int, ...] | None
"""What a parameter can be set to; None: what the builder finds from the counts."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One ``key=value`` that a builder takes beyond ranks, micro-batches and chunks.

    Attributes:
        default: None where the builder finds it from the counts, as `text` says.
        text: What it does, in a few words.
        type: Of a None default, what is taken: a whole number, any number, or whole numbers (``2:1:1``).
        counts_run: Whether it counts micro-batches of the whole run, so that there can be no more of them.
    """

    name: str
    default: int | float | None
    text: str
    type: Literal["integer", "number", "integers"] = "number"
    counts_run: bool = False

    @property
    def takes(self) -> Literal["integer", "number", "integers"]:
        """What is taken: of the default's type, if there is one."""
        return "integer" if isinstance(self.default, int) else self.type


@dataclass(frozen=True, slots=True)
class Entry:
    """One schedule of the catalogue.

    Attributes:
        build: Called with (num_ranks, num_microbatches), and with keywords num_chunks and `parameters`.
        text: What it is, in a line.
        source: Paper and section.
        is_asynchronous: Whether it steps without a flush.
        averages: Whether its pipelines have optimizers of their own, and an Average with a reference model.
        takes_chunks: Whether a rank may hold several stages (``-v``).
        lazy: Builds the same without holding its lists, for a run of any length; None where a run repeats a batch.
        prediction: How weights are predicted where an op looks ahead; None where none does.
    """

    name: str
    build: Callable[..., Schedule]
    text: str
    source: str
    is_asynchronous: bool = False
    averages: bool = False
    takes_chunks: bool = False
    parameters: tuple[Parameter, ...] = ()
    lazy: Callable[..., LazySchedule] | None = None
    prediction: Rule | None = None
