"""Types of fields with their limits: pydantic, the schemas of files and readers of the code find both on the field."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from annotated_types import Ge, Gt, Le, Lt, MaxLen

Seconds: TypeAlias = Annotated[float, Ge(0), Le(1e12)]
"""Seconds, limited so that the square of a sum is finite."""
Bytes: TypeAlias = Annotated[int, Ge(0), Lt(2**63)]
Count: TypeAlias = Annotated[int, Ge(0), Lt(2**31)]
PositiveCount: TypeAlias = Annotated[int, Ge(1), Lt(2**31)]
Share: TypeAlias = Annotated[float, Ge(0), Le(1)]
PositiveShare: TypeAlias = Annotated[float, Gt(0), Le(1)]
Text: TypeAlias = Annotated[str, MaxLen(2000)]
