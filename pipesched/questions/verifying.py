"""The settings of a verification in rounds."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pipesched.schedules.common import MAX_NUMBER, Description

NumRounds: TypeAlias = Annotated[
    int | None,
    Description("Rounds of a short profile and runs, for median errors with intervals.", least=2, most=MAX_NUMBER),
]
RoundPrecision: TypeAlias = Annotated[
    float | None,
    Description("Largest drift of the machine for a verdict, with `rounds` (default: 0.05).", least=0.0),
]
