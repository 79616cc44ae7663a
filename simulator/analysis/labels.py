"""Labels for people: of ops, of several Timelines, of times in a readable unit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from pipesched.schedules import Timeline
from pipesched.schedules.common import printable
from pipesched.schedules.ops import Compute, Op, Overlap, Recv, Send, StageOp
from pipesched.simulator import SteadyPace


@dataclass(frozen=True, slots=True)
class Label:
    """One op, for a table, a picture or a trace.

    Attributes:
        kind: ``F``, ``B``, ``I``, ``W``, ``R``, ``LATE_R``, ``F+B`` (an Overlap), ``SEND_F``, ``RECV_B``, ``Step``,
            ``Reduce``, ...
        stage: The stage that runs the op; of an Overlap, of its first half.
        microbatch: None where the op has none; of an Overlap, of its first half.
    """

    kind: str
    stage: int
    microbatch: int | None = None


def label(op: Op) -> Label:
    """Return the label of `op` for people."""
    match op:
        case Compute():
            return Label(_kind(op), op.stage, op.microbatch)
        case Overlap():
            return Label(f"{_kind(op.first)}+{_kind(op.second)}", op.first.stage, op.first.microbatch)
        case Send():
            return Label(f"SEND_{op.message.payload.value}", op.message.stage, op.message.microbatch)
        case Recv():
            return Label(f"RECV_{op.message.payload.value}", op.message.receiver, op.message.microbatch)
        case StageOp():
            return Label(type(op).__name__, op.stage)
        case _:
            assert_never(op)


def _kind(op: Compute) -> str:
    return f"{'LATE_' * op.is_late}{op.phase.value}"


def sources(timelines: Sequence[Timeline]) -> tuple[str, ...]:
    """Return a distinct name for each Timeline.

    The names are the sources if these differ, or else schedule and source, or else the source with a number.
    """
    for names in ([t.source for t in timelines], [f"{t.name} {t.source}" for t in timelines]):
        if len(set(names)) == len(names):
            return tuple(names)
    return tuple(f"{t.source} {number}" for number, t in enumerate(timelines, start=1))


def literal(text: str) -> str:
    """Return `text` so that matplotlib draws it letter by letter: a name between dollars is no formula."""
    return printable(text).replace("$", r"\$")


def unit_of(largest_s: float) -> tuple[float, str]:
    """Return the unit in which people read times up to `largest_s`: its seconds, and its name in ASCII."""
    for seconds, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")):
        if largest_s >= seconds:
            return seconds, name
    return 1.0, "s"


def readable_s(time_s: float) -> str:
    """Return a time [s] in the unit that people read it in."""
    return _in_unit(time_s, *unit_of(abs(time_s)))


def readable_pace(pace: SteadyPace | None) -> str:
    """Return the seconds of a micro-batch, with their error if known, as text for people."""
    if pace is None:
        return "-"
    return readable_s(pace.s_per_microbatch) + ("" if pace.error is None else f" ± {pace.error:.1%}")


def duration_unit(longest_s: float) -> tuple[float, str]:
    """Return the unit in which people read long times up to `longest_s`: its seconds, and its name in ASCII."""
    for seconds, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if longest_s >= 2 * seconds:
            return seconds, name
    return unit_of(longest_s)


def readable_duration(time_s: float) -> str:
    """Return a time [s] that may be long in the unit that people read it in: ``34.62 min``, ``2.5 d``."""
    return _in_unit(time_s, *duration_unit(time_s))


def _in_unit(time_s: float, seconds: float, unit: str) -> str:
    value = time_s / seconds
    return f"{value:.0f} {unit}" if abs(value) >= 1000 else f"{value:.4g} {unit}"


def readable_change_s(seconds: float) -> str:
    """Return a difference of times [s] in a readable unit, with its sign: ``+1.5 ms``."""
    return f"{'-' if seconds < 0 else '+'}{readable_s(abs(seconds))}"


def size_unit(largest: float) -> tuple[float, str]:
    """Return the unit in which people read sizes up to `largest` [bytes]: its bytes, and its name."""
    for size, name in ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
        if largest >= size:
            return size, name
    return 1.0, "B"


def readable_bytes(num_bytes: float | None) -> str:
    """Return a size in a readable unit, or ``-`` for an unknown size."""
    if num_bytes is None:
        return "-"
    size, unit = size_unit(abs(num_bytes))
    return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes / size:.4g} {unit}"


def readable_reason(reason: str | None) -> str:
    """Return why something cannot be, with its bytes and seconds in the units that people read them in."""

    def told(match: re.Match[str]) -> str:
        held, limit = map(int, match.groups())
        are_alike = readable_bytes(held) == readable_bytes(limit)
        excess = f" ({readable_bytes(held - limit)} too many)" if are_alike else ""
        return f"{readable_bytes(held)} of {readable_bytes(limit)}{excess}"

    text = re.sub(r"(\d+) bytes of (\d+)", told, reason or "")
    return re.sub(r"(?<=from )([0-9.e+-]+) s(?= on)", lambda match: readable_s(float(match[1])), text)


def readable_change(share: float) -> str:
    """Return a relative change in percent with its sign, as people read it: ``+1.5%``; a zero has a plus."""
    return f"{round(share, 3) + 0.0:+.1%}"


def readable_share(share: float | None) -> str:
    """Return a share in percent; ``-`` for one that is not known."""
    return "-" if share is None else f"{share:.2%}"
