"""The settings of a partition of a model into stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pipesched.profiles.partitioning import ReplicationForm
from pipesched.schedules.common import Description
from pipesched.schedules.formats import MAX_DEVICES

PartitionAim: TypeAlias = Literal["replicas", "time", "memory"]
NumDevices: TypeAlias = Annotated[
    int,
    Description(
        "Number of ranks, one per device; all ranks get layers.",
        option="--ranks",
        short="-p",
        least=1,
        most=MAX_DEVICES,
    ),
]
ProfiledSize: TypeAlias = Annotated[
    int | None,
    Description("Samples per micro-batch (default: the smallest of the profile).", least=1, most=2**31 - 1),
]


@dataclass(frozen=True, kw_only=True)
class PartitionSettings:
    """The objective of a partition."""

    by: Annotated[
        PartitionAim,
        Description(
            "Goal: least time with PipeDream's replicated stages (replicas); least time, or least memory, without "
            "replicas."
        ),
    ] = "replicas"
    form: Annotated[
        ReplicationForm,
        Description("Formula of `by=replicas`: from PipeDream's paper, or from its published optimizer."),
    ] = "paper"
    straight: Annotated[bool, Description("Use PipeDream's formula with one device per stage.")] = False
    num_chunks: Annotated[int, Description("Stages per device; needs `by=time`.", short="-v", least=1, most=1024)] = 1
