"""The settings of a simulation and of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pipesched.schedules.common import MAX_NUMBER, Description


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCount:
    """The number of runs with jitter."""

    num_runs: Annotated[
        int,
        Description(
            "Runs with `jitter`, with seeds from `seed` on, for percentiles.",
            least=1,
            most=MAX_NUMBER,
            panel="Network",
        ),
    ] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateSettings(RunCount):
    """The settings of a simulation."""

    spread: Annotated[
        int,
        Description(
            "Draws of the measured seconds, of a profile or of costs from runs, for a range of the makespan; 0: no "
            "range.",
            least=0,
            most=MAX_NUMBER,
        ),
    ] = 0
    bound_seconds: Annotated[
        float | None,
        Description(
            "Time limit [s] of a search for a lower bound on the time of the ops in any order, under the same memory; "
            "0: simple bounds alone (default: no bound).",
            least=0.0,
            option="--bound",
        ),
    ] = None
