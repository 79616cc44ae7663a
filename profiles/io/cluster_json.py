"""A cluster as JSON: ``{"format": "pipesched-cluster", "version": 1, "devices": [...], "intra": {...}, ...}``.

A bandwidth or a memory of null is unlimited. If `inter` is null, `intra` also joins the nodes. A link may give the
time of its messages on both ranks, and a device its overhead between ops (default: 0). ``"nics": [[0, 1], [2, 3]]``:
devices 0 and 1 share a network interface for all traffic with other nodes; devices 2 and 3 share another.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipesched.profiles.clusters import Cluster, Device, Gpu, KernelCurve, Link
from pipesched.profiles.io.faults import require_no_faults
from pipesched.profiles.io.validation import Record, parse_record
from pipesched.schedules.common import Bytes, Count, PositiveShare, Seconds, Text

_ADVICE = "correct it, or measure the links again"
_RANK_COSTS = ("send_s", "send_s_per_byte", "post_s", "receive_s", "receive_s_per_byte")


class _Link(Record):
    """A link in a file.

    Attributes:
        bandwidth_bytes_per_s: Bandwidth of the link, for all messages together; null for unlimited.
    """

    becomes: ClassVar[type] = Link

    latency_s: Seconds
    bandwidth_bytes_per_s: Annotated[float, Field(gt=0)] | None
    send_s: Seconds = 0.0
    send_s_per_byte: Seconds = 0.0
    post_s: Seconds = 0.0
    receive_s: Seconds = 0.0
    receive_s_per_byte: Seconds = 0.0

    def parts(self) -> dict[str, Any]:
        parts = super().parts()
        return {**parts, "bandwidth_bytes_per_s": parts["bandwidth_bytes_per_s"] or math.inf}


class _PairLink(_Link):
    """A link from one device to another.

    Attributes:
        source: The device that sends.
        target: The device that receives.
    """

    source: Count
    target: Count

    def value(self) -> tuple[int, int, Link]:
        """Return the link with its ends."""
        parts = self.parts()
        return parts.pop("source"), parts.pop("target"), Link(**parts)


class ClusterRecord(Record):
    """A cluster in a file or a plan."""

    becomes: ClassVar[type] = Cluster

    format: Literal["pipesched-cluster"]
    version: Literal[1]
    devices: Annotated[tuple[Device, ...], Field(min_length=1, max_length=100_000)]
    intra: _Link
    inter: _Link | None = None
    loopback: _Link = _Link(latency_s=0.0, bandwidth_bytes_per_s=None)
    links: Annotated[tuple[_PairLink, ...], Field(max_length=1_000_000)] = ()
    nics: Annotated[tuple[tuple[Count, ...], ...], Field(max_length=100_000)] = ()
    origin: Text = ""

    def require_consistent(self, file: str, advice: str) -> None:
        """Refuse parts that contradict each other.

        Raises:
            ProfileError: The parts are inconsistent; the message names `file`, the place, the actual and the expected
                value, and the advice.
        """
        require_no_faults(file, _inconsistencies(self), advice)


def read_cluster(text: str, file: str) -> Cluster:
    """Return the cluster in `text`.

    Raises:
        ProfileError: The text is no cluster; the message names `file`, the place, the actual and the expected value.
    """
    record = parse_record(ClusterRecord, text, file, _ADVICE)
    record.require_consistent(file, _ADVICE)
    cluster: Cluster = record.value()
    return cluster


def cluster_text(cluster: Cluster, file: str) -> str:
    """Return `cluster` as JSON for `read_cluster`.

    Raises:
        ProfileError: The cluster has invalid numbers, such as NaN.
    """
    text = json.dumps(cluster_fields(cluster), indent=1) + "\n"
    read_cluster(text, file)
    return text


def cluster_fields(cluster: Cluster) -> dict[str, Any]:
    """Return `cluster` as the data of its file."""
    return {
        "format": "pipesched-cluster",
        "version": 1,
        "devices": [_device_fields(device) for device in cluster.devices],
        "intra": _fields(cluster.intra),
        "inter": None if cluster.inter is None else _fields(cluster.inter),
        "loopback": _fields(cluster.loopback),
        "links": [{"source": a, "target": b, **_fields(link)} for a, b, link in cluster.links],
        "nics": [list(devices) for devices in cluster.nics],
        "origin": cluster.origin,
    }


def _fields(link: Link) -> dict[str, Any]:
    bandwidth = link.bandwidth_bytes_per_s
    rank_costs = {name: getattr(link, name) for name in _RANK_COSTS if getattr(link, name)}
    return {
        "latency_s": link.latency_s,
        "bandwidth_bytes_per_s": None if bandwidth == math.inf else bandwidth,
        **rank_costs,
    }


def _device_fields(device: Device) -> dict[str, Any]:
    op_s = {"op_s": device.op_s} if device.op_s else {}
    return {"speed": device.speed, "memory_bytes": device.memory_bytes, "node": device.node, **op_s}


def _inconsistencies(record: ClusterRecord) -> list[str]:
    faults = []
    seen = set()
    for index, pair in enumerate(record.links):
        if max(pair.source, pair.target) >= len(record.devices):
            faults.append(
                f"links.{index}: got a link from device {pair.source} to {pair.target}, "
                f"expected devices 0 to {len(record.devices) - 1}"
            )
        if (pair.source, pair.target) in seen:
            faults.append(f"links.{index}: got a second link from device {pair.source} to {pair.target}, expected one")
        seen.add((pair.source, pair.target))
    return faults + _nic_faults(record)


def _nic_faults(record: ClusterRecord) -> list[str]:
    faults = []
    seen: set[int] = set()
    for index, devices in enumerate(record.nics):
        if not devices or max(devices) >= len(record.devices):
            faults.append(
                f"nics.{index}: got devices {list(devices)[:8]}, expected devices from 0 to {len(record.devices) - 1}"
            )
        elif len({record.devices[device].node for device in devices}) > 1:
            faults.append(f"nics.{index}: got devices of several nodes, expected devices of one node")
        if seen & set(devices) or len(set(devices)) < len(devices):
            faults.append(f"nics.{index}: got a device twice, expected each device in one NIC")
        seen.update(devices)
    return faults


_Rate = Annotated[float, Field(gt=0, le=1e24)]


class _Gpu(Record):
    memory_bytes: Annotated[Bytes, Field(gt=0)]
    flops_per_s: Annotated[dict[Annotated[str, Field(max_length=40)], _Rate], Field(min_length=1, max_length=20)]
    memory_bandwidth_bytes_per_s: _Rate
    link_bandwidth_bytes_per_s: _Rate
    efficiency: PositiveShare
    sustained: PositiveShare = 1.0
    origin: Text = ""
    multiprocessors: Annotated[int, Field(gt=0, le=100_000)] | None = None
    kernels: Annotated[str, Field(max_length=40)] | KernelCurve | None = None
    float8_efficiency: PositiveShare | None = None
    machine: Text | None = None
    family: Text | None = None


def gpu_text(gpu: Gpu) -> str:
    """Return a GPU as JSON for `read_gpu`, without its name: the file has the name.

    Raises:
        ProfileError: The GPU has invalid numbers, such as NaN.
    """
    fields = {name: value for name, value in asdict(gpu).items() if name != "name" and value is not None}
    text = json.dumps(fields, indent=1) + "\n"
    parse_record(_Gpu, text, f"gpu {gpu.name}", "correct it")
    return text


def read_gpu(text: str, file: str, name: str, load_curve: Callable[[str, str], KernelCurve]) -> Gpu:
    """Return the GPU in `text`, called `name`.

    Args:
        text: Text of the file.
        file: Name of the file, for messages.
        name: Name of the GPU.
        load_curve: Returns the curve of kernels of a name that the file gives.

    Raises:
        ProfileError: The text is no GPU; the message names `file`, the place, the actual and the expected value.
    """
    parts = parse_record(_Gpu, text, file, "see profiles/data/gpus/h100.json").parts()
    if isinstance(parts["kernels"], str):
        parts["kernels"] = load_curve(parts["kernels"], file)
    return Gpu(name, **parts)
