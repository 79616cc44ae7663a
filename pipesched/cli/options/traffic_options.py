"""Options that say how messages go, and what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.byte_sizes import parse_bytes
from pipesched.cli.options.pairs import number, pairs, read_integer

if TYPE_CHECKING:
    from pipesched.profiles.clusters import Cluster
    from pipesched.simulator import NetworkOptions


BuffersOption = Annotated[
    Literal["pooled", "per_microbatch"],
    typer.Option(help="Receive buffers as our executor has them, or as PyTorch's: one per micro-batch, always."),
]


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """How messages go."""

    protocol: Annotated[
        Literal["rendezvous", "eager"], typer.Option(help="Transfers start when both sides have posted, or one has.")
    ] = "rendezvous"
    sends: Annotated[
        Literal["posted", "blocking"],
        typer.Option(help="A Send goes on, or keeps its rank until the message left."),
    ] = "posted"
    chunk_bytes: Annotated[
        str | None, typer.Option(help="Pieces in which messages pass shared NICs: 64KiB; else whole messages do.")
    ] = None
    slowdown: Annotated[
        float,
        typer.Option(help="Ops take 1 + this times as long beside a message.", min=0.0, max=100.0),
    ] = 0.0

    def rules(self) -> NetworkOptions:
        """Return what the simulator supposes of messages."""
        from pipesched.simulator import NetworkOptions

        chunk_bytes = None if self.chunk_bytes is None else parse_bytes(self.chunk_bytes, "--chunk-bytes")
        return NetworkOptions(self.protocol, self.sends, chunk_bytes, self.slowdown)


@dataclass(frozen=True, slots=True)
class TrafficOptions:
    """Of a simulation."""

    messages: MessageOptions = MessageOptions()
    compression: Annotated[Literal["half"] | None, typer.Option(help="Send messages in half precision.")] = None
    convert_bytes_per_s: Annotated[
        float | None, typer.Option(help="How quickly a device converts, with --compression; else in no time.", min=1.0)
    ] = None
    slow: Annotated[
        list[str] | None, typer.Option(help="A straggler, device=3,factor=1.3, or a slow link, link=0-1,factor=2.")
    ] = None
    jitter: Annotated[float, typer.Option(help="Sigma of a log-normal factor on every op.", min=0.0, max=10.0)] = 0.0
    seed: Annotated[int, typer.Option(help="Of random numbers.", min=0)] = 0

    def rules(self) -> NetworkOptions:
        """Return what the simulator supposes of messages."""
        return self.messages.rules()

    def on(self, cluster: Cluster) -> Cluster:
        """Return the machines with what is slow of them.

        Raises:
            InputError: Something is slowed that is not there, or no ``key=value``.
        """
        for text in self.slow or ():
            cluster = _slowed(cluster, text)
        return cluster


def _slowed(cluster: Cluster, text: str) -> Cluster:
    from pipesched.profiles.clusters import with_slow_device, with_slow_link

    found = pairs(text, "--slow", ("device", "link", "factor"), "device=3,factor=1.3")
    if "factor" not in found or len(found) != 2:
        raise InputError(f"--slow: got {text!r}, expected a device or a link, and a factor; try device=3,factor=1.3")
    factor = number(found["factor"], "--slow: factor")
    if not 0 < factor <= _MOST:
        raise InputError(f"--slow: factor: got {found['factor']}, expected more than 0, up to {_MOST:g}; try 1.3")
    what, names = ("device", [found["device"]]) if "device" in found else ("link", found["link"].split("-"))
    if what == "link" and len(names) != 2:
        raise InputError(f"--slow: link: got {found['link']!r}, expected two devices; try link=0-1")
    ends = [read_integer(name, f"--slow: {what}") for name in names]
    for end in ends:
        if not 0 <= end < len(cluster.devices):
            raise InputError(f"--slow: {what}: got device {end}, expected 0 to {len(cluster.devices) - 1}; try another")
    if what == "device":
        return with_slow_device(cluster, ends[0], factor)
    return with_slow_link(cluster, ends[0], ends[1], factor)


_MOST = 1e6
