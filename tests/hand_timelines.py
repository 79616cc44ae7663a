"""Timelines made by a plain loop, for tests of what is made of a Timeline; the simulator is not needed."""

from __future__ import annotations

import random
from collections.abc import Callable

from pipesched.schedules import MemorySample, Schedule, Span, Timeline
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import (
    Average,
    Compute,
    Message,
    Op,
    Overlap,
    Phase,
    Recv,
    Reduce,
    Reshard,
    Send,
    Step,
    Unshard,
    backward,
    computes,
    forward,
    gives,
    needs,
)

SECONDS = {phase: 2.0 if phase is Phase.BACKWARD else 1.0 for phase in Phase}


def play(
    schedule: Schedule,
    transfer_s: float = 0.0,
    source: str = "predicted",
    seconds: Callable[[Compute], float] = lambda op: SECONDS[op.phase],
    bookkeeping_s: float = 0.0,
) -> Timeline:
    """Run every op as early as its rank and its messages let it; each message takes `transfer_s`, several at once."""
    lowered = lower(schedule)
    there: dict[Message, float] = {}
    posted: dict[Message, float] = {}
    spans: list[list[Span]] = [[] for _ in lowered.ops]
    clocks = [0.0] * lowered.num_ranks
    todo = [list(row) for row in lowered.ops]
    while any(todo):
        for rank, row in enumerate(todo):
            while row and (begin := _begin(row[0], lowered.num_stages, clocks[rank], there)) is not None:
                op, at_s = row.pop(0), clocks[rank]
                if isinstance(op, Send):
                    posted[op.message], there[op.message] = at_s, at_s + transfer_s
                    spans[rank].append(Span(rank, op, at_s, at_s, at_s + transfer_s))
                elif isinstance(op, Recv):
                    spans[rank].append(Span(rank, op, at_s, -1.0, -1.0))
                else:
                    parts = computes(op)
                    clocks[rank] = begin + (sum(map(seconds, parts)) if parts else bookkeeping_s)
                    spans[rank].append(Span(rank, op, at_s, begin, clocks[rank]))
                    there |= {message: clocks[rank] for part in parts if (message := gives(part))}
    done = tuple(_arrived(span, posted, transfer_s) for row in spans for span in row)
    return Timeline(schedule.name, source, done, schedule.rank_to_device, _memory(done, schedule.rank_to_device))


def _begin(op: Op, num_stages: int, clock: float, there: dict[Message, float]) -> float | None:
    wanted = [message for part in computes(op) for message in needs(part, num_stages)]
    if any(message not in there for message in wanted):
        return None
    return max([clock, *(there[message] for message in wanted)])


def _arrived(span: Span, posted: dict[Message, float], transfer_s: float) -> Span:
    if not isinstance(span.op, Recv):
        return span
    start_s = max(span.posted_s, posted[span.op.message])
    return Span(span.rank, span.op, span.posted_s, start_s, max(start_s, posted[span.op.message] + transfer_s))


def _memory(spans: tuple[Span, ...], rank_to_device: tuple[int, ...]) -> tuple[MemorySample, ...]:
    samples = []
    for device in sorted(set(rank_to_device)):
        held = 0
        samples.append(MemorySample(device, 0.0, (("weights", 1 << 20), ("activations", 0))))
        events = []
        for span in spans:
            if rank_to_device[span.rank] == device:
                for part in computes(span.op):
                    if part.phase is Phase.FORWARD:
                        events.append((span.start_s, 1 << 18))
                    if part.phase in (Phase.BACKWARD, Phase.BACKWARD_WEIGHT):
                        events.append((span.end_s, -(1 << 18)))
        for time_s, change in sorted(events):
            held += change
            samples.append(MemorySample(device, time_s, (("weights", 1 << 20), ("activations", held))))
    return tuple(samples)


def shaken(timeline: Timeline, seed: int = 0, factor: float = 0.15) -> Timeline:
    """Return `timeline` as if measured: the same ops in the same order, each rank ever later in its own way."""
    rng = random.Random(seed)
    spans = []
    for rank in range(len(timeline.rank_to_device)):
        late_s = 0.0
        for span in timeline.of_rank(rank):
            late_s += (span.end_s - span.start_s) * rng.random() * factor
            spans.append(Span(rank, span.op, span.posted_s + late_s, span.start_s + late_s, span.end_s + late_s))
    return Timeline(timeline.name, "measured", tuple(spans), timeline.rank_to_device, timeline.memory)


def every_kind(*more: Op) -> Timeline:
    """Return two ranks on one device that run an op of every kind, and then `more`, each for 2 s."""
    ops = [*(Compute(phase, 0, 1) for phase in Phase), Compute(Phase.RECOMPUTE, 0, 1, is_late=True)]
    ops += [Overlap(forward(0, 2), backward(1, 3)), Reduce(0), Step(0), Average(1), Unshard(0), Reshard(0), *more]
    spans = [Span(rank, op, 3.0 * i, 3.0 * i, 3.0 * i + 2) for rank in range(2) for i, op in enumerate(ops)]
    return Timeline("every kind", "predicted", tuple(spans), (0, 0))
