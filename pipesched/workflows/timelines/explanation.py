"""The explanation of a prediction's error, for people and programs: its parts, or why it cannot be split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipesched.schedules import Timeline
from pipesched.simulator import SAME, SimulationError
from pipesched.simulator.analysis import CellValue, readable_change_s, readable_s
from pipesched.simulator.fidelity import ErrorSplit, NetworkModel, SplitError, split_error
from pipesched.workflows import Table

PARTS = ("costs", "hand_over", "rest")
"""The parts of an error, as programs read them."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a prediction is off.

    Attributes:
        sentence: The parts of the makespan's error, or why it cannot be split.
        split: The parts of the error, or None if it cannot be split.
    """

    sentence: str
    split: ErrorSplit | None

    def shares(self) -> dict[str, float | None]:
        """Return the parts of the makespan's error, relative to the measurement."""
        return dict.fromkeys(PARTS) if self.split is None else _shares(self.split.makespan)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"explanation": self.sentence, "split": None if self.split is None else self.split.to_dict()}

    def added_to(self, rows: Sequence[dict[str, CellValue]]) -> list[dict[str, CellValue]]:
        """Return rows of a comparison with the parts of each split quantity, relative to the measurement."""
        if self.split is None:
            return list(rows)
        parts: dict[tuple[CellValue, CellValue], dict[str, float | None]] = {
            (quantity.name, quantity.device): _shares(quantity) for quantity in self.split.quantities
        }
        nothing: dict[str, float | None] = dict.fromkeys(PARTS)
        return [{**row, **parts.get((row["quantity"], row["device"]), nothing)} for row in rows]


def explain_error(
    measured: Timeline,
    predicted: Timeline | None = None,
    network: NetworkModel | None = None,
    *,
    than: str = "predicted",
    predicted_s: float | None = None,
) -> Explanation:
    """Explain why a prediction is off.

    Args:
        measured: A run.
        predicted: The prediction of the same lists; None: the run is replayed alone.
        network: Network of the prediction; None: messages are taken from its Timeline.
        than: Participle for the baseline in the sentence: the ops were slower than ``predicted``.
        predicted_s: The predicted makespan, if its Timeline is unknown [s].
    """
    try:
        split = split_error(measured, predicted, network)
        if predicted_s is not None:
            makespan = replace(split.makespan, predicted_s=predicted_s)
            split = replace(split, quantities=(makespan, *split.quantities[1:]))
    except SimulationError as error:
        return Explanation(f"{measured.name}: the error cannot be split: {error}", None)
    return Explanation(split.sentence(than), split)


def split_table(explanations: Sequence[Explanation]) -> Table:
    """Return the parts of every error in seconds, several runs one under another, and the sentences."""
    splits = [explanation.split for explanation in explanations if explanation.split is not None]
    rows = tuple(
        _row(f"{split.name} " if len(splits) > 1 else "", quantity) for split in splits for quantity in split.quantities
    )
    return Table("Parts of the errors", rows, "\n".join(explanation.sentence for explanation in explanations))


def _row(whose: str, quantity: SplitError) -> dict[str, str]:
    where = "" if quantity.device is None else f" of device {quantity.device}"
    return {
        "": f"{whose}{quantity.name.removesuffix('_s')}{where}",
        "error": _signed(quantity, quantity.error_s),
        "costs": "-" if quantity.predicted_s is None else _signed(quantity, quantity.costs_s),
        "hand-over": _signed(quantity, quantity.hand_over_s),
        "rest": _signed(quantity, quantity.rest_s),
        "measured": readable_s(quantity.measured_s),
    }


def _signed(quantity: SplitError, seconds: float) -> str:
    if abs(seconds) <= SAME * quantity.measured_s:
        return readable_s(0.0)
    return readable_change_s(seconds)


def _shares(quantity: SplitError) -> dict[str, float | None]:
    return {part: quantity.share(getattr(quantity, f"{part}_s")) for part in PARTS}
