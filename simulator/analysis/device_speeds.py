"""Stages and devices that took longer than their peers in a run, and which of the two is slow.

    device    0     1     2     3        A stage that is slow on its one device may have slow layers or a slow device.
    stages   1.0   1.0   1.3   1.0       Other stages of that device tell, and so do other devices of that stage, or
             1.0   1.0   1.3   1.0       another run.

Times are relative to a reference: the same stage on other devices, or else the median of all stages.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple, TypeAlias

from pipesched.schedules import Timeline
from pipesched.schedules.ops import Compute, Phase

Slowness: TypeAlias = Literal["layers", "device"]
"""The reason why a stage took longer than its peers."""

_LEAST = 0.05
"""Smallest relative difference that counts."""
_DEVIATIONS = 3.0
"""Smallest difference that counts, over the median difference between stages."""
_ERRORS = 4.0
"""Smallest difference that counts, over its standard error."""
_HALF = 0.5
"""Share of a difference, as a logarithm, from which on two differences are the same."""


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """Duration of a device's works in runs, relative to its peers.

    Attributes:
        device: The device.
        stages: Stages of the device in the first run.
        factor: Seconds of all its stages in the first run, over the reference.
        odd: Factor of each stage of the first run that differs from its peers.
        slow: Factor of each run if the device is slow: 1 where the device does not differ from its peers.
        cause: The slow part; ``"layers"`` also if nothing differs, None if the runs cannot tell.
    """

    device: int
    stages: tuple[int, ...]
    factor: float
    odd: Mapping[int, float]
    slow: tuple[float, ...]
    cause: Slowness | None


class _Cell(NamedTuple):
    """Seconds of a micro-batch of a stage on a device, and their relative standard error."""

    seconds: float
    error: float


_Cells: TypeAlias = dict[tuple[int, int], _Cell]
"""Cells by device and stage."""


class _Ratio(NamedTuple):
    """Seconds of a cell over its reference.

    Attributes:
        value: The ratio.
        threshold: Smallest relative difference from 1 that counts.
        tells: Whether the reference is the same stage elsewhere, so that a difference is between devices.
        odd: The ratio if it counts; otherwise the ratio to the median of all stages if that counts; otherwise 1.
    """

    value: float
    threshold: float
    tells: bool
    odd: float

    @property
    def side(self) -> int:
        """1 for a slow cell, -1 for a quick one, 0 for one like its peers."""
        return _side(self.value, self.threshold)


def _side(value: float, threshold: float) -> int:
    if abs(math.log(value)) <= math.log1p(threshold):
        return 0
    return 1 if value > 1 else -1


def device_speeds(
    timelines: Sequence[Timeline], *, warmup: int = 1, expected_s: Sequence[float] | None = None
) -> tuple[DeviceSpeed, ...]:
    """Return the speed of each device of the first run, relative to its peers.

    Args:
        timelines: Runs of the same stages.
        warmup: Number of first ops to leave out, per kind, stage and device.
        expected_s: Seconds of a micro-batch of each stage in a profile, or None if all stages are peers.
    """
    runs = [_normal(_cells(timeline, warmup), expected_s) for timeline in timelines]
    speeds = []
    for device in sorted({device for device, _ in chain.from_iterable(runs)}):
        rows = [list(_ratios(runs, index, device)) for index in range(len(runs))]
        verdicts = [_verdict([ratio for _, ratio in row]) for row in rows]
        cells = {stage: runs[0][device, stage].seconds for stage, _ in rows[0]}
        usual = sum(cells[stage] / ratio.value for stage, ratio in rows[0])
        causes = [cause for cause, _ in verdicts if cause is not None]
        is_odd = any(factor != 1.0 for _, factor in verdicts)
        speeds.append(
            DeviceSpeed(
                device,
                tuple(cells),
                sum(cells.values()) / usual if cells else 1.0,
                {stage: ratio.odd for stage, ratio in rows[0] if ratio.odd != 1.0},
                tuple(factor for _, factor in verdicts),
                "device" if "device" in causes else "layers" if causes or not is_odd else None,
            )
        )
    return tuple(speeds)


def _cells(timeline: Timeline, warmup: int) -> _Cells:
    samples: defaultdict[tuple[int, int], defaultdict[Phase, list[float]]] = defaultdict(lambda: defaultdict(list))
    for span in timeline.work:
        if isinstance(span.op, Compute):
            place = timeline.rank_to_device[span.rank], span.op.stage
            samples[place][span.op.phase].append(span.end_s - span.start_s)
    return {
        place: cell
        for place, phases in sorted(samples.items())
        if Phase.FORWARD in phases and (cell := _cell(phases, warmup)).seconds > 0
    }


def _cell(phases: Mapping[Phase, Sequence[float]], warmup: int) -> _Cell:
    """Return the seconds of a forward and a backward; ops of the backward may be whole, or in two parts."""
    counts = {phase: len(seconds) for phase, seconds in phases.items() if phase is not Phase.RECOMPUTE}
    halves = max(counts.get(Phase.BACKWARD_INPUT, 0), counts.get(Phase.BACKWARD_WEIGHT, 0))
    backwards = counts.get(Phase.BACKWARD, 0) + halves
    total_s = variance = 0.0
    for phase, count in counts.items():
        weight = 1.0 if phase is Phase.FORWARD else count / backwards
        seconds = phases[phase][min(warmup, count - 1) :]
        total_s += weight * statistics.fmean(seconds)
        variance += weight**2 * statistics.pvariance(seconds) / len(seconds)
    return _Cell(total_s, math.sqrt(variance) / total_s if total_s else 0.0)


def _normal(cells: _Cells, expected_s: Sequence[float] | None) -> _Cells:
    """Return the cells of a run relative to the expected time of their stages, with a median of 1."""
    if expected_s is not None and all(expected_s):
        cells = {
            (device, stage): cell._replace(seconds=cell.seconds / expected_s[stage])
            for (device, stage), cell in cells.items()
        }
    if not cells:
        return {}
    usual = statistics.median_low(cell.seconds for cell in cells.values())
    return {place: cell._replace(seconds=cell.seconds / usual) for place, cell in cells.items()}


def _ratios(runs: Sequence[_Cells], run: int, device: int) -> Iterator[tuple[int, _Ratio]]:
    """Yield (stage, ratio) for each stage of a device in a run.

    The ratio compares the seconds with the same stage on other devices. Without these it compares them with the other
    runs, or with all stages of the run.
    """
    spread = statistics.median_low([abs(math.log(cell.seconds)) for cell in runs[run].values()] or [0.0])
    for (where, stage), cell in runs[run].items():
        if where != device:
            continue
        least = max(_LEAST, _ERRORS * cell.error)
        elsewhere = [
            other.seconds for cells in runs for (place, of), other in cells.items() if of == stage and place != device
        ]
        again = [cells[device, stage].seconds for cells in runs if (device, stage) in cells]
        best = min(again, key=lambda seconds: abs(math.log(seconds)))
        tells, among = True, max(least, _DEVIATIONS * spread)
        if elsewhere:
            least = max(_LEAST, _ERRORS * math.sqrt(2) * cell.error)  # of two cells
            value = cell.seconds / statistics.median_low([cell.seconds, *elsewhere])
        elif _side(max(again) / min(again), least):
            value = cell.seconds / best
        else:
            value, least, tells = cell.seconds, among, False
        if tells and _side(cell.seconds, among) and math.log(value) / math.log(cell.seconds) > _HALF:
            least = 0.0  # slow among all stages, and nearer to a slow device than to slow layers
        odd = value if _side(value, least) else cell.seconds if _side(cell.seconds, among) else 1.0
        yield stage, _Ratio(value, least, tells, odd)


def _agrees(ratio: _Ratio, lead: _Ratio) -> bool:
    """Return whether a ratio is on the same side as `lead`, the most different one, or more than half as different."""
    return ratio.side == lead.side or math.log(ratio.value) / math.log(lead.value) > _HALF


def _verdict(ratios: Sequence[_Ratio]) -> tuple[Slowness | None, float]:
    """Return the slow part, or None if the ratios do not show it, and the factor of the device (1 if not slow)."""
    told = [ratio for ratio in ratios if ratio.tells]
    judges = told or ratios
    lead = max(judges, key=lambda ratio: abs(math.log(ratio.value)), default=None)
    if lead is not None and lead.side and all(_agrees(ratio, lead) for ratio in judges):
        factor = statistics.median_low(ratio.value for ratio in judges)
        return ("device" if told or len(judges) > 1 else None), factor
    return ("layers" if any(ratio.odd != 1.0 for ratio in ratios) else None), 1.0
