"""PipeDream's partitioner: layers into stages, and devices to stages (arXiv:1806.03377, section 3.2).

Devices come in levels: ``levels[0]`` joins a number of devices, as in a server, ``levels[1]`` a number of such groups.
T_l are the forward and backward seconds of layer l, a_l the bytes of its output, w_l the bytes of its weights, and B_k
the bandwidth of level k. On m groups of level k, the layers i..j take T^k(i..j, m) per micro-batch as one stage, and
A^k(i..j, m) as the best pipeline:

    T^k(i..j, m) = max( A^{k-1}(i..j, all of level k-1), 2 (m - 1) sum of w / B_k ) / m
    A^k(i..j, m) = min over s and m' of max( A^k(i..s, m - m'), 2 a_s / B_k, T^k(s+1..j, m') ),  or T^k(i..j, m)

A^0 is the sum of T_l. The authors' published optimizer adds the time of the gradients to the work,
(A + 4 (m - 1) sum of w / (B m)) / m, and ignores the transfers between stages: ``form="published"``.

Two extensions are not in the paper. First, devices may differ. A stage gets neighbouring devices. Each replica gets
every m-th micro-batch, so all replicas count as slow and as small as the least of them: A^0 is the sum of T_l divided
by the least speed. Second, a stage must fit its devices. Under 1F1B-RR a stage on r devices has ceil(R / r)
micro-batches in flight, each with a version of the weights, where R devices hold this stage and the later ones. A^0 is
infinite if a device has less memory.

For a stage on m groups, the tables of a level read the tables of the level below for one group that represents all m:
its device d has the least speed and the least memory of all devices d. `behind` is the number of devices of later
stages per replica: ceil(a / m) for a devices behind the m groups. These ceilings over all levels give ceil(R / r).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

import numpy as np

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Device
from pipesched.profiles.partitioning.antichains import Prefixes

if TYPE_CHECKING:
    from numpy.typing import NDArray

ReplicationForm: TypeAlias = Literal["paper", "published"]
"""Formula of the cost of replicas: of PipeDream's paper, or of its published optimizer."""

StageBytes: TypeAlias = Callable[[int, int], tuple[int, int]]
"""Bytes of (first layer, layer behind the last) on each device: fixed, and per micro-batch in flight."""


@dataclass(frozen=True, slots=True)
class ChainLayer:
    """The costs of a layer for the partitioner.

    Attributes:
        seconds: Seconds of forward and backward of one micro-batch on a device of speed 1.
        output_bytes: Bytes that cross a cut behind the layer, the mean of both directions.
        weight_bytes: Bytes of the layer's parameters; their gradients take as many bytes again.
    """

    seconds: float
    output_bytes: float
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the network: `num_groups` groups of the level below, or devices at the lowest level.

    Every pair of groups is connected at `bandwidth_bytes_per_s`.
    """

    num_groups: int
    bandwidth_bytes_per_s: float = math.inf


@dataclass(frozen=True, slots=True)
class ReplicatedStage:
    """One stage of the plan; all times are per micro-batch of the whole pipeline.

    Attributes:
        first: The stage's first layer.
        last: The layer after the stage's last layer.
        devices: The devices that hold the stage, numbered group by group.
        compute_s: Seconds of forward and backward, divided by the number of replicas.
        reduce_s: Seconds of averaging the gradients, at the slowest of the levels.
        transfer_s: Seconds of the messages from and to the previous stage, the input and its gradient; 0 for the first
            stage.
        seconds: Cost of work and averaging by the formula of the partitioner.
    """

    first: int
    last: int
    devices: tuple[int, ...]
    compute_s: float
    reduce_s: float
    transfer_s: float
    seconds: float

    @property
    def replicas(self) -> int:
        """The number of devices that hold the stage."""
        return len(self.devices)


_MAX_ENTRIES = 5 * 10**7
"""Largest number of entries of a table, 8 bytes each."""


def replicated_partition(
    layers: Sequence[ChainLayer],
    levels: Sequence[Level],
    *,
    form: ReplicationForm = "paper",
    straight: bool = False,
    devices: Sequence[Device] | None = None,
    stage_bytes: StageBytes | None = None,
    prefixes: Prefixes | None = None,
) -> tuple[ReplicatedStage, ...]:
    """Return the stages and their devices that minimize the time of the slowest part; the result is exact.

    Of equally fast partitions, the one with a single stage is returned, else the one with the fewest groups in the last
    stage, else the one with the earliest first layer of the last stage.
    The search takes layers^3 x groups^2 steps for each level but the last, and layers^2 x groups^2 for the last. If
    groups differ or memory is limited, the levels below are solved once for each sequence of neighbouring groups.

    Args:
        layers: The layers, in order; at least one.
        levels: The levels from the innermost, at least one. The product of their groups is the number of devices, which
            are all used.
        form: Formula: of the paper, or of the published optimizer.
        straight: Whether no stage is replicated.
        devices: Speeds and memory of the devices, group by group (default: all of speed 1).
        stage_bytes: Memory of a stage; None to ignore the memory of the devices.
        prefixes: Prefixes of the layers' graph; stages and `stage_bytes` then have numbers of prefixes in place of
            layers. None for a chain.

    Raises:
        ProfileError: A level has too many groups, no partition uses all devices, or no partition fits.
    """
    num_devices = math.prod(level.num_groups for level in levels)
    end = len(layers) if prefixes is None else len(prefixes.masks) - 1
    for index, level in enumerate(levels):
        if level.num_groups * (end + 1) ** 2 > _MAX_ENTRIES:
            raise ProfileError(
                f"partition: level {index}: got {level.num_groups} groups for {end} layers, expected groups x "
                f"layers^2 to be at most {_MAX_ENTRIES:.0e}; use fewer devices per level"
            )
    places = [Device()] * num_devices if devices is None else devices
    free = pipelines(LayerSums(layers, form, straight, None, prefixes), levels, places)
    if not math.isfinite(free.best_s[0, end]):
        raise ProfileError(
            f"partition: got {len(layers)} layers for {num_devices} devices in a straight pipeline, expected at least "
            "one layer per device; use fewer devices, or let stages be replicated"
        )
    best = tuple(free.stages(0, end))
    if stage_bytes is None or _fits(best, places, stage_bytes):
        return best
    tables = pipelines(LayerSums(layers, form, straight, stage_bytes, prefixes), levels, places)
    if math.isfinite(tables.best_s[0, end]):
        return tuple(tables.stages(0, end))
    least = pipelines(LayerSums(layers, "bytes", straight, stage_bytes, prefixes), levels, places).best_s[0, end]
    given = min(device.memory_bytes for device in places if device.memory_bytes is not None)
    raise ProfileError(
        f"partition: got a smallest device with {given} bytes, expected {least:.0f} bytes on each for "
        f"{num_devices} devices of 1F1B-RR; use more memory or devices, or try `by=time`"
    )


def replicated_in_flight(stages: Sequence[ReplicatedStage]) -> tuple[int, ...]:
    """Return the largest number of unfinished micro-batches on each device of a stage under 1F1B-RR."""
    behind = [*accumulate(stage.replicas for stage in reversed(stages))]
    return tuple(math.ceil(all_on / stage.replicas) for all_on, stage in zip(reversed(behind), stages, strict=True))


def slowest_s(stages: Sequence[ReplicatedStage]) -> float:
    """Return the time per micro-batch of the slowest part of a plan, which the partitioner minimizes."""
    return max(max(stage.seconds, stage.transfer_s) for stage in stages)


def _fits(stages: Sequence[ReplicatedStage], devices: Sequence[Device], stage_bytes: StageBytes) -> bool:
    for stage, num_in_flight in zip(stages, replicated_in_flight(stages), strict=True):
        always, for_microbatch = stage_bytes(stage.first, stage.last)
        limits = [devices[device].memory_bytes for device in stage.devices]
        if any(limit is not None and always + num_in_flight * for_microbatch > limit for limit in limits):
            return False
    return True


Times: TypeAlias = "NDArray[np.float64]"


@final
class LayerSums:
    """The common data of all levels: the layers, summed over every i and j, and the cost to minimize.

    In a graph i and j are prefixes; a stage lies between two prefixes if the second contains the first. With
    ``form="bytes"`` the cost is the memory of the fullest device, without a limit.
    """

    def __init__(
        self,
        layers: Sequence[ChainLayer],
        form: ReplicationForm | Literal["bytes"],
        straight: bool,
        stage_bytes: StageBytes | None,
        prefixes: Prefixes | None = None,
    ) -> None:
        self.form, self.straight = form, straight
        self.looks_at_bytes = stage_bytes is not None
        seconds, weight_bytes = [layer.seconds for layer in layers], [float(layer.weight_bytes) for layer in layers]
        if prefixes is None:
            self.num_layers = len(layers)
            work_s, weights = (np.array([0.0, *accumulate(values)]) for values in (seconds, weight_bytes))
            self._cut_bytes: Sequence[float] = [0, *(layer.output_bytes for layer in layers)]
            is_stage = np.arange(self.num_layers + 1)[:, None] < np.arange(self.num_layers + 1)
        else:
            self.num_layers = len(prefixes.masks) - 1
            work_s, weights = (np.array(prefixes.sums(values)) for values in (seconds, weight_bytes))
            self._cut_bytes = [0, *prefixes.cut_bytes[1:]]
            is_stage = prefixes.are_stages()
        self.work_s = np.where(is_stage, work_s - work_s[:, None], np.inf)
        self.weights = weights - weights[:, None]
        self._bytes = np.zeros((2, *self.work_s.shape))
        if stage_bytes is not None:
            for first, last in zip(*np.nonzero(is_stage), strict=True):
                self._bytes[:, first, last] = stage_bytes(int(first), int(last))
        self.tables: dict[tuple[int, tuple[Device, ...], int], Tables] = {}

    def alone(self, device: Device, in_flight: int) -> Times:
        """Return the costs of all layers i..j on one device; infinite if they are no stage, or do not fit."""
        held = self._bytes[0] + in_flight * self._bytes[1]
        if self.form == "bytes":
            return np.where(np.isfinite(self.work_s), held, np.inf)
        limit = math.inf if device.memory_bytes is None or not self.looks_at_bytes else device.memory_bytes
        return np.where(held <= limit, self.work_s / device.speed, np.inf)

    def cut_s(self, level: Level) -> Times:
        """Return the seconds of the transfers at a cut before each layer; 0 if the formula ignores them."""
        if self.form != "paper":
            return np.zeros(self.num_layers + 1)
        return 2.0 * np.array(self._cut_bytes, float) / level.bandwidth_bytes_per_s

    def reduce_s(self, level: Level, count: int, weights: Any) -> Any:
        """Return the seconds of averaging gradients over `count` groups, per micro-batch of one group."""
        if self.form == "paper":
            return 2 * (count - 1) * weights / level.bandwidth_bytes_per_s
        return 4 * (count - 1) * weights / (level.bandwidth_bytes_per_s * count)

    def both_s(self, inner_s: Any, reduce_s: Any, count: int) -> Any:
        """Return the cost of a stage on `count` groups."""
        match self.form:
            case "paper":
                return np.maximum(inner_s, reduce_s) / count
            case "published":
                return (inner_s + reduce_s) / count
            case "bytes":
                return inner_s


def pipelines(chain: LayerSums, levels: Sequence[Level], devices: Sequence[Device]) -> Tables:
    """Return the tables of the best pipelines on all devices, from the first layer to any j."""
    return Tables(chain, tuple(levels), tuple(replace(device, node=0) for device in devices), behind=0, rows=1)


@final
class Tables:
    """The best pipelines of one level on its devices, with `behind` devices of later stages.

    Attributes:
        best_s: Least cost on all groups, by (i, j), i below `rows`.
    """

    def __init__(
        self, chain: LayerSums, levels: tuple[Level, ...], devices: tuple[Device, ...], *, behind: int, rows: int
    ) -> None:
        self._chain, self._levels, self._level, self._devices, self._behind = chain, levels, levels[-1], devices, behind
        self._num_groups = self._level.num_groups
        self._group_size = len(devices) // self._num_groups
        self._cut_s = chain.cut_s(self._level)
        self._best_s = self._filled(rows)
        self.best_s: Times = self._best_s[self._num_groups]

    def stages(self, first: int, last: int) -> list[ReplicatedStage]:
        """Return the stages of the best pipeline of these layers over all groups."""
        count, later = self._num_groups, list[ReplicatedStage]()
        while self._best_s[count, first, last] < self._stage_s(count, count)[first, last]:
            cut, own = self._split(first, last, count)
            later[:0] = self._stage(cut, last, own, count, transfer_s=float(self._cut_s[cut]))
            last, count = cut, count - own
        return self._stage(first, last, count, count, transfer_s=0.0) + later

    def _filled(self, rows: int) -> Times:
        """Return the least costs A of layers i..j on the first `count` groups, indexed by (count, i, j)."""
        best = np.full((self._num_groups + 1, rows, self._chain.num_layers + 1), np.inf)
        for count in range(1, self._num_groups + 1):
            best[count] = self._stage_s(count, count)[:rows]
            for own in self._shares(count):
                before, stage_s = np.maximum(best[count - own], self._cut_s), self._stage_s(own, count)
                for i in range(rows):
                    either = np.maximum(before[i, i + 1 :, None], stage_s[i + 1 :]).min(axis=0, initial=np.inf)
                    np.minimum(best[count, i], either, out=best[count, i])
        return best

    def _shares(self, count: int) -> range:
        """Return the possible numbers of groups of the last stage among `count` groups."""
        return range(1, min(count, 2) if self._chain.straight else count)

    def _split(self, first: int, last: int, count: int) -> tuple[int, int]:
        """Return the first layer of the last stage, and its number of groups."""
        for own in self._shares(count):
            before = np.maximum(self._best_s[count - own, first], self._cut_s)
            either = np.maximum(before, self._stage_s(own, count)[:, last])
            cut = first + 1 + int(either[first + 1 :].argmin())
            if either[cut] == self._best_s[count, first, last]:
                return cut, own
        raise AssertionError("the tables have the least of these costs")

    def _stage_s(self, own: int, count: int) -> Times:
        """Return the costs of all layers i..j as one stage on the last `own` of the first `count` groups."""
        chain = self._chain
        if chain.straight and own > 1:
            return np.full_like(chain.work_s, np.inf)
        below = self._below(own, count)
        inner_s = below.best_s if isinstance(below, Tables) else chain.alone(*below)
        return np.asarray(chain.both_s(inner_s, chain.reduce_s(self._level, own, chain.weights), own))

    def _below(self, own: int, count: int) -> Tables | tuple[Device, int]:
        """Return the tables of the group that represents a stage's groups, or a device and its micro-batches in flight.

        The stage is on the last `own` of the first `count` groups.
        """
        chain, size = self._chain, self._group_size
        groups = [self._devices[group * size : (group + 1) * size] for group in range(count - own, count)]
        behind = math.ceil(((self._num_groups - count) * size + self._behind) / own)
        group = tuple(map(_least, zip(*groups, strict=True)))
        if len(self._levels) == 1:
            return group[0], 1 + behind
        key = (len(self._levels), group, behind if chain.looks_at_bytes else 0)
        if key not in chain.tables:
            rows = chain.num_layers + 1
            chain.tables[key] = Tables(chain, self._levels[:-1], group, behind=behind, rows=rows)
        return chain.tables[key]

    def _stage(self, first: int, last: int, own: int, count: int, transfer_s: float) -> list[ReplicatedStage]:
        """Return the stages of layers that form one stage at this level, and perhaps a pipeline at the level below."""
        chain, below = self._chain, self._below(own, count)
        if isinstance(below, Tables):
            inner = below.stages(first, last)
        else:
            work_s = float(chain.work_s[first, last]) / below[0].speed
            inner = [ReplicatedStage(first, last, (0,), work_s, 0.0, 0.0, work_s)]
        reduce_s = float(chain.reduce_s(self._level, own, chain.weights[first, last]))
        return [
            replace(
                stage,
                devices=tuple(
                    group * self._group_size + device for group in range(count - own, count) for device in stage.devices
                ),
                compute_s=stage.compute_s / own,
                reduce_s=max(stage.reduce_s, reduce_s) / own,
                transfer_s=transfer_s if index == 0 else stage.transfer_s / own,
                seconds=float(chain.both_s(stage.seconds, reduce_s, own)),
            )
            for index, stage in enumerate(inner)
        ]


def _least(devices: Sequence[Device]) -> Device:
    """Return a device as slow and as small as the least of these."""
    limits = [device.memory_bytes for device in devices if device.memory_bytes is not None]
    return Device(min(device.speed for device in devices), min(limits, default=None))
