"""Changes of machines: slower or quicker devices and links; and the slow devices that a run shows."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipesched.profiles.clusters import Cluster, Link, with_slow_device, with_slow_link
from pipesched.simulator.analysis import DeviceSpeed, Slowness, readable_bytes, readable_s
from pipesched.workflows import ArgumentError, require_at_least, require_kind, require_names, require_rate


@dataclass(frozen=True, kw_only=True)  # without slots, as questions are joined
class MachineChange:
    """A change of a cluster.

    Attributes:
        heal: Slow devices that become as fast as their peers.
        slow_devices: Slowdown factor of these devices.
        slow_links: Slowdown factor of messages between these pairs of devices.
        link: Latency and bandwidth of every link, in place of the present ones; and hand-over, if given.
        bandwidth_factor: Factor on the bandwidth of every link.
        latency_factor: Factor on the latency of every link.
    """

    heal: Sequence[int] = ()
    slow_devices: Mapping[int, float] | None = None
    slow_links: Mapping[tuple[int, int], float] | None = None
    link: Link | None = None
    bandwidth_factor: float = 1.0
    latency_factor: float = 1.0

    def __post_init__(self) -> None:
        """Refuse an invalid change of machines.

        Raises:
            ArgumentError: The change is invalid.
        """
        for device in require_names("heal", self.heal):
            require_at_least("heal", device, 0)
        for name in ("slow_devices", "slow_links"):
            factors = getattr(self, name)
            require_kind(name, factors, Mapping | None, "factors of devices, or of pairs of devices; try {0: 1.2}")
            for factor in (factors or {}).values():
                require_rate(name, factor)
        require_kind("link", self.link, Link | None, "a Link; try pipesched.Link(latency_s=1e-5)")
        require_rate("bandwidth_factor", self.bandwidth_factor)
        require_rate("latency_factor", self.latency_factor)
        if self.link is not None and self.scales_links:
            raise ArgumentError(
                "link: got `bandwidth_factor` or `latency_factor` too, expected a link or factors; leave one out"
            )

    @property
    def changes_machines(self) -> bool:
        """Whether any machine is changed."""
        return bool(len(self.heal) or self.slow_devices or self.slow_links or self.link) or self.scales_links

    @property
    def scales_links(self) -> bool:
        """Whether the bandwidth or latency of links is scaled."""
        return (self.bandwidth_factor, self.latency_factor) != (1.0, 1.0)

    def on(self, cluster: Cluster, *, is_of_runs: bool) -> Cluster:
        """Return the changed machines.

        Args:
            cluster: The machines, as they are.
            is_of_runs: Whether the times of messages come from runs only. Such a time is not split into latency and
                transfer of bytes, so another bandwidth scales all of it.

        Raises:
            ArgumentError: A device does not exist, or two factors cannot be separated.
        """
        if is_of_runs and self.bandwidth_factor != 1.0 and self.latency_factor != 1.0:
            raise ArgumentError(
                "bandwidth_factor: got `latency_factor` too, expected only one of them, because runs do not separate "
                "bandwidth from latency; give `cluster`, as pipesched.workflows.measuring.profile_links measures it"
            )
        cluster = replace(
            cluster,
            intra=self._changed(cluster.intra, is_of_runs),
            inter=None if cluster.inter is None else self._changed(cluster.inter, is_of_runs),
            loopback=cluster.loopback if self.link else self._changed(cluster.loopback, is_of_runs),
            links=tuple((a, b, self._changed(link, is_of_runs)) for a, b, link in cluster.links),
        )
        for device, factor in (self.slow_devices or {}).items():
            _require_device("slow_devices", device, cluster)
            cluster = with_slow_device(cluster, device, factor)
        for pair, factor in (self.slow_links or {}).items():
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise ArgumentError(f"slow_links: got {pair!r}, expected two devices; try {{(0, 1): 2.0}}")
            for device in pair:
                _require_device("slow_links", device, cluster)
            cluster = with_slow_link(cluster, *pair, factor)
        return cluster

    def words(self) -> list[str]:
        """Return the changes, in a few words each."""
        words = [f"device {device} as fast as its peers" for device in self.heal]
        words += [f"device {device} x{factor:g} slower" for device, factor in (self.slow_devices or {}).items()]
        words += [f"link {a}-{b} x{factor:g} slower" for (a, b), factor in (self.slow_links or {}).items()]
        if self.link is not None:
            width = self.link.bandwidth_bytes_per_s
            wide = "of unlimited bandwidth" if math.isinf(width) else f"{readable_bytes(width)}/s"
            words.append(f"links of {readable_s(self.link.latency_s)}, {wide}")
        factors = {"bandwidth": self.bandwidth_factor, "latency": self.latency_factor}
        return words + [f"{name} x{factor:g}" for name, factor in factors.items() if factor != 1.0]

    def notes(self, cluster: Cluster, *, is_of_runs: bool) -> list[str]:
        """Return the assumptions on messages without a measurement."""
        if not is_of_runs or self.bandwidth_factor == 1.0:
            return []
        return [
            f"the whole {readable_s(cluster.intra.latency_s)} of a message is taken as bytes over bandwidth, so the "
            "change is an upper limit"
        ]

    def _changed(self, link: Link, is_of_runs: bool) -> Link:
        if self.link is not None and self.link.keeps_ranks:
            return self.link
        if self.link is not None:
            return replace(link, latency_s=self.link.latency_s, bandwidth_bytes_per_s=self.link.bandwidth_bytes_per_s)
        per_byte = self.bandwidth_factor if is_of_runs else 1.0
        return replace(
            link,
            latency_s=link.latency_s * self.latency_factor / per_byte,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * self.bandwidth_factor,
        )


def _require_device(name: str, device: object, cluster: Cluster) -> None:
    if require_at_least(name, device, 0) >= len(cluster.devices):
        raise ArgumentError(
            f"{name}: got device {device}, expected 0 to {len(cluster.devices) - 1}; try another device"
        )


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
        return f"{took}. The run does not show whether layers or devices are slow: set --slowness layers or device"
    if slowness is not None:
        return f"{took}: slow {'layers' if slowness == 'layers' else 'devices'}, as given"
    devices = [f"device {speed.device}" for speed in speeds if speed.cause == "device"]
    if devices:
        return f"{took}: {' and '.join(devices)} slow, by comparison with its other stages, other devices or other runs"
    return f"{took}: layers slow, by comparison with other stages of its device, or other devices"


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
            raise ArgumentError(
                f"heal: got device {device}, expected a device of the run, 0 to {max(factors)}; try another"
            )
        if factors[device] <= 1.0 + _ROUNDING:
            slowest = max(factors, key=factors.__getitem__)
            is_any = factors[slowest] > 1.0 + _ROUNDING
            raise ArgumentError(
                f"heal: got device {device}, which takes {factors[device]:.3g} times as long as its peers, expected "
                f"a slower one; {f'try {slowest}' if is_any else 'leave it out, as no device is slower'}"
            )
