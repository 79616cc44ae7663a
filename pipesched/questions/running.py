"""The settings of a measured run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pipesched.executor import Repetitions, RunSettings


@dataclass(frozen=True, kw_only=True)  # without slots, as two of them are joined
class MeasureSettings(RunSettings, Repetitions):
    """The settings of a measured run."""

    panel: ClassVar[str] = "Run"
