"""Changes of machines: slower or quicker devices and links."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pipesched.profiles.clusters import Cluster, Link, with_slow_device, with_slow_link
from pipesched.simulator.analysis import readable_bytes, readable_s
from pipesched.workflows import ArgumentError, require_at_least, require_kind, require_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineChange:
    """A change of a cluster.

    Attributes:
        healed: Slow devices that become as fast as their peers.
        slow_devices: Slowdown factor of these devices.
        slow_links: Slowdown factor of messages between these pairs of devices.
        link: Latency and bandwidth of every link, in place of the present ones; and hand-over, if given.
        bandwidth_factor: Factor on the bandwidth of every link.
        latency_factor: Factor on the latency of every link.
    """

    healed: tuple[int, ...] = ()
    slow_devices: Mapping[int, float] = field(default_factory=dict)
    slow_links: Mapping[tuple[int, int], float] = field(default_factory=dict)
    link: Link | None = None
    bandwidth_factor: float = 1.0
    latency_factor: float = 1.0

    def __post_init__(self) -> None:
        """Refuse an invalid change of machines.

        Raises:
            ArgumentError: The change is invalid.
        """
        for device in self.healed:
            require_at_least("heal", device, 0)
        for name in ("slow_devices", "slow_links"):
            factors = getattr(self, name)
            require_kind(name, factors, Mapping, "factors of devices, or of pairs of them; try {0: 1.2}")
            for factor in factors.values():
                require_rate(name, factor)
        require_kind("link", self.link, Link | None, "a Link; try pipesched.Link(latency_s=1e-5)")
        require_rate("bandwidth_factor", self.bandwidth_factor)
        require_rate("latency_factor", self.latency_factor)
        if self.link is not None and self.scales_links:
            raise ArgumentError(
                "link: got `bandwidth_factor` or `latency_factor` too, expected one or the other; leave one out"
            )

    @property
    def scales_links(self) -> bool:
        """Whether the bandwidth or latency of links is scaled."""
        return (self.bandwidth_factor, self.latency_factor) != (1.0, 1.0)

    def on(self, cluster: Cluster, *, is_of_runs: bool) -> Cluster:
        """Return the changed machines.

        Args:
            cluster: The machines, as they are.
            is_of_runs: Whether the times of messages come from runs only. Then the share of their bytes is unknown, and
                another bandwidth scales the whole time.

        Raises:
            ArgumentError: A device does not exist, or two factors cannot be separated.
        """
        if is_of_runs and self.bandwidth_factor != 1.0 and self.latency_factor != 1.0:
            raise ArgumentError(
                "bandwidth_factor: got `latency_factor` too, expected one of them: runs do not tell bytes from "
                "latency; give `cluster`, as pipesched.profile_links measures it"
            )
        cluster = replace(
            cluster,
            intra=self._changed(cluster.intra, is_of_runs),
            inter=None if cluster.inter is None else self._changed(cluster.inter, is_of_runs),
            loopback=cluster.loopback if self.link else self._changed(cluster.loopback, is_of_runs),
            links=tuple((a, b, self._changed(link, is_of_runs)) for a, b, link in cluster.links),
        )
        for device, factor in self.slow_devices.items():
            _require_device("slow_devices", device, cluster)
            cluster = with_slow_device(cluster, device, factor)
        for pair, factor in self.slow_links.items():
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise ArgumentError(f"slow_links: got {pair!r}, expected two devices; try {{(0, 1): 2.0}}")
            for device in pair:
                _require_device("slow_links", device, cluster)
            cluster = with_slow_link(cluster, *pair, factor)
        return cluster

    def words(self) -> list[str]:
        """Return the changes, in a few words each."""
        words = [f"device {device} as fast as its peers" for device in self.healed]
        words += [f"device {device} x{factor:g} slower" for device, factor in self.slow_devices.items()]
        words += [f"link {a}-{b} x{factor:g} slower" for (a, b), factor in self.slow_links.items()]
        if self.link is not None:
            width = self.link.bandwidth_bytes_per_s
            wide = "as wide as one likes" if math.isinf(width) else f"{readable_bytes(width)}/s"
            words.append(f"links of {readable_s(self.link.latency_s)}, {wide}")
        factors = {"bandwidth": self.bandwidth_factor, "latency": self.latency_factor}
        return words + [f"{name} x{factor:g}" for name, factor in factors.items() if factor != 1.0]

    def notes(self, cluster: Cluster, *, is_of_runs: bool) -> list[str]:
        """Return the assumptions on messages without a measurement."""
        if not is_of_runs or self.bandwidth_factor == 1.0:
            return []
        return [
            f"a message's {readable_s(cluster.intra.latency_s)} taken as bytes over bandwidth, wholly: the most that "
            "bandwidth can bring"
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
        raise ArgumentError(f"{name}: got device {device}, expected 0 to {len(cluster.devices) - 1}; try another")
