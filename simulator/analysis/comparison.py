"""Two Timelines of one schedule side by side: a prediction and a measurement, or two of one kind."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean
from typing import Any

from pipesched.schedules import Timeline
from pipesched.simulator import SimulationError
from pipesched.simulator.analysis.device_metrics import metrics
from pipesched.simulator.analysis.labels import label
from pipesched.simulator.analysis.tables import CellValue


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number, predicted and measured, or None if unknown.

    Attributes:
        name: ``makespan_s``, ``bubble_fraction``, ``busy_s``, ``idle_s`` or ``peak_memory_bytes``.
        device: The device, or None for the whole run.
        predicted: The predicted number, or the number of the first run if both are predicted or both measured.
        measured: The measured number, or the number of the second run if both are predicted or both measured.
    """

    name: str
    device: int | None
    predicted: float | None
    measured: float | None

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured; None when unknown, or when only the measured number is 0."""
        return _relative(self.predicted, self.measured)

    @property
    def difference(self) -> float | None:
        """(second - first) / first; None when unknown, or when only the first number is 0."""
        return _relative(self.measured, self.predicted)

    def to_dict(self, *, are_of_a_kind: bool = False) -> dict[str, CellValue]:
        """Return plain data."""
        values: dict[str, CellValue] = (
            {"first": self.predicted, "second": self.measured, "difference": self.difference}
            if are_of_a_kind
            else {"predicted": self.predicted, "measured": self.measured, "error": self.error}
        )
        return {"quantity": self.name, "device": self.device, **values}


@dataclass(frozen=True, slots=True)
class OpKind:
    """All ops of one kind on one stage.

    Attributes:
        kind: Kind of the ops, as in `Label`: ``F``, ``B``, ``SEND_F``, ``Step``, ...
        count: Number of ops.
        predicted_s: Mean predicted duration; of two predictions or two measurements, the mean in the first [s].
        measured_s: Mean measured duration; of two predictions or two measurements, the mean in the second [s].
    """

    kind: str
    stage: int
    count: int
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured; None when only the measured mean is 0."""
        return _relative(self.predicted_s, self.measured_s)

    @property
    def difference_s(self) -> float:
        """The seconds by which prediction and measurement disagree, all ops together [s]."""
        return self.count * (self.predicted_s - self.measured_s)

    def to_dict(self, *, are_of_a_kind: bool = False) -> dict[str, CellValue]:
        """Return plain data; if both runs are predicted or both measured, differences are relative to the first run."""
        values: dict[str, CellValue] = (
            {
                "first_s": self.predicted_s,
                "second_s": self.measured_s,
                "difference": _relative(self.measured_s, self.predicted_s),
                "difference_s": -self.difference_s,
            }
            if are_of_a_kind
            else {
                "predicted_s": self.predicted_s,
                "measured_s": self.measured_s,
                "error": self.error,
                "difference_s": self.difference_s,
            }
        )
        return {"kind": self.kind, "stage": self.stage, "count": self.count, **values}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of a prediction with a measurement, or of two predictions, or of two measurements.

    Attributes:
        quantities: The makespan and the bubble, then busy, idle and peak memory of each device.
        ops: The kinds of ops, in order of stage, then of first appearance.
        names: Labels of the two runs if both are predicted or both measured, otherwise None.
    """

    name: str
    quantities: tuple[Quantity, ...]
    ops: tuple[OpKind, ...]
    names: tuple[str, str] | None = None

    @property
    def largest_disagreement(self) -> OpKind | None:
        """The kind of op whose durations, all together, are furthest off, or None without ops.

        Transfers are left out: if no op waited for one, its measured end is only an upper bound.
        """
        works = (kind for kind in self.ops if not kind.kind.startswith(("SEND", "RECV")))
        return max(works, key=lambda kind: abs(kind.difference_s), default=None)

    def to_rows(self) -> list[dict[str, CellValue]]:
        """Return the quantities as plain data, a row each; every row has the names of both runs if `names` is set."""
        names: dict[str, CellValue] = {}
        if self.names is not None:
            names = {"first_name": self.names[0], "second_name": self.names[1]}
        return [names | quantity.to_dict(are_of_a_kind=bool(names)) for quantity in self.quantities]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        largest, are_of_a_kind = self.largest_disagreement, self.names is not None
        return {
            "name": self.name,
            **({} if self.names is None else {"names": list(self.names)}),
            "quantities": [quantity.to_dict(are_of_a_kind=are_of_a_kind) for quantity in self.quantities],
            "ops": [kind.to_dict(are_of_a_kind=are_of_a_kind) for kind in self.ops],
            "largest_disagreement": None if largest is None else largest.to_dict(are_of_a_kind=are_of_a_kind),
        }


def compare_timelines(predicted: Timeline, measured: Timeline, names: tuple[str, str] | None = None) -> Comparison:
    """Set two runs of the same op lists side by side.

    Args:
        predicted: A prediction, or the first of two predictions or two measurements.
        measured: A measurement, or the second of two predictions or two measurements.
        names: Labels of the two runs if both are predicted or both measured, otherwise None.

    Raises:
        SimulationError: The Timelines have different devices or op lists, or nothing in one of them takes time.
    """
    _require_same(predicted, measured, f"{measured.name} {measured.source}" if names is None else names[1])
    first, second = metrics(predicted), metrics(measured)
    quantities = [
        Quantity("makespan_s", None, first.makespan_s, second.makespan_s),
        Quantity("bubble_fraction", None, first.bubble_fraction, second.bubble_fraction),
    ]
    for a, b in zip(first.devices, second.devices, strict=True):
        quantities += [
            Quantity("busy_s", a.device, a.busy_s, b.busy_s),
            Quantity("idle_s", a.device, a.idle_s, b.idle_s),
            Quantity("peak_memory_bytes", a.device, a.peak_memory_bytes, b.peak_memory_bytes),
        ]
    means, measured_means = _durations(predicted), _durations(measured)
    kinds = [
        OpKind(kind, stage, len(own), fmean(own), fmean(measured_means[kind, stage]))
        for (kind, stage), own in means.items()
    ]
    return Comparison(predicted.name, tuple(quantities), tuple(sorted(kinds, key=lambda op_kind: op_kind.stage)), names)


def _relative(value: float | None, reference: float | None) -> float | None:
    if value is None or reference is None:
        return None
    if reference == 0:
        return 0.0 if value == 0 else None
    return (value - reference) / reference


def _durations(timeline: Timeline) -> dict[tuple[str, int], list[float]]:
    """Return the duration of every op [s], by kind and stage."""
    durations: dict[tuple[str, int], list[float]] = defaultdict(list)
    for span in timeline.spans:
        shown = label(span.op)
        durations[shown.kind, shown.stage].append(span.end_s - span.start_s)
    return durations


def _require_same(predicted: Timeline, measured: Timeline, place: str) -> None:
    """Refuse Timelines of different op lists, naming the first difference."""
    advice = "try two runs of one schedule"
    if predicted.rank_to_device != measured.rank_to_device:
        got, expected = list(measured.rank_to_device), list(predicted.rank_to_device)
        raise SimulationError(f"{place}: got ranks on devices {got}, expected {expected}; {advice}")
    for rank in range(len(predicted.rank_to_device)):
        pairs = zip_longest(predicted.of_rank(rank), measured.of_rank(rank))
        for index, (a, b) in enumerate(pairs):
            if a is None or b is None or a.op != b.op:
                second, first = (str(span.op) if span is not None else "the end" for span in (b, a))
                raise SimulationError(f"{place}: rank {rank}: op {index}: got {second}, expected {first}; {advice}")
