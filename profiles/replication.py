"""PipeDream's partitioner: layers into stages, and devices to stages: arXiv:1806.03377, section 3.2.

Devices come in levels: ``levels[0]`` joins so many devices, as in a server, ``levels[1]`` so many of those groups.
With T_l the forward and backward seconds of layer l, a_l its output and w_l its weights [bytes], the layers i..j as one
stage on m groups of level k, and the best pipeline of them, take per micro-batch

    T^k(i..j, m) = max( A^{k-1}(i..j, all of level k-1), 2 (m - 1) sum of w / B_k ) / m
    A^k(i..j, m) = min over s and m' of max( A^k(i..s, m - m'), 2 a_s / B_k, T^k(s+1..j, m') ),  or T^k(i..j, m)

with A^0 the plain sum of T_l. The optimizer that the authors published adds the gradients' time to the work instead,
(A + 4 (m - 1) sum of w / (B m)) / m, and leaves the transfers between stages out: ``form="published"``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from profiles.errors import ProfileError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Times: TypeAlias = NDArray[np.float64]

Form: TypeAlias = Literal["paper", "published"]

_MAX_ENTRIES = 5 * 10**7
"""Of a table, each 8 bytes."""


@dataclass(frozen=True, slots=True)
class ChainLayer:
    """What the partitioner knows of a layer.

    Attributes:
        seconds: Forward and backward of one micro-batch.
        output_bytes: What crosses a cut behind it, one way; as much comes back.
        weight_bytes: Its parameters; their gradients take as much.
    """

    seconds: float
    output_bytes: int
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Level:
    """So many groups of the level below (of devices, at the lowest), each pair joined at `bandwidth_bytes_per_s`."""

    num_groups: int
    bandwidth_bytes_per_s: float = math.inf


@dataclass(frozen=True, slots=True)
class ReplicatedStage:
    """One stage of the plan; all times are per micro-batch of the whole pipeline.

    Attributes:
        first: Its first layer.
        last: The layer behind its last.
        devices: Those that hold it, numbered group by group.
        compute_s: Forward and backward, shared by the replicas.
        reduce_s: Averaging the gradients, at the slowest of the levels.
        transfer_s: Its input and the gradient of it, between it and the stage before; 0 for the first stage.
        seconds: What the partitioner charges for work and averaging together.
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
        """How many devices hold it."""
        return len(self.devices)


def replicated_partition(
    layers: Sequence[ChainLayer], levels: Sequence[Level], *, form: Form = "paper", straight: bool = False
) -> tuple[ReplicatedStage, ...]:
    """Return the stages, and the devices of each, whose slowest part takes the least time per micro-batch.

    Exact. Among equals one stage beats several, then the last stage has the fewest groups, then it begins earliest.
    Takes layers^3 x groups^2 steps for each level but the last, and layers^2 x groups^2 for that.

    Args:
        layers: In order.
        levels: From the innermost; the product of their groups is the number of devices. All devices are used.
        form: The paper's formula, or that of the published optimizer.
        straight: No stage is replicated.

    Raises:
        ProfileError: No layers or levels, numbers that are none, or no partition that uses all devices.
    """
    _require_possible(layers, levels)
    below: _Level | None = None
    for index, level in enumerate(levels):
        below = _Level(layers, level, below, form, straight, is_last=index == len(levels) - 1)
    assert below is not None, "there is a level"
    if not math.isfinite(below.best_s[0, len(layers)]):
        num_devices = math.prod(level.num_groups for level in levels)
        raise ProfileError(
            f"partition: got {len(layers)} layers for {num_devices} devices in a straight pipeline, expected at least "
            "one layer each; use fewer devices, or let stages be replicated"
        )
    return tuple(below.stages(0, len(layers)))


def slowest_s(stages: Sequence[ReplicatedStage]) -> float:
    """Return the time per micro-batch of the slowest part of a plan, which is what the partitioner makes least."""
    return max(max(stage.seconds, stage.transfer_s) for stage in stages)


@final
class _Level:
    """The tables of one level, over layers i (first) to j (behind the last)."""

    def __init__(
        self,
        layers: Sequence[ChainLayer],
        level: Level,
        below: _Level | None,
        form: Form,
        straight: bool,
        *,
        is_last: bool,
    ) -> None:
        import numpy as np

        num_layers, self._num_groups, self._below = len(layers), level.num_groups, below
        self._group_size = 1 if below is None else below.num_devices
        self.num_devices: int = level.num_groups * self._group_size
        self._bandwidth, self._form = level.bandwidth_bytes_per_s, form
        work_s = np.array([0.0, *accumulate(layer.seconds for layer in layers)])
        weights = np.array([0.0, *accumulate(float(layer.weight_bytes) for layer in layers)])
        later = np.arange(num_layers + 1)
        self._work_s = np.where(later[:, None] < later, work_s - work_s[:, None], np.inf)
        self._weights = weights - weights[:, None]
        inner = self._work_s if below is None else below.best_s
        cut = np.array([0.0, *(2.0 * layer.output_bytes / self._bandwidth for layer in layers)])
        self._cut_s = np.zeros_like(cut) if form == "published" else cut
        self._stage_s = np.full((self._num_groups + 1, num_layers + 1, num_layers + 1), np.inf)
        for count in range(1, 2 if straight else self._num_groups + 1):
            self._stage_s[count] = self._both_s(inner, self._reduce_s(count, self._weights), count)
        self._best_s = self._tables(rows=1 if is_last else num_layers + 1)
        self.best_s: Times = self._best_s[self._num_groups]  # over all groups, by (i, j)

    def stages(self, first: int, last: int) -> list[ReplicatedStage]:
        """Return the stages of the best pipeline of these layers over all groups."""
        count, found = self._num_groups, list[ReplicatedStage]()
        while self._best_s[count, first, last] < self._stage_s[count, first, last]:
            cut, own = self._split(first, last, count)
            found[:0] = self._stage(cut, last, range(count - own, count), transfer_s=float(self._cut_s[cut]))
            last, count = cut, count - own
        return self._stage(first, last, range(count), transfer_s=0.0) + found

    def _tables(self, rows: int) -> Times:
        """Fill A: by (groups, i, j)."""
        import numpy as np

        best = self._stage_s.copy()
        for last in range(2, best.shape[2]):
            for count in range(2, self._num_groups + 1):
                for own in range(1, count):
                    before = np.maximum(best[count - own, :rows], self._cut_s)
                    either = np.maximum(before, self._stage_s[own, :, last]).min(axis=1)
                    np.minimum(best[count, :rows, last], either, out=best[count, :rows, last])
        return best

    def _split(self, first: int, last: int, count: int) -> tuple[int, int]:
        """Return where the last stage begins, and on how many groups it is."""
        import numpy as np

        for own in range(1, count):
            before = np.maximum(self._best_s[count - own, first], self._cut_s)
            either = np.maximum(before, self._stage_s[own, :, last])
            cut = int(either.argmin())
            if either[cut] == self._best_s[count, first, last]:
                return cut, own
        raise AssertionError("the tables were filled from these")

    def _stage(self, first: int, last: int, groups: range, transfer_s: float) -> list[ReplicatedStage]:
        """Return layers that are one stage here, on each of `groups`, and may be a pipeline in the level below."""
        count = len(groups)
        if self._below is None:
            work_s = float(self._work_s[first, last])
            inner = [ReplicatedStage(first, last, (0,), work_s, 0.0, 0.0, work_s)]
        else:
            inner = self._below.stages(first, last)
        reduce_s = float(self._reduce_s(count, self._weights[first, last]))
        return [
            replace(
                stage,
                devices=tuple(group * self._group_size + device for group in groups for device in stage.devices),
                compute_s=stage.compute_s / count,
                reduce_s=max(stage.reduce_s, reduce_s) / count,
                transfer_s=transfer_s if index == 0 else stage.transfer_s / count,
                seconds=float(self._both_s(stage.seconds, reduce_s, count)),
            )
            for index, stage in enumerate(inner)
        ]

    def _reduce_s(self, count: int, weights: Any) -> Any:
        if self._form == "paper":
            return 2 * (count - 1) * weights / self._bandwidth
        return 4 * (count - 1) * weights / (self._bandwidth * count)

    def _both_s(self, inner_s: Any, reduce_s: Any, count: int) -> Any:
        import numpy as np

        return (np.maximum(inner_s, reduce_s) if self._form == "paper" else inner_s + reduce_s) / count


def _require_possible(layers: Sequence[ChainLayer], levels: Sequence[Level]) -> None:
    if not layers or not levels:
        raise ProfileError(f"partition: got {len(layers)} layers and {len(levels)} levels, expected at least 1 of each")
    for index, layer in enumerate(layers):
        if not math.isfinite(layer.seconds) or min(layer.seconds, layer.output_bytes, layer.weight_bytes) < 0:
            raise ProfileError(
                f"partition: layer {index}: got {layer}, expected finite numbers of 0 or more; correct it"
            )
    for index, level in enumerate(levels):
        if level.num_groups < 1 or not level.bandwidth_bytes_per_s > 0:
            raise ProfileError(
                f"partition: level {index}: got {level.num_groups} groups at {level.bandwidth_bytes_per_s} bytes/s, "
                "expected at least 1, and more than 0 bytes/s; correct it"
            )
        if level.num_groups * (len(layers) + 1) ** 2 > _MAX_ENTRIES:
            raise ProfileError(
                f"partition: level {index}: got {level.num_groups} groups for {len(layers)} layers, expected groups x "
                f"layers^2 to be at most {_MAX_ENTRIES:.0e}; use fewer devices per level"
            )
