"""A Gantt chart as text: a line per rank, a letter for each slot of time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import wrap
from typing import assert_never

from pipesched.schedules import Span, Timeline
from pipesched.schedules.common import printable
from pipesched.schedules.ops import Compute, Op, Overlap, Recv, Send, StageOp
from pipesched.simulator.analysis import metrics, readable_s
from pipesched.simulator.views.figure import SLATE
from pipesched.simulator.views.gantt_chart import WHOLE, ChartOptions, caption_of, uncovered
from pipesched.simulator.views.op_looks import WORD_LOOKS, is_dark, lighter, look

_MEANINGS = {
    "F": "forward", "B": "backward", "I": "backward for inputs", "W": "backward for weights", "R": "recompute",
    "L": "late recompute", "O": "overlap", **{look.letter: look.name for look in WORD_LOOKS.values()}, ".": "idle",
}  # fmt: skip
"""The meaning of the letters, in the order of the legend."""
_IDLE = "."
_OVERLAP = SLATE
_FEWEST_SLOTS, _LEGEND_WIDTH = 20, 64
_NO_BREAK = "\u00a0"


def text_gantt(timeline: Timeline, width: int = 100, options: ChartOptions = WHOLE, *, has_colour: bool = False) -> str:
    """Return `timeline` for a terminal: a line per rank, a letter per slot of time for the op with most of it.

        rank 0  FFFF......BBBBBBBB
        rank 1  ..FFFFBBBBBBBB....
                0             3 s
                F forward  B backward  . idle

    An op that is longest in no slot still gets a slot, if every other op keeps one. Lines end where the run does.

    Args:
        timeline: The Timeline.
        width: Characters in a line, names included; at least 20 slots are drawn.
        options: The shown time span; all other options are for pictures.
        has_colour: Whether letters have the colours of pictures, as a terminal's control sequences.

    Raises:
        SimulationError: Nothing in the timeline takes time.
    """
    shown = timeline.from_zero()
    caption = caption_of(metrics(shown))
    names = [f"rank {rank}" for rank in range(len(shown.rank_to_device))]
    margin = max(map(len, names)) + 2
    num_slots = max(_FEWEST_SLOTS, width - margin)
    from_s, to_s = options.from_s, shown.makespan_s if options.to_s is None else options.to_s
    num_run = max(0, math.ceil((shown.makespan_s - from_s) / (to_s - from_s) * num_slots - 1e-9))
    colours: dict[str, str] = {}
    rows = []
    for rank in range(len(names)):
        works = list(uncovered([span for span in shown.of_rank(rank) if not isinstance(span.op, Send | Recv)]))
        colours |= {_letter(span.op): _colour(span.op) for span in works}
        rows.append(_slots(works, from_s, to_s, num_slots)[:num_run])
    used = {letter for row in rows for letter in row} | {_IDLE}
    words = [f"{letter} {meaning}".replace(" ", _NO_BREAK) for letter, meaning in _MEANINGS.items() if letter in used]
    legend = [line.replace(_NO_BREAK, " ") for line in wrap("  ".join(words), max(_LEGEND_WIDTH, num_slots))]
    start, end = "0" if from_s == 0 else readable_s(from_s), readable_s(to_s)
    if has_colour:
        rows = [_painted(row, colours) for row in rows]
    lines = [name.ljust(margin) + row for name, row in zip(names, rows, strict=True)]
    axis = start + end.rjust(num_slots - len(start))
    return "\n".join(
        [
            printable(f"{shown.name} {shown.source}: {caption}"),
            *lines,
            *(" " * margin + line for line in (axis, *legend)),
        ]
    )


def _slots(works: Sequence[Span], from_s: float, to_s: float, num_slots: int) -> str:
    """Return the letters of one rank; a slot is idle only if idle time takes more of the slot than any kind of op."""
    slot_s = (to_s - from_s) / num_slots
    parts = [(_letter(span.op), list(_parts(span, from_s, slot_s, num_slots))) for span in works]
    shares: list[dict[str, float]] = [defaultdict(float) for _ in range(num_slots)]
    for letter, shown in parts:
        for slot, seconds in shown:
            shares[slot][letter] += seconds
    return _with_all_ops([_winner(share, slot_s) for share in shares], parts)


def _parts(span: Span, from_s: float, slot_s: float, num_slots: int) -> Iterator[tuple[int, float]]:
    """Yield each slot that a span overlaps, and the length of the overlap [s]."""
    first = max(0, int((span.start_s - from_s) / slot_s))
    for slot in range(first, min(num_slots, int((span.end_s - from_s) / slot_s) + 1)):
        at_s = from_s + slot * slot_s
        seconds = min(span.end_s, at_s + slot_s) - max(span.start_s, at_s)
        if seconds > 0:
            yield slot, seconds


def _winner(share: dict[str, float], slot_s: float) -> str:
    """Return the letter with the largest share of one slot."""
    idle_s = slot_s - sum(share.values())
    letter = max(share, key=share.__getitem__, default=_IDLE)
    return letter if share and share[letter] >= idle_s * (1 - 1e-9) else _IDLE


def _with_all_ops(letters: list[str], parts: Sequence[tuple[str, list[tuple[int, float]]]]) -> str:
    """Return the slots, with one slot given to each op that has none, the longest op first.

    An op takes the slot with most of its time, unless that slot is the last one of another op.
    """
    ops_of: dict[int, list[int]] = defaultdict(list)
    for op, (_, shown) in enumerate(parts):
        for slot, _ in shown:
            ops_of[slot].append(op)

    def slots_of(op: int) -> list[int]:
        letter, shown = parts[op]
        return [slot for slot, _ in shown if letters[slot] == letter]

    unseen = [op for op, (_, shown) in enumerate(parts) if shown and not slots_of(op)]
    kept: set[int] = set()
    for op in sorted(unseen, key=lambda op: -sum(seconds for _, seconds in parts[op][1])):
        letter, shown = parts[op]
        slot = max(shown, key=lambda part: part[1])[0]
        if slot not in kept and all(slots_of(other) != [slot] for other in ops_of[slot]):
            letters[slot] = letter
        kept.add(slot)
    return "".join(letters)


def _painted(row: str, colours: dict[str, str]) -> str:
    """Return letters on their colours, equal ones together; idle slots stay uncoloured."""
    text = ""
    for letter, group in groupby(row):
        letters = "".join(group)
        if letter != _IDLE:
            paper = lighter(colours[letter], 0.0)
            red, green, blue = (round(255 * channel) for channel in paper)
            letters = f"\x1b[{97 if is_dark(paper) else 30};48;2;{red};{green};{blue}m{letters}\x1b[0m"
        text += letters
    return text


def _colour(op: Op) -> str:
    return _OVERLAP if isinstance(op, Overlap) else look(op)[1]


def _letter(op: Op) -> str:
    match op:
        case Compute():
            return "L" if op.is_late else op.phase.value
        case Overlap():
            return "O"
        case StageOp():
            return WORD_LOOKS[type(op)].letter
        case Send() | Recv():
            raise AssertionError("a message has no slot")
        case _:
            assert_never(op)
