"""Runs made by a plain loop, with posts and messages of known lengths; neither simulator nor executor is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from pipesched.schedules import Schedule, Span, Timeline
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute, Message, Op, Phase, Recv, Reduce, Send, Step, Summed, computes, needs


def work_s(op: Op) -> float:
    if not isinstance(op, Compute):
        return 0.0
    return 1.0 if op.phase is Phase.FORWARD else 2.0


class _Sums:
    """Sums of gradients: the k-th sum of a group is over `sum_s(k)` after all its ranks have posted."""

    def __init__(self, lists: Sequence[Sequence[Op]], sum_s: Callable[[int], float]) -> None:
        self._reduces = {(rank, op) for rank, row in enumerate(lists) for op in row if isinstance(op, Reduce)}
        self._sum_s = sum_s
        self._reached_s: dict[tuple[int, Reduce], list[float]] = {}
        self._posted_s: dict[tuple[int, Reduce], list[float]] = {}
        self._awaited: dict[tuple[int, int], tuple[Reduce, int]] = {}  # by rank and stage

    def post(self, rank: int, op: Reduce, reached_s: float, posted_s: float) -> None:
        self._reached_s.setdefault((rank, op), []).append(reached_s)
        self._posted_s.setdefault((rank, op), []).append(posted_s)
        self._awaited[rank, op.stage] = op, len(self._posted_s[rank, op]) - 1

    def over_s(self, rank: int, op: Op) -> float | None:
        """When the sum that `op` waits for is over: 0 if it waits for none, None if a rank has not posted yet."""
        waits = isinstance(op, Step) or (isinstance(op, Reduce) and op.content is not Summed.GRADIENT)
        if not waits or (rank, op.stage) not in self._awaited:
            return 0.0
        awaited, k = self._awaited[rank, op.stage]
        rows = [self._posted_s.get(other, []) for other in self._meeting(awaited)]
        return None if any(len(row) <= k for row in rows) else max(row[k] for row in rows) + self._sum_s(k)

    def begun(self, spans: Sequence[Span]) -> Iterator[Span]:
        """The spans of a run, in which a Reduce begins when all its ranks have reached it."""
        counts = Counter()
        for span in spans:
            if isinstance(span.op, Reduce):
                k = counts[span.rank, span.op]
                counts[span.rank, span.op] += 1
                begun_s = max(self._reached_s[other][k] for other in self._meeting(span.op))
                span = replace(span, start_s=min(begun_s, span.end_s))
            yield span

    def _meeting(self, op: Reduce) -> list[tuple[int, Reduce]]:
        over_stages = op.content is not Summed.GRADIENT
        return [
            (rank, other)
            for rank, other in self._reduces
            if other.content is op.content and (over_stages or other.stage == op.stage)
        ]


def run_by_hand(
    schedule: Schedule,
    post_s: float,
    delay_s: float | Callable[[Message], float],
    factor: float | Callable[[Op], float] = 1.0,
    *,
    copy_s: float = 0.0,
    sum_s: float | Callable[[int], float] = 0.0,
) -> Timeline:
    """A run in which each work takes `factor` times as long, a post `post_s` of its rank, a message `delay_s`.

    A Reduce takes `copy_s` of its rank, and the k-th sum of each group `sum_s` from the end of the last copy on.
    """
    factor_of = factor if callable(factor) else lambda _: factor
    delay = delay_s if callable(delay_s) else lambda _: delay_s
    lists = [list(row) for row in lower(schedule).ops]
    sums = _Sums(lists, sum_s if callable(sum_s) else lambda _: sum_s)
    sent: dict[Message, float] = {}
    clocks, rows, read_s = [0.0] * len(lists), [[] for _ in lists], {}
    while any(lists):
        for rank, row in enumerate(lists):
            while row:
                op, now = row[0], clocks[rank]
                needed = [message for part in computes(op) for message in needs(part, schedule.num_stages)]
                needed = [message for message in needed if message.stage != computes(op)[0].stage]
                over_s = sums.over_s(rank, op)
                if over_s is None or any(message not in sent for message in needed):
                    break
                start = max([now, over_s, *(sent[message] + delay(message) for message in needed)])
                read_s |= {(rank, message): start for message in needed}
                if isinstance(op, Send):
                    sent[op.message] = now
                if over_s:
                    _end_last_reduce(rows[rank], op.stage, start)
                if isinstance(op, Reduce):
                    sums.post(rank, op, now, start + copy_s)
                    start, clocks[rank] = now, start + copy_s
                else:
                    clocks[rank] = start + (post_s if isinstance(op, Send | Recv) else factor_of(op) * work_s(op))
                rows[rank].append(Span(rank, row.pop(0), now, start, clocks[rank]))
    spans = []
    for span in sums.begun([span for row in rows for span in row]):
        if isinstance(span.op, Recv):
            begun = max(span.posted_s, sent[span.op.message])
            span = replace(span, start_s=begun, end_s=max(begun, read_s[span.rank, span.op.message]))
        spans.append(span)
    return Timeline(schedule.name, "measured", tuple(spans), schedule.rank_to_device)


def _end_last_reduce(row: list[Span], stage: int, end_s: float) -> None:
    """Let the last Reduce of a stage end when its rank continues, as in a record of a run."""
    place = max(place for place, span in enumerate(row) if isinstance(span.op, Reduce) and span.op.stage == stage)
    row[place] = replace(row[place], end_s=end_s)
