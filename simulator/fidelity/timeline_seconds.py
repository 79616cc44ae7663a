"""The seconds of each op of a Timeline: its work, its rank's own time around it, and how late its message was.

A rank's own time lies between its works when it waits for no other rank: it posts, takes arrived messages,
and reads its list.

    work ──┬─ own ─┬─ Send ── own ─┬─ waits for a message ─┬─ work
          end    reached        reached                 arrives

A run shows the arrival of a message only if its reader waited for it: the reader came before the posting, or took much
longer than it takes to take an arrived message. Any other message arrived at the latest when the work began. It gets
the usual lateness: the median of the messages of its boundary whose reader had come before the posting.
If a reader really posted its buffer later than its list has it (PyTorch's 1F1B), the message is on its way only from
then on: the reader's wait counts, in the usual run the median wait of the boundary.
When a message would have been handed over follows from the network that the prediction supposes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeAlias

from pipesched.profiles.clusters import Cluster, flat
from pipesched.profiles.costs import StageCosts, uniform
from pipesched.schedules import Span, Timeline, schedule_of
from pipesched.schedules.ops import Message, PostOp, Recv, Reduce, Step, computes, needs
from pipesched.schedules.semantics import listed, transfers
from pipesched.simulator import USUAL_NETWORK, NetworkOptions
from pipesched.simulator.engine import OpSeconds, simulate_lists

PostPlace = tuple[int, int]
"""A rank, and the index of a Send, Recv or Reduce in its list."""
GivenRows: TypeAlias = tuple[tuple[OpSeconds, ...], ...]
"""The seconds of every rank and op, as the engine takes them."""

_CLEARLY = 3.0
"""A reader has waited for a message if it takes this many times as long as others to take an arrived one."""


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """The assumptions of a prediction beside the seconds of ops.

    Attributes:
        costs: Costs with the bytes of messages and of gradients.
        cluster: Devices and links.
        network: How messages go.
    """

    costs: StageCosts
    cluster: Cluster
    network: NetworkOptions = USUAL_NETWORK

    def arrivals_s(self, timeline: Timeline) -> dict[PostPlace, float]:
        """Return when each message and reduction would be over, had it been posted as in `timeline` [s].

        The lists are reduced to their posts, and each post waits for its time: only the network is left to simulate.
        """
        zero_s = min((span.posted_s for span in timeline.spans), default=0.0)
        lists: list[tuple[PostOp, ...]] = []
        given: list[list[OpSeconds]] = []
        places: list[PostPlace] = []
        for rank in range(len(timeline.rank_to_device)):
            now_s, row, seconds = zero_s, [], []
            for index, span in enumerate(timeline.of_rank(rank)):
                if isinstance(span.op, PostOp):
                    row.append(span.op)
                    seconds.append(OpSeconds(before_s=max(0.0, span.posted_s - now_s), after_s=0.0))
                    places.append((rank, index))
                    now_s = span.posted_s
            lists.append(tuple(row))
            given.append(seconds)
        posts = replace(schedule_of(timeline), lists=tuple(lists), is_lowered=True)
        posted = simulate_lists(posts, self.costs, self.cluster, network=self.network, given=given)
        return {place: span.end_s + zero_s for place, span in zip(places, posted.spans, strict=True)}


def free_network(timeline: Timeline) -> NetworkModel:
    """Return the network in which nothing takes time, for the ops and devices of `timeline`."""
    costs = uniform(schedule_of(timeline).num_stages, 0.0, 0.0, 0.0, 0.0)
    return NetworkModel(costs, flat(max(timeline.rank_to_device, default=-1) + 1))


@dataclass(frozen=True, slots=True)
class AwaitingWork:
    """A work that needs messages or gradients of others: its place, and the places of the Recvs or the Reduce."""

    rank: int
    index: int
    span: Span
    brings: tuple[PostPlace, ...]

    @property
    def place(self) -> PostPlace:
        """The place of the op itself."""
        return self.rank, self.index


@dataclass(frozen=True, slots=True)
class RunSeconds:
    """The measured seconds of a run's ops.

    Attributes:
        given: Seconds of every op, each message as late as it was.
        usual: The same, but each message with the median lateness of its boundary.
        num_messages: Messages and reductions that a work needs.
        num_seen: Number of these whose arrival was seen.
    """

    given: GivenRows
    usual: GivenRows
    num_messages: int
    num_seen: int


def works_only(given: GivenRows) -> GivenRows:
    """Return the seconds of works alone; all else follows the model."""
    return tuple(tuple(OpSeconds(work_s=seconds.work_s) for seconds in row) for row in given)


def with_works_of(given: GivenRows, other: GivenRows) -> GivenRows:
    """Return `given` with the seconds of the works of `other`, a Timeline of the same lists."""
    return tuple(
        tuple(replace(seconds, work_s=works.work_s) for seconds, works in zip(row, others, strict=True))
        for row, others in zip(given, other, strict=True)
    )


def seconds_of_prediction(timeline: Timeline, network: NetworkModel) -> GivenRows:
    """Return the seconds of the ops of a predicted Timeline, whose messages arrive when they end.

    Args:
        timeline: The prediction.
        network: Network of the prediction; the lateness of messages is their additional time.
    """
    modelled_s = network.arrivals_s(timeline)
    late_s = {place: _span(timeline, place).end_s - expected_s for place, expected_s in modelled_s.items()}
    before_s = {
        reading.place: max(0.0, reading.span.start_s - _ready_s(timeline, reading)) for reading in _readings(timeline)
    }
    return _rows(timeline, before_s, late_s)


def seconds_of_run(timeline: Timeline, network: NetworkModel) -> RunSeconds:
    """Return the seconds of the ops of a measured Timeline.

    Args:
        timeline: The measurement.
        network: Network assumed for the run; the lateness of messages is their additional time.
    """
    modelled_s, readings = network.arrivals_s(timeline), _readings(timeline)
    last = {reading: _last_brought(timeline, reading) for reading in readings}
    posted_s = _posted_s(timeline)
    came_before = {
        reading
        for reading in readings
        if reading.span.posted_s <= posted_s.get(last[reading], _span(timeline, last[reading]).start_s)
    }
    in_transit = {
        reading
        for reading in readings
        if reading not in came_before and reading.span.posted_s <= _span(timeline, last[reading]).start_s
    }
    came_later = [reading for reading in readings if reading not in came_before | in_transit]
    take_s = median([_wait_s(reading.span) for reading in came_later] or [0.0])
    waited = [reading for reading in came_later if _wait_s(reading.span) > _CLEARLY * take_s]

    seen_s = {last[reading]: reading.span.start_s - modelled_s[last[reading]] for reading in came_before}
    alike: defaultdict[Hashable, list[float]] = defaultdict(list)
    for place, late_s in seen_s.items():
        alike[_boundary(timeline, place)].append(late_s)
    usual_of = {boundary: median(several) for boundary, several in alike.items()}
    usual_of_all = median(list(seen_s.values()) or [0.0])
    usual_s: dict[PostPlace, float] = {}
    for reading in readings:
        for place in reading.brings:
            late_s = usual_of.get(_boundary(timeline, place), usual_of_all)
            latest_s = reading.span.start_s - modelled_s[place]
            usual_s[place] = late_s if reading in came_before else min(late_s, latest_s)
    seen_s |= {last[reading]: reading.span.start_s - take_s - modelled_s[last[reading]] for reading in waited}

    transit_s: defaultdict[Hashable, list[float]] = defaultdict(list)
    for reading in in_transit:
        transit_s[_boundary(timeline, last[reading])].append(_wait_s(reading.span))

    def rows(late_s: Mapping[PostPlace, float], *, is_usual: bool = False) -> GivenRows:
        before_s = {reading.place: 0.0 for reading in came_before}
        for reading in in_transit:
            alike_s = transit_s[_boundary(timeline, last[reading])]
            before_s[reading.place] = median(alike_s) if is_usual else _wait_s(reading.span)
        for reading in came_later:
            there_s = max(modelled_s[place] + late_s[place] for place in reading.brings)
            before_s[reading.place] = max(0.0, min(take_s, reading.span.start_s - max(reading.span.posted_s, there_s)))
        return _rows(timeline, before_s, late_s)

    return RunSeconds(rows(usual_s | seen_s), rows(usual_s, is_usual=True), len(readings), len(seen_s))


def _rows(timeline: Timeline, before_s: Mapping[PostPlace, float], late_s: Mapping[PostPlace, float]) -> GivenRows:
    first_s = min((span.posted_s for span in timeline.spans), default=0.0)
    return tuple(
        tuple(_row(rank, timeline.of_rank(rank), first_s, before_s, late_s))
        for rank in range(len(timeline.rank_to_device))
    )


def _row(
    rank: int,
    spans: tuple[Span, ...],
    now_s: float,
    before_s: Mapping[PostPlace, float],
    late_s: Mapping[PostPlace, float],
) -> Iterable[OpSeconds]:
    """Yield the seconds of a rank's ops, given the own time of works that wait, and the lateness of each message."""
    for index, span in enumerate(spans):
        begun_s = 0.0 if index else max(0.0, span.posted_s - now_s)  # a rank may begin later than others
        next_s = spans[index + 1].posted_s if index + 1 < len(spans) else None
        if isinstance(span.op, PostOp):
            after_s = 0.0 if next_s is None else next_s - span.posted_s
            yield OpSeconds(None, begun_s, max(0.0, after_s), late_s.get((rank, index), 0.0))
            continue
        own_s = before_s.get((rank, index), _wait_s(span) if computes(span.op) else 0.0)
        after_s = 0.0 if next_s is None else next_s - span.end_s
        yield OpSeconds(span.end_s - span.start_s, begun_s + own_s, max(0.0, after_s))


def _readings(timeline: Timeline) -> list[AwaitingWork]:
    """Return the works that wait for messages or gradients of others, with the posts that bring these."""
    num_stages, readings = schedule_of(timeline).num_stages, []
    for rank in range(len(timeline.rank_to_device)):
        received: dict[Message | None, PostPlace] = {}
        reduced: dict[int, PostPlace] = {}
        for index, span in enumerate(timeline.of_rank(rank)):
            op, brings = span.op, []
            if isinstance(op, Recv):
                received[op.message] = (rank, index)
            elif isinstance(op, Reduce):
                reduced[op.stage] = (rank, index)
            elif isinstance(op, Step) and op.stage in reduced:
                brings = [reduced.pop(op.stage)]
            else:
                messages = [message for part in computes(op) for message in needs(part, num_stages)]
                brings = [received.pop(message) for message in messages if message in received]
            if brings:
                readings.append(AwaitingWork(rank, index, span, tuple(brings)))
    return readings


def _last_brought(timeline: Timeline, reading: AwaitingWork) -> PostPlace:
    """Return the place of the message that a work waits for longest: the one that is posted last."""
    return max(reading.brings, key=lambda place: _span(timeline, place).start_s)


def _posted_s(timeline: Timeline) -> dict[PostPlace, float]:
    """Return when both sides had come to each message in their lists, by the place of its Recv [s]."""
    return {
        (b, j): max(_span(timeline, (a, i)).posted_s, _span(timeline, (b, j)).posted_s)
        for _, (a, i, _), (b, j, _) in transfers(listed(schedule_of(timeline).ops))
    }


def _ready_s(timeline: Timeline, reading: AwaitingWork) -> float:
    return max([reading.span.posted_s, *(_span(timeline, place).end_s for place in reading.brings)])


def _boundary(timeline: Timeline, place: PostPlace) -> Hashable:
    """Return the boundary of a message: a key that similar messages share."""
    op = _span(timeline, place).op
    return (op.peer, place[0], op.message.origin) if isinstance(op, Recv) else op


def _span(timeline: Timeline, place: PostPlace) -> Span:
    return timeline.of_rank(place[0])[place[1]]


def _wait_s(span: Span) -> float:
    return max(0.0, span.start_s - span.posted_s)
