"""Order of two ops of different micro-batches that follows from the memory limit of a rank.

F of k + n comes after B of k if n + 1 micro-batches, and the memory that a B needs beside them, do not fit. From the F
on that needs micro-batch 0 to be over for the same reason, the rank also holds gradients, so n is smaller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipesched.schedules.ops import Phase
from pipesched.simulator.optimum.activation_room import ActivationRoom
from pipesched.simulator.optimum.order_kinds import OrderArc, OrderKind, is_phase

_BACKWARDS, _WEIGHT = (Phase.BACKWARD, Phase.BACKWARD_INPUT), Phase.BACKWARD_WEIGHT


def room_arcs(kinds: Sequence[OrderKind], room: ActivationRoom) -> Iterator[OrderArc]:
    """Yield the arcs of a limit on one stage, and on two stages of a rank: the forward of k + n after a backward of k.

    If a stage holds n + 1 micro-batches, their oldest must fit on the later stages too, unless it has returned from
    there: no micro-batch frees memory before its backward.
    """
    stages = {kind.op.stage: index for index, kind in enumerate(kinds) if is_phase(kind.op, Phase.FORWARD)}
    rebuilding = {kind.op.stage: index for index, kind in enumerate(kinds) if is_phase(kind.op, Phase.RECOMPUTE)}
    for stage, index in stages.items():
        rank, saved = kinds[index].rank, room.saved[stage]
        limit, inside = room.limits[rank], room.inside(stage)
        held = room.inputs[stage] if stage in rebuilding else saved
        weights = [before for before, k in enumerate(kinds) if k.op.stage == stage and is_phase(k.op, _WEIGHT)]
        least = min(held, room.kept[stage]) if weights else held
        begun = _most(limit if weights else limit - inside, least)
        for before in weights:
            yield from _arcs(before, index, limit, least, room.gradients[stage], begun)
        for before, kind in enumerate(kinds):
            if kind.rank != rank or not is_phase(kind.op, *_BACKWARDS):
                continue
            other = kind.op.stage
            if other == stage:
                yield from _arcs(before, index, limit - inside, held, room.gradients[stage], begun)
                if stage in rebuilding:
                    rebuilt = rebuilding[stage]
                    yield from _arcs(before, rebuilt, limit - inside, saved, room.gradients[stage], begun)
            elif other > stage:
                free = limit - room.saved[other] - room.inside(other)
                yield from _arcs(before, index, free, least, room.gradients[stage], begun)


def _most(limit: int, size: int) -> int | None:
    return limit // size if size else None


def _arcs(before: int, after: int, limit: int, size: int, gradients: int, begun: int | None) -> Iterator[OrderArc]:
    """Yield the arc of a limit, and its stricter arc once gradients are held, from micro-batch `begun` on."""
    most = _most(limit, size)
    if most is None:
        return
    yield OrderArc(before, after, 0, most)
    fewer = (limit - gradients) // size
    if begun is not None and 1 <= fewer < most:
        yield OrderArc(before, after, 0, fewer, max(0, begun - fewer))
