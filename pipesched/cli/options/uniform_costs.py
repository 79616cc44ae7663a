"""Equal stages, from ``--uniform``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from itertools import takewhile
from typing import TYPE_CHECKING

from pipesched.cli.errors import InputError
from pipesched.cli.options.key_values import numbers
from pipesched.profiles import BYTES_LIMIT

if TYPE_CHECKING:
    from pipesched.profiles.costs import DeviceCost
    from pipesched.schedules import Schedule

_SECONDS = {"f": "forward_s", "b": "backward_s", "i": "backward_input_s", "w": "backward_weight_s"} | {
    name: name for name in ("step_s", "copy_s", "predict_s", "average_s")
}
_BYTES = ("output_bytes", "saved_bytes", "saved_for_weight_bytes", "weight_bytes", "optimizer_bytes")


def uniform_costs(text: str, schedule: Schedule | None) -> DeviceCost:
    """Return the costs of a device in a model of equal stages, from ``f=1,b=2`` or ``f=1,i=1,w=1,saved_bytes=1e9``.

    Args:
        text: The user's text.
        schedule: Determines whether the backward is split; None: a later check determines it.

    Raises:
        InputError: A value is missing or invalid.
    """
    from pipesched.profiles.costs import DeviceCost

    values = numbers(text, "--uniform", (*_SECONDS, *_BYTES, "overlap"), "f=10ms,b=20ms")
    _require_complete(text, values, schedule)
    for name in _BYTES:
        if name in values and (not values[name].is_integer() or values[name] >= BYTES_LIMIT):
            near = math.ceil(values[name]) if values[name] < BYTES_LIMIT else "1e18"
            raise InputError(
                f"--uniform: {name}: got {values[name]:g}, expected whole bytes below 2^63; try {name}={near}"
            )
    overlap = values.pop("overlap", 0.0)
    if overlap > 1:
        raise InputError(f"--uniform: overlap: got {overlap:g}, expected a share of at most 1; try overlap=1")
    times = {name: values[key] for key, name in _SECONDS.items() if key in values}
    sizes = {name: int(values[name]) for name in _BYTES if name in values}
    return DeviceCost(**times, **sizes, overlap=overlap)  # type: ignore[arg-type]  # names are checked


def shares_note(text: str, schedules: Iterable[Schedule], *, named: bool = True) -> list[str]:
    """Return a line for each share, other than 1, that stages of `schedules` have in the costs of a device.

    Args:
        text: The user's text.
        schedules: Schedules that took these costs.
        named: Whether a line names its schedules.
    """
    from pipesched.simulator.analysis import readable_s

    values = numbers(text, "--uniform", (*_SECONDS, *_BYTES, "overlap"), "f=10ms,b=20ms")
    by_share: dict[Fraction, list[str]] = {}
    for schedule in schedules:
        by_share.setdefault(schedule.stage_share, []).append(schedule.name)
    lines = []
    for share, names in by_share.items():
        if share == 1:
            continue
        whose = f"each stage, {share} devices' worth"
        if share.numerator == 1:
            whose = f"each of {share.denominator} stages of a device"
        takes = ", ".join(f"{key} {readable_s(values[key] * float(share))}" for key in "fbiw" if key in values)
        lines.append(f"{', '.join(names)}: {whose}: {takes}" if named else f"{whose}: {takes}")
    return lines


def _require_complete(text: str, values: dict[str, float], schedule: Schedule | None) -> None:
    if "f" not in values:
        raise InputError(f"--uniform: got {text!r}, expected f, the seconds of a forward; try f=1,b=2")
    is_split = {"i", "w"} <= values.keys()
    if "b" not in values and not is_split:
        raise InputError(f"--uniform: got {text!r}, expected b, or both i and w; try f=1,b=2 or f=1,i=1,w=1")
    if schedule is not None and not is_split and _splits(schedule):
        raise InputError(
            f"--uniform: got {text!r}, expected i and w too, because the schedule splits the backward; "
            "try f=1,i=1,w=1 (B then takes i + w), or --input-share 0.5"
        )


def _splits(schedule: Schedule) -> bool:
    """Whether there is an I or W; an endless list is read up to its first Step, before which all kinds come."""
    from pipesched.schedules.ops import Phase, Step, computes

    if schedule.is_held:
        return schedule.columns.splits_backward
    split = (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)
    rows = (takewhile(lambda op: not isinstance(op, Step), ops) for ops in schedule.lists)
    return any(part.phase in split for row in rows for op in row for part in computes(op))
