"""Runs made by a plain loop, with posts and messages of known lengths; neither simulator nor executor is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pipesched.schedules import Schedule, Span, Timeline
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute, Message, Op, Phase, Recv, Send, computes, needs


def work_s(op: Op) -> float:
    if not isinstance(op, Compute):
        return 0.0
    return 1.0 if op.phase is Phase.FORWARD else 2.0


def run_by_hand(
    schedule: Schedule,
    post_s: float,
    delay_s: float | Callable[[Message], float],
    factor: float | Callable[[Op], float] = 1.0,
) -> Timeline:
    """A run in which each work takes `factor` times as long, a post `post_s` of its rank, a message `delay_s`."""
    factor_of = factor if callable(factor) else lambda _: factor
    delay = delay_s if callable(delay_s) else lambda _: delay_s
    lists = [list(row) for row in lower(schedule).ops]
    sent: dict[Message, float] = {}
    clocks, rows, read_s = [0.0] * len(lists), [[] for _ in lists], {}
    while any(lists):
        for rank, row in enumerate(lists):
            while row:
                op, now = row[0], clocks[rank]
                needed = [message for part in computes(op) for message in needs(part, schedule.num_stages)]
                needed = [message for message in needed if message.stage != computes(op)[0].stage]
                if any(message not in sent for message in needed):
                    break
                start = max([now, *(sent[message] + delay(message) for message in needed)])
                read_s |= {(rank, message): start for message in needed}
                if isinstance(op, Send):
                    sent[op.message] = now
                clocks[rank] = start + (post_s if isinstance(op, Send | Recv) else factor_of(op) * work_s(op))
                rows[rank].append(Span(rank, row.pop(0), now, start, clocks[rank]))
    spans = []
    for span in (span for row in rows for span in row):
        if isinstance(span.op, Recv):
            begun = max(span.posted_s, sent[span.op.message])
            span = replace(span, start_s=begun, end_s=max(begun, read_s[span.rank, span.op.message]))
        spans.append(span)
    return Timeline(schedule.name, "measured", tuple(spans), schedule.rank_to_device)
