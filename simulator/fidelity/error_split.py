"""The error of a prediction in three parts: its assumptions are replaced by measurements, one after the other.

    prediction ── measured works ──> replay ── measured hand-over ──> replay ── the run itself
                       costs                       hand-over                  rest

Each part is a difference of two neighbours, so the three add up to the error. Hand-over is the measured time of
posting, op by op, and the usual lateness of messages at each boundary: a model can know these. A replay with the
lateness of each single message would reproduce any run that follows its lists, whatever the model is worth. That replay
is made too, and shows how much of the rest is due to single late messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from pipesched.schedules import Timeline, schedule_of
from pipesched.simulator import SAME, SimulationError
from pipesched.simulator.analysis import CellValue, compare_timelines, usage
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fidelity.timeline_seconds import (
    GivenRows,
    NetworkModel,
    free_network,
    seconds_of_prediction,
    seconds_of_run,
    with_works_of,
    works_only,
)

_SHOWN = 0.0005
"""Less than this of the makespan is no part of a sentence."""

_SHOWN_LATE = 0.005
"""Share from which on single late messages are reported."""


@dataclass(frozen=True, slots=True)
class SplitError:
    """The error of one quantity; all in seconds.

    Attributes:
        name: ``makespan_s``, ``busy_s`` or ``idle_s``.
        device: The device, or None for the whole run.
        predicted_s: Seconds of the prediction, or None without prediction.
        with_works_s: Seconds of a replay with the measured work of each op.
        with_hand_over_s: Seconds of a replay that also has the measured posting, and the usual time of messages.
        with_messages_s: Seconds of a replay that also has the time of each single message.
        measured_s: Seconds of the quantity in the run.
    """

    name: str
    device: int | None
    predicted_s: float | None
    with_works_s: float
    with_hand_over_s: float
    with_messages_s: float
    measured_s: float

    @property
    def error_s(self) -> float:
        """The prediction minus the measurement; without a prediction, the replay with measured works minus it."""
        return (self.with_works_s if self.predicted_s is None else self.predicted_s) - self.measured_s

    @property
    def costs_s(self) -> float:
        """The part of the error caused by works that took longer (negative) or shorter than their costs."""
        return 0.0 if self.predicted_s is None else self.predicted_s - self.with_works_s

    @property
    def hand_over_s(self) -> float:
        """The part of the error caused by posting, and by the usual delay of messages."""
        return self.with_works_s - self.with_hand_over_s

    @property
    def rest_s(self) -> float:
        """The unexplained part of the error: faults of the schedule model, and chance."""
        return self.with_hand_over_s - self.measured_s

    @property
    def late_messages_s(self) -> float:
        """The part of the rest by single messages that came later, or earlier, than usual."""
        return self.with_hand_over_s - self.with_messages_s

    def share(self, seconds: float) -> float | None:
        """Return a part relative to the measurement, or None if that is 0."""
        return seconds / self.measured_s if self.measured_s else None

    def to_dict(self) -> dict[str, CellValue]:
        """Return plain data."""
        parts = {
            "error": self.error_s,
            "costs": self.costs_s,
            "hand_over": self.hand_over_s,
            "rest": self.rest_s,
            "late_messages": self.late_messages_s,
        }
        return {
            "quantity": self.name,
            "device": self.device,
            "measured_s": self.measured_s,
            **{f"{name}_s": seconds for name, seconds in parts.items()},
            **{name: self.share(seconds) for name, seconds in parts.items()},
        }


@dataclass(frozen=True, slots=True)
class ErrorSplit:
    """The errors of a prediction, or of a replay alone.

    Attributes:
        name: Name of the schedule.
        quantities: The makespan, then busy and idle time of each device.
        replays: Replays with the run's works; with its hand-over too; and with each single message as late as it was.
        num_messages: Messages and reductions that a work needs.
        num_seen: Messages and reductions whose arrival the run shows; others are as late as is usual.
        is_launch_bound: Whether launching bounds the run, so that hand-over includes launching.
    """

    name: str
    quantities: tuple[SplitError, ...]
    replays: tuple[Timeline, Timeline, Timeline]
    num_messages: int
    num_seen: int
    is_launch_bound: bool = False

    @property
    def makespan(self) -> SplitError:
        """The error of the makespan."""
        return self.quantities[0]

    def sentence(self, than: str = "predicted") -> str:
        """Return the reasons of the makespan's error, as one sentence; ops ran slower or faster than `than`."""
        makespan = self.makespan
        sign = -1.0 if makespan.error_s < 0 else 1.0

        def part(seconds: float) -> str:
            percent = round(100 * sign * seconds / makespan.measured_s, 1)
            return f"{percent + 0.0:.1f} %"

        nothing = part(0.0)
        is_off = part(makespan.error_s) != nothing
        alone = "" if makespan.predicted_s is not None else "with its own op times "
        because = []
        if makespan.predicted_s is not None and part(makespan.costs_s) != nothing:
            because.append(f"{part(makespan.costs_s)} because ops ran {_word(makespan.costs_s, 'er')} than {than}")
        length = "longer" if makespan.hand_over_s < 0 else "less long"
        if abs(makespan.hand_over_s) > _SHOWN * makespan.measured_s:
            what = "launching, messages and posting" if self.is_launch_bound else "messages and posting"
            because.append(f"{part(makespan.hand_over_s)} because {what} took {length}")
        if not is_off and not because and part(makespan.rest_s) == nothing:
            return f"{self.name}: {alone}as long as measured, within 0.1 %"
        because.append(f"{part(makespan.rest_s)} unexplained")
        if abs(makespan.late_messages_s) > _SHOWN_LATE * makespan.measured_s:
            because[-1] += f" ({part(makespan.late_messages_s)} in single messages that came late)"
        off = f"{part(makespan.error_s)} too {_word(makespan.error_s)}" if is_off else "as long as measured"
        return f"{self.name}: {alone}{off}: {', '.join(because)}"

    def to_rows(self) -> list[dict[str, CellValue]]:
        """Return a row per quantity."""
        return [quantity.to_dict() for quantity in self.quantities]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"parts": self.to_rows(), "messages": self.num_messages, "arrivals_seen": self.num_seen}


def split_error(
    measured: Timeline, predicted: Timeline | None = None, network: NetworkModel | None = None
) -> ErrorSplit:
    """Split a prediction's error into costs, hand-over and the rest.

    Args:
        measured: A run.
        predicted: The same lists, predicted, or None to replay the run alone.
        network: Network of the prediction, or None to take the messages of its Timeline as they are.

    Raises:
        SimulationError: The Timelines have different devices or op lists, or the prediction has something that a replay
            cannot repeat, such as blocking Sends.
    """
    network = network or free_network(measured)
    run = seconds_of_run(measured, network)
    costs_given = works_only(run.given)
    if predicted is not None:
        compare_timelines(predicted, measured)  # which refuses other lists
        supposed = seconds_of_prediction(predicted, network)
        _require_replayed(predicted, _replay(measured, network, supposed))
        costs_given = with_works_of(supposed, run.given)
    replays = (
        _replay(measured, network, costs_given),
        _replay(measured, network, run.usual),
        _replay(measured, network, run.given),
    )
    supposed_s = repeat(None) if predicted is None else (seconds for _, _, seconds in _quantities(predicted))
    rows = zip(*map(_quantities, (*replays, measured)), strict=True)
    quantities = tuple(
        SplitError(name, device, predicted_s, works_s, hand_over_s, messages_s, measured_s)
        for predicted_s, ((name, device, works_s), (*_, hand_over_s), (*_, messages_s), (*_, measured_s)) in zip(
            supposed_s, rows, strict=False
        )
    )
    return ErrorSplit(measured.name, quantities, replays, run.num_messages, run.num_seen, measured.is_launch_bound)


def _quantities(timeline: Timeline) -> Iterator[tuple[str, int | None, float]]:
    """Yield name, device and seconds of the quantities to split."""
    yield "makespan_s", None, timeline.makespan_s
    for use in usage(timeline):
        yield "busy_s", use.device, use.busy_s
        yield "idle_s", use.device, use.idle_s


def _word(error_s: float, more: str = "") -> str:
    return ("slow" if error_s < 0 else "fast") + more if more else ("fast" if error_s < 0 else "slow")


def _replay(timeline: Timeline, network: NetworkModel, given: GivenRows) -> Timeline:
    """Simulate the lists of a Timeline with these seconds."""
    return simulate_lists(schedule_of(timeline), network.costs, network.cluster, network=network.network, given=given)


def _require_replayed(predicted: Timeline, replayed: Timeline) -> None:
    if abs(replayed.makespan_s - predicted.makespan_s) > SAME * predicted.makespan_s:
        raise SimulationError(
            f"{predicted.name}: got a prediction of {predicted.makespan_s:.6g} s that takes {replayed.makespan_s:.6g} "
            "s when it is replayed, expected the same time: a replay ignores some network options, such as blocking "
            "Sends; try the default network options"
        )
