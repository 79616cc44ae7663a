"""The settings of a measurement of links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pipesched.profiles import Carrier
from pipesched.schedules.common import MAX_NUMBER, Description

NumRanks: TypeAlias = Annotated[
    int,
    Description(
        "Ranks to start on this machine, a process each.", option="--ranks", short="-p", least=2, most=MAX_NUMBER
    ),
]


@dataclass(frozen=True, kw_only=True)
class LinkSettings:
    """The settings of a measurement of links."""

    backend: Annotated[Carrier, Description("Carrier of the messages: gloo, or nccl with a GPU per rank.")] = "gloo"
    repeats: Annotated[int, Description("Measurements of each size; the median counts.", least=1, most=MAX_NUMBER)] = 20
