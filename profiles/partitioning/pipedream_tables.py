"""The tables of PipeDream's programme, over layers i (first) to j (behind the last); see `pipedream_partition`.

A level asks the level below it about one group that represents all replicas. Device d of it is as slow and as small as
the least of the devices d. `behind` it is the number of devices of later stages per replica: with a devices behind m
groups that is ceil(a / m), and ceilings of ceilings add up to 1F1B-RR's ceil(R / r) in flight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

import numpy as np

from pipesched.profiles.clusters import Device
from pipesched.profiles.partitioning.antichains import Prefixes
from pipesched.profiles.partitioning.replicated_stage import (
    ChainLayer,
    Level,
    ReplicatedStage,
    ReplicationForm,
    StageBytes,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

Times: TypeAlias = "NDArray[np.float64]"


@final
class LayerSums:
    """The common data of all levels: the layers, summed over every i and j, and the cost to minimize.

    In a graph i and j are prefixes; a stage lies between two prefixes if the second contains the first. With
    ``form="bytes"`` the cost is the memory of the fullest device, and memory is not limited.
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
            self._cut_bytes: Sequence[int] = [0, *(layer.output_bytes for layer in layers)]
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
        """Return the cost of each i..j on one device; infinite if it is no stage, or does not fit."""
        held = self._bytes[0] + in_flight * self._bytes[1]
        if self.form == "bytes":
            return np.where(np.isfinite(self.work_s), held, np.inf)
        limit = math.inf if device.memory_bytes is None or not self.looks_at_bytes else device.memory_bytes
        return np.where(held <= limit, self.work_s / device.speed, np.inf)

    def cut_s(self, level: Level) -> Times:
        """Return the cost of a cut before each layer."""
        if self.form != "paper":
            return np.zeros(self.num_layers + 1)
        return 2.0 * np.array(self._cut_bytes, float) / level.bandwidth_bytes_per_s

    def reduce_s(self, level: Level, count: int, weights: Any) -> Any:
        """Return the seconds of averaging gradients over `count` groups, per micro-batch of one of them."""
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
    """Return the best pipelines of the first layers, up to any j, on all devices."""
    return Tables(chain, tuple(levels), tuple(replace(device, node=0) for device in devices), behind=0, rows=1)


@final
class Tables:
    """The best pipelines of one level on its devices, with `behind` more devices behind.

    Attributes:
        best_s: Best seconds on all groups, by (i, j), i below `rows`.
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
        """Return A: by (groups, i, j), on the first groups of all."""
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
        raise AssertionError("the tables were filled from these")

    def _stage_s(self, own: int, count: int) -> Times:
        """Return the cost of each i..j as one stage on `own` groups, the last of the first `count`."""
        chain = self._chain
        if chain.straight and own > 1:
            return np.full_like(chain.work_s, np.inf)
        below = self._below(own, count)
        inner_s = below.best_s if isinstance(below, Tables) else chain.alone(*below)
        return np.asarray(chain.both_s(inner_s, chain.reduce_s(self._level, own, chain.weights), own))

    def _below(self, own: int, count: int) -> Tables | tuple[Device, int]:
        """Return the tables of the group that stands for these devices, or a device and its micro-batches in flight."""
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
        """Return the stages of layers that are one stage at this level; they may be a pipeline in the level below."""
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
