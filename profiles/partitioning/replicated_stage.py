"""Layers, levels of devices, and replicated stages: the input and the output of PipeDream's partitioner."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

ReplicationForm: TypeAlias = Literal["paper", "published"]
"""Formula of the cost of replicas: of PipeDream's paper, or of its published optimizer."""

StageBytes: TypeAlias = Callable[[int, int], tuple[int, int]]
"""Bytes of (first layer, layer behind the last) on each device: fixed, and per micro-batch in flight."""


@dataclass(frozen=True, slots=True)
class ChainLayer:
    """The costs of a layer for the partitioner.

    Attributes:
        seconds: Forward and backward of one micro-batch on a device of speed 1.
        output_bytes: Bytes that cross a cut behind it, in each direction.
        weight_bytes: Bytes of the layer's parameters; their gradients take the same again.
    """

    seconds: float
    output_bytes: int
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Level:
    """A level: groups of the level below (of devices, at the lowest), each pair joined at `bandwidth_bytes_per_s`."""

    num_groups: int
    bandwidth_bytes_per_s: float = math.inf


@dataclass(frozen=True, slots=True)
class ReplicatedStage:
    """One stage of the plan; all times are per micro-batch of the whole pipeline.

    Attributes:
        first: The stage's first layer.
        last: The layer after the stage's last layer.
        devices: The devices that hold the stage, numbered group by group.
        compute_s: Forward and backward, shared by the replicas.
        reduce_s: Averaging the gradients, at the slowest of the levels.
        transfer_s: Time of the messages to and from the previous stage, the input and its gradient; 0 for the first
            stage.
        seconds: Cost of work and averaging together in the partitioner.
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
