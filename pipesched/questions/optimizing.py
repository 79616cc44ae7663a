"""The settings of the search for the fastest order of ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipesched.schedules.common import MAX_NUMBER, Description


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeSettings:
    """The settings of the search."""

    panel: ClassVar[str] = "Search"

    in_flight: Annotated[
        float | None,
        Description(
            "Most micro-batches in flight on a rank (default: by the memory of the devices, or the most of the "
            "schedule).",
            least=0.0,
            most=MAX_NUMBER,
        ),
    ] = None
    is_split: Annotated[bool, Description("Split whole backwards into I and W.")] = False
    is_repeated: Annotated[
        bool, Description("Repeat the batch without a pause, and minimise the time from one batch to the next.")
    ] = False
    may_recompute: Annotated[
        bool, Description("Let stages keep only their input and recompute the rest, if that is faster overall.")
    ] = False
    seconds: Annotated[float, Description("Time limit of the search [s]; 0: only simple bounds.", least=0.0)] = 20.0
    num_workers: Annotated[int | None, Description("Threads (default: one per core).", least=1, most=1024)] = None
