"""Layers, levels of devices, and replicated stages: the question and the answer of PipeDream's partitioner."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

ReplicationForm: TypeAlias = Literal["paper", "published"]
"""What replicas take: by the formula of PipeDream's paper, or as its published optimizer works it out."""

StageBytes: TypeAlias = Callable[[int, int], tuple[int, int]]
"""What (first layer, layer behind the last) holds on each device: always, and per micro-batch in flight."""


@dataclass(frozen=True, slots=True)
class ChainLayer:
    """What the partitioner knows of a layer.

    Attributes:
        seconds: Forward and backward of one micro-batch on a device of speed 1.
        output_bytes: What crosses a cut behind it, one way; as much comes back.
        weight_bytes: Bytes of the layer's parameters; their gradients take as much.
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
        last: The layer behind its last.
        devices: The devices that hold the stage, numbered group by group.
        compute_s: Forward and backward, shared by the replicas.
        reduce_s: Averaging the gradients, at the slowest of the levels.
        transfer_s: Time of the stage's input and its gradient between it and the stage before; 0 for the first stage.
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
        """The number of devices that hold it."""
        return len(self.devices)
