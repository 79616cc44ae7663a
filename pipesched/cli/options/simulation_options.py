"""Options of a simulation: the network's protocol, compression, stragglers and slow links, jitter."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.key_values import number, pairs, read_integer
from pipesched.questions import PredictionSettings
from pipesched.simulator import NetworkOptions

if TYPE_CHECKING:
    from pipesched.profiles.clusters import Cluster


SlowOption = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel="Network", help="Straggler, device=3,factor=1.3, or slow link, link=0-1,factor=2; repeatable."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions(PredictionSettings):
    """Options of a simulation for messages, stragglers and jitter."""

    network: NetworkOptions = NetworkOptions()  # noqa: RUF009 -- frozen
    slow: SlowOption = None

    shown: ClassVar[dict[str, str | None]] = dict.fromkeys(
        ("network", "compression", "convert_bytes_per_s", "slow", "jitter", "seed", "engine", "buffers")
    )

    def on(self, cluster: Cluster) -> Cluster:
        """Return the machines with their slow parts.

        Raises:
            InputError: A slow part does not exist, or is no ``key=value``.
        """
        return with_slow_parts(cluster, self.slow or ())


def with_slow_parts(cluster: Cluster, texts: Iterable[str]) -> Cluster:
    """Return the machines with the slow parts of `--slow`; raises InputError as `SimulationOptions.on`."""
    for text in texts:
        cluster = _slowed(cluster, text)
    return cluster


def _slowed(cluster: Cluster, text: str) -> Cluster:
    from pipesched.profiles.clusters import with_slow_device, with_slow_link

    ends, factor = slow_part(text)
    for end in ends:
        if not 0 <= end < len(cluster.devices):
            what = "device" if len(ends) == 1 else "link"
            raise InputError(f"--slow: {what}: got device {end}, expected 0 to {len(cluster.devices) - 1}; try another")
    if len(ends) == 1:
        return with_slow_device(cluster, ends[0], factor)
    return with_slow_link(cluster, ends[0], ends[1], factor)


def slow_part(text: str) -> tuple[tuple[int, ...], float]:
    """Return the devices of ``device=3,factor=1.3`` (one) or ``link=0-1,factor=2`` (two), and the factor.

    Raises:
        InputError: The text is something else.
    """
    short = re.fullmatch(r"\s*([0-9]+(-[0-9]+)?)\s*=\s*x?([0-9.]+)\s*", text)
    if short is not None:
        what = "link" if short[2] else "device"
        raise InputError(
            f"--slow: got {text!r}, expected a device or a link, and a factor; try {what}={short[1]},factor={short[3]}"
        )
    settings = pairs(text, "--slow", ("device", "link", "factor"), "device=3,factor=1.3")
    if "factor" not in settings or len(settings) != 2:
        raise InputError(f"--slow: got {text!r}, expected a device or a link, and a factor; try device=3,factor=1.3")
    factor = number(settings["factor"].removeprefix("x"), "--slow: factor")
    if not 0 < factor <= _MOST:
        raise InputError(f"--slow: factor: got {settings['factor']}, expected more than 0, up to {_MOST:g}; try 1.3")
    what, names = ("device", [settings["device"]]) if "device" in settings else ("link", settings["link"].split("-"))
    if what == "link" and len(names) != 2:
        raise InputError(f"--slow: link: got {settings['link']!r}, expected two devices; try link=0-1")
    return tuple(read_integer(name, f"--slow: {what}") for name in names), factor


_MOST = 1e6
