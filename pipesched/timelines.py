"""The Timelines that a picture or trace shows: read from files, or simulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pipesched.errors import InputError
from pipesched.options import CostOptions, ScheduleOptions
from pipesched.predict import predict

if TYPE_CHECKING:
    from schedules.timeline import Timeline


def timelines_of(
    files: Sequence[Path] | None,
    schedule: ScheduleOptions,
    costs: CostOptions,
    *,
    protocol: Literal["rendezvous", "eager"],
    jitter: float,
    seed: int,
) -> list[Timeline]:
    """Return the Timelines in `files`; without files, the prediction for the schedule."""
    if files:
        if schedule != ScheduleOptions() or costs != CostOptions():
            raise InputError(f"{files[0]}: got options of a schedule or its costs too, expected one or the other")
        if (protocol, jitter, seed) != ("rendezvous", 0.0, 0):
            raise InputError(
                f"{files[0]}: got --protocol, --jitter or --seed too, expected them where a schedule is simulated; "
                "leave them out"
            )
        from schedules.formats.timeline_json import read_timeline

        return [read_timeline(path) for path in files]
    loaded = schedule.load()
    return [predict(loaded, *costs.load(loaded), protocol=protocol, jitter=jitter, seed=seed)]
