"""Options for the machines (a file, equal links, or nodes), and for the conditions of a simulation on them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from string import ascii_letters
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from pipesched.cli.errors import InputError, read_from
from pipesched.cli.options.values import number, numbers, pairs, parse_memory, read_integer
from pipesched.profiles import clusters, io
from pipesched.questions import PredictionSettings
from pipesched.schedules.common import option_name
from pipesched.schedules.formats import MAX_DEVICES
from pipesched.simulator import NetworkOptions
from pipesched.simulator.analysis import readable_bytes
from pipesched.workflows import arguments

if TYPE_CHECKING:
    from pipesched.profiles.clusters import Cluster
    from pipesched.profiles.costs import Profile

_MACHINES = (
    "aws-g5.48xlarge, aws-p3.16xlarge, dgx-a100, dgx-a100-80gb, dgx-b200, dgx-b300, dgx-h100, dgx-h200, "
    "gb200-nvl72, gb300-nvl72, grand-teton, hgx-h20, hgx-h800, mi300x-node, mi355x-node, wpipe-v100"
)
"""The names in `profiles.io.loading`, written here because loading that package takes time."""


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """Options for the devices and the links between them."""

    panel: ClassVar[str] = "Machines"
    cluster: Annotated[Path | None, typer.Option(help="Cluster: its devices and links (JSON).")] = None
    link: Annotated[
        str | None,
        typer.Option(
            help="Equal links: latency=10us,bandwidth=25GB/s. Keys: latency_s, bandwidth_bytes_per_s "
            "(or latency, bandwidth), send_s, send_s_per_byte, post_s, receive_s, receive_s_per_byte."
        ),
    ] = None
    nodes: Annotated[
        int | None, typer.Option(help="Number of nodes with equal devices, in place of --cluster.", min=1)
    ] = None
    gpus: Annotated[int | None, typer.Option(help="Devices per node.", min=1, max=1024)] = None
    intra: Annotated[str | None, typer.Option(help="Links inside a node, as --link.")] = None
    inter: Annotated[str | None, typer.Option(help="Links between nodes, as --link.")] = None
    nics: Annotated[
        int | None,
        typer.Option(help="Network interfaces per node, shared by its devices (default: no limit).", min=1, max=1024),
    ] = None
    machine: Annotated[
        str | None,
        typer.Option(
            help=f"Type of the nodes: {_MACHINES}, or a file (JSON). Default of --nodes: enough for the devices."
        ),
    ] = None
    memory_limit: Annotated[str | None, typer.Option(help="Memory of every device: 16GB or 16GiB.")] = None

    @property
    def are_given(self) -> bool:
        """Whether any option but the memory is given."""
        return replace(self, memory_limit=None) != MachineOptions()

    def load(self, num_devices: int, what: str, usual: Cluster | None = None) -> Cluster:
        """Return at least `num_devices` devices.

        Args:
            num_devices: At least 1.
            what: The user of the devices, for messages.
            usual: Default machines; None: equal devices whose links take no time.

        Raises:
            InputError: The options do not name one cluster, or its devices are too few.
            ProfileError: The file is not a cluster.
        """
        if num_devices > MAX_DEVICES:
            raise InputError(f"devices: got {num_devices} for {what}, expected at most {MAX_DEVICES}; use fewer")
        given = self._given(num_devices) if usual is None or self.are_given else usual
        place = str(self.cluster or ("--plan" if given is usual else "--nodes"))
        cluster = arguments.with_enough_devices(given, num_devices, what, place)
        limit = self.limit_bytes()
        if limit is None:
            return cluster
        return replace(cluster, devices=tuple(replace(device, memory_bytes=limit) for device in cluster.devices))

    def load_first(self, num_devices: int | None, option: str, command: str) -> Cluster:
        """Return the first devices of the machines.

        Args:
            num_devices: Number of devices; None: all of the machines.
            option: The option of that number.
            command: The command, for messages.

        Raises:
            InputError: The options do not name one cluster, or its devices are too few.
            ProfileError: The file is not a cluster.
        """
        if num_devices is None and self.cluster is None and self.nodes is None:
            raise InputError(
                f"{command}: got no machines, expected devices; try --cluster F, --nodes 2 --gpus 4, or {option} 4"
            )
        user = option if num_devices is None else f"{option} {num_devices}"
        return clusters.first_devices(self.load(num_devices or 1, user), num_devices)

    def limit_bytes(self) -> int | None:
        """Return the memory limit of every device [bytes], or None without one.

        Raises:
            InputError: The limit is no size.
        """
        return None if self.memory_limit is None else parse_memory(self.memory_limit, "--memory-limit")

    def require_judged(self, has_bytes: bool, advice: str = "try --uniform f=1,b=2,saved_bytes=1e9") -> None:
        """Refuse a memory limit without bytes to compare.

        Raises:
            InputError: `--memory-limit` is given, and the costs have no bytes.
        """
        if self.memory_limit is not None and not has_bytes:
            raise InputError(f"--memory-limit: got costs without bytes, expected costs with bytes; {advice}")

    def require_suited(self, profile: Profile) -> None:
        """Refuse machines that do not suit a profile.

        Raises:
            InputError: There is a memory limit, and the layers have no bytes; or each device is several GPUs that share
                layers, and a node of --machine has too few GPUs for its devices.
        """
        whole = profile.costs_of_layers(((0, len(profile.layers)),), profile.microbatch_sizes[0])
        self.require_judged(whole.has_bytes, "profile the model again")
        size = profile.gpus_per_device
        if self.machine is None or size == 1:
            return
        num_gpus = len(io.load_machine(self.machine).devices)
        got, most = self.gpus or num_gpus, max(1, num_gpus // size)
        if got > most:
            raise InputError(
                f"--gpus: got {got} devices of {self.machine}, a node of {num_gpus} GPUs, expected at most {most}, as "
                f"each device of the profile is {size} GPUs that share its layers; try --gpus {most}"
            )

    def for_devices(self, size: int) -> MachineOptions:
        """Return the options with --gpus set to the most devices that fit on a node of --machine.

        An explicit --gpus is kept.

        Args:
            size: GPUs of a device.
        """
        if self.machine is None or self.gpus is not None or size == 1:
            return self
        return replace(self, gpus=max(1, len(io.load_machine(self.machine).devices) // size))

    def limit_text(self) -> str | None:
        """Return `--memory-limit` as given and as sizes are printed, ``14 GB (13.04 GiB)``, or None without it."""
        limit = self.limit_bytes()
        if self.memory_limit is None or limit is None:
            return None
        amount = self.memory_limit.strip().rstrip(ascii_letters)
        unit = self.memory_limit.strip().removeprefix(amount) or "B"
        said, told = f"{amount.strip()} {unit}", readable_bytes(limit)
        return said if said.lower() == told.lower() else f"{said} ({told})"

    def _given(self, num_devices: int) -> Cluster:
        given = self._options_of("cluster", "link", "nodes")
        if len(given) > 1:
            raise InputError(f"links: got {' and '.join(given)}, expected only one of them; leave the others out")
        if self.nodes is not None or (self.machine is not None and not given):
            node = self._node(self.nodes or 1)
            nodes = self.nodes or -(-num_devices // len(node.devices))
            if nodes * len(node.devices) > MAX_DEVICES:
                raise InputError(
                    f"--nodes: got {nodes} of {len(node.devices)} devices, expected at most {MAX_DEVICES} "
                    "in all; use fewer"
                )
            return clusters.of_nodes(node, nodes)
        stray = self._options_of("gpus", "intra", "inter", "nics", "machine")
        if stray:
            raise InputError(f"{stray[0]}: got this option without --nodes, expected both; try --nodes 2")
        if self.cluster is not None:
            read_from(self.cluster, "cluster")
            return io.load_cluster(self.cluster)
        return clusters.flat(num_devices, clusters.Link() if self.link is None else parse_link(self.link, "--link"))

    def _options_of(self, *names: str) -> list[str]:
        """Return the options of these fields that are given."""
        return [option_name(name) for name in names if getattr(self, name) is not None]

    def _node(self, num_nodes: int) -> clusters.Cluster:
        """Return one node: the node of --machine, changed by the other options."""
        if self.machine is not None:
            node = io.load_machine(self.machine)
            if self.gpus is not None:
                nics = clusters.dealt(self.gpus, len(node.nics)) if node.nics else ()
                node = replace(node, devices=node.devices[:1] * self.gpus, nics=nics)
        elif self.gpus is None:
            raise InputError("--nodes: got no --gpus, expected the devices of a node; try --gpus 4, or --machine")
        else:
            node = clusters.Cluster((clusters.Device(),) * self.gpus, origin="nodes of equal devices")
            if self.gpus > 1 and self.intra is None:
                raise InputError("--gpus: got no --intra, expected the links in a node; try --machine dgx-h100")
            if num_nodes > 1 and self.inter is None:
                raise InputError("--nodes: got no --inter, expected the links between nodes; try --machine dgx-h100")
        return replace(
            node,
            intra=node.intra if self.intra is None else parse_link(self.intra, "--intra"),
            inter=node.inter if self.inter is None else parse_link(self.inter, "--inter"),
            nics=node.nics if self.nics is None else clusters.dealt(len(node.devices), self.nics),
        )


def parse_link(text: str, option: str) -> clusters.Link:
    """Return the link of a text as ``latency=10us,bandwidth=1GB/s``.

    Raises:
        InputError: The text is no link.
    """
    values = numbers(text, option, [field.name for field in fields(clusters.Link)], "latency=10us,bandwidth=25GB/s")
    if values.get("bandwidth_bytes_per_s") == 0:
        raise InputError(
            f"{option}: bandwidth_bytes_per_s: got 0, expected a number above 0; leave it out for no limit"
        )
    return clusters.Link(**values)


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


def with_slow_parts(cluster: Cluster, texts: Iterable[str]) -> Cluster:
    """Return the machines with the slow parts of `--slow`.

    Raises:
        InputError: A slow part does not exist, or is no ``key=value``.
    """
    most = len(cluster.devices) - 1
    for text in texts:
        ends, factor = slow_part(text)
        what = "device" if len(ends) == 1 else "link"
        for end in ends:
            if not 0 <= end <= most:
                raise InputError(f"--slow: {what}: got device {end}, expected a device from 0 to {most}; try another")
        if len(ends) == 1:
            cluster = clusters.with_slow_device(cluster, ends[0], factor)
        else:
            cluster = clusters.with_slow_link(cluster, ends[0], ends[1], factor)
    return cluster


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
