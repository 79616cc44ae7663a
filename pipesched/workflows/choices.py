"""Choices of arguments of the library and options of the command line, in a module that imports fast."""

from __future__ import annotations

from typing import Literal, TypeAlias

FormatName: TypeAlias = Literal[
    "schedule",
    "timeline",
    "profile",
    "run-costs",
    "stage-costs",
    "layer-costs",
    "cluster",
    "plan",
    "job",
    "checkpoint",
    "search",
]
