"""Why stages of a run took longer than their peers: their layers are slow, or their devices are.

Costs move with a stage to other devices; a slow device keeps its speed. Two readings of one run give two answers if the
question moves stages between devices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipesched.simulator.analysis import DeviceSpeed, Slowness
from pipesched.workflows import ArgumentError

_ROUNDING = 1e-6
"""Relative; a device that takes longer by less is as fast as its peers."""


@dataclass(frozen=True, slots=True)
class SlownessReading:
    """The cause of slowness in the runs.

    Attributes:
        slowness: The cause if a stage differs from its peers.
        slow: Slowdown factor of each slow device, for each run.
    """

    slowness: Slowness
    slow: tuple[Mapping[int, float], ...]


@dataclass(frozen=True, slots=True)
class SlownessReadings:
    """The possible causes of slowness in the runs.

    Attributes:
        likely: The reading that the answer takes.
        other: The opposite one, or None if no stage differs from its peers.
        is_open: Whether neither the runs nor the caller decide between the two.
        words: The stages and devices that differ, and the assumption on them, in a sentence.
    """

    likely: SlownessReading
    other: SlownessReading | None
    is_open: bool
    words: str


def read_slowness(
    speeds: Sequence[DeviceSpeed], slowness: Slowness | None, healed: Collection[int]
) -> SlownessReadings:
    """Return the possible causes of slowness.

    Args:
        speeds: Speeds of the devices of the runs.
        slowness: The cause, given by the caller; None: from the runs.
        healed: Slow devices, given by the caller.

    Raises:
        ArgumentError: A device to heal does not exist, or is not slower than its peers.
    """
    _require_slow(speeds, healed)
    always = [speed for speed in speeds if speed.device in healed]
    odd = [speed for speed in speeds if speed not in always and (speed.odd or set(speed.slow) != {1.0})]
    asked = [speed for speed in odd if (slowness or speed.cause) == "device"]
    unknown = [speed for speed in odd if (slowness or speed.cause) is None]
    others = [*asked, *unknown] if unknown else [] if asked else odd
    return SlownessReadings(
        SlownessReading("device" if asked and not unknown else "layers", _slow([*always, *asked])),
        SlownessReading("device" if others else "layers", _slow([*always, *others])) if odd else None,
        bool(unknown),
        _words(unknown or odd, slowness, is_open=bool(unknown)),
    )


def _slow(speeds: Iterable[DeviceSpeed]) -> tuple[Mapping[int, float], ...]:
    """Return the factors of slow devices in each run; without a speed, nothing is slow in any."""
    rows = [
        [(speed.device, factor if set(speed.slow) != {1.0} else speed.factor) for factor in speed.slow]
        for speed in speeds
    ]
    return tuple(map(dict, zip(*rows, strict=True)))


def _words(speeds: Sequence[DeviceSpeed], slowness: Slowness | None, *, is_open: bool) -> str:
    took = "; ".join(map(_took, speeds))
    if is_open:
        return f"{took}. The run does not tell whether layers or devices are slow: --slowness layers or device says it"
    if slowness is not None:
        return f"{took}: slow {'layers' if slowness == 'layers' else 'devices'}, as given"
    devices = [f"device {speed.device}" for speed in speeds if speed.cause == "device"]
    if devices:
        return f"{took}: {' and '.join(devices)} slow, as other stages of it, other devices or other runs show"
    return f"{took}: layers slow, as other stages of its device, or other devices, show"


def _took(speed: DeviceSpeed) -> str:
    """Return the times of stages or of a device, in words."""
    stages = f"stage{'s' * (len(speed.odd) > 1)} {', '.join(map(str, speed.odd))} on device {speed.device}"
    who = f"device {speed.device}" if speed.cause == "device" else stages
    factors = " and ".join(dict.fromkeys(f"{factor:.3g}" for factor in speed.odd.values() or speed.slow))
    return f"{who} took {factors} times as long as its peers"


def _require_slow(speeds: Sequence[DeviceSpeed], healed: Collection[int]) -> None:
    factors = {speed.device: speed.factor for speed in speeds}
    for device in healed:
        if device not in factors:
            raise ArgumentError(f"heal: got device {device}, expected one of the run, 0 to {max(factors)}; try another")
        if factors[device] <= 1.0 + _ROUNDING:
            slowest = max(factors, key=factors.__getitem__)
            is_any = factors[slowest] > 1.0 + _ROUNDING
            raise ArgumentError(
                f"heal: got device {device}, which takes {factors[device]:.3g} times as long as its peers, expected "
                f"one that takes longer; {f'try {slowest}' if is_any else 'none does, leave it out'}"
            )
