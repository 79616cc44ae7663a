"""The seconds of each op of a Timeline: its work, its rank's own time around it, and how late its message was.

A rank's own time lies between its works when it waits for no other rank: it posts, takes arrived messages,
and reads its list.

    work ──┬─ own ─┬─ Send ── own ─┬─ waits for a message ─┬─ work
          end    reached        reached                 arrives

A run shows the arrival of a message only if its reader waited for it: the reader came before the posting, or took much
longer than it takes to take an arrived message. Any other message arrived at the latest when the work began. It gets
the usual lateness: the median of the messages of its boundary whose reader had come before the posting.
A sum of gradients is treated like a message. A rank has posted its Reduce when it continues, after it has copied its
gradients. So the rank that posts last waits for the whole sum too, if its Step comes next. The ranks of a sum are one
boundary: the sum ends for all of them at once.
A reader may post its buffer later than its list says (PyTorch's 1F1B). Then the message leaves only at that time, and
the reader's wait counts; the usual run takes the median wait of the boundary.
The network that the prediction supposes determines when a message would have been handed over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TypeAlias

from pipesched.profiles.clusters import Cluster, flat
from pipesched.profiles.costs import StageCosts, uniform
from pipesched.schedules import Span, Timeline, schedule_of
from pipesched.schedules.ops import Message, PostOp, Recv, Reduce, awaits_sum, computes, needs
from pipesched.schedules.semantics import listed, meeting_reduces, transfers
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
        A Reduce that waits for another sum is posted when both its time has come and that sum is over.
        """
        zero_s = min((span.posted_s for span in timeline.spans), default=0.0)
        lists: list[tuple[PostOp, ...]] = []
        given: list[list[OpSeconds]] = []
        places: list[PostPlace] = []
        for rank in range(len(timeline.rank_to_device)):
            posts = [(i, span.op) for i, span in enumerate(timeline.of_rank(rank)) if isinstance(span.op, PostOp)]
            times_s = [zero_s, *(_post_s(timeline, (rank, index)) for index, _ in posts)]
            first_s, *later_s = [max(0.0, end_s - begin_s) for begin_s, end_s in pairwise([*times_s, times_s[-1]])]
            lists.append(tuple(op for _, op in posts))
            given.append([OpSeconds(None, 0.0 if k else first_s, after_s) for k, after_s in enumerate(later_s)])
            places += [(rank, index) for index, _ in posts]
        only_posts = replace(schedule_of(timeline), lists=tuple(lists), is_lowered=True)
        posted = simulate_lists(only_posts, self.costs, self.cluster, network=self.network, given=given)
        return {place: span.end_s + zero_s for place, span in zip(places, posted.spans, strict=True)}


def free_network(timeline: Timeline) -> NetworkModel:
    """Return the network in which nothing takes time, for the ops and devices of `timeline`."""
    costs = uniform(schedule_of(timeline).num_stages, 0.0, 0.0, 0.0, 0.0)
    return NetworkModel(costs, flat(max(timeline.rank_to_device, default=-1) + 1))


@dataclass(frozen=True, slots=True)
class Reader:
    """An op that waits for messages or for a sum of gradients.

    Attributes:
        place: Its rank, and its index in the rank's list.
        reached_s: Time at which the rank reached it [s].
        continued_s: Time at which it had all that it waits for [s].
        brings: The places of the Recvs or the Reduce.
    """

    place: PostPlace
    reached_s: float
    continued_s: float
    brings: tuple[PostPlace, ...]

    @property
    def wait_s(self) -> float:
        """Time from when the rank reaches the op until it continues [s]."""
        return max(0.0, self.continued_s - self.reached_s)


@dataclass(frozen=True, slots=True)
class RunSeconds:
    """The measured seconds of a run's ops.

    Attributes:
        given: Seconds of every op, each message as late as it was.
        usual: The same, but each message with the median lateness of its boundary.
        num_messages: Messages and reductions that an op needs.
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
    modelled_s, readers = network.arrivals_s(timeline), _readers(timeline)
    late_s = {place: _span(timeline, place).end_s - expected_s for place, expected_s in modelled_s.items()}
    before_s = {}
    for reader in readers:
        ready_s = max([reader.reached_s, *(_span(timeline, place).end_s for place in reader.brings)])
        before_s[reader.place] = max(0.0, reader.continued_s - ready_s)
    return _rows(timeline, readers, before_s, late_s)


def seconds_of_run(timeline: Timeline, network: NetworkModel) -> RunSeconds:
    """Return the seconds of the ops of a measured Timeline.

    Args:
        timeline: The measurement.
        network: Network assumed for the run; the lateness of messages is their additional time.
    """
    modelled_s, readers = network.arrivals_s(timeline), _readers(timeline)
    last = {reader: _last_brought(timeline, reader) for reader in readers}
    posted_s = _posted_s(timeline)
    came_before = {reader for reader in readers if reader.reached_s <= posted_s[last[reader]]}
    in_transit = {
        reader
        for reader in readers
        if reader not in came_before and reader.reached_s <= _span(timeline, last[reader]).start_s
    }
    came_later = [reader for reader in readers if reader not in came_before | in_transit]
    take_s = median([reader.wait_s for reader in came_later] or [0.0])
    waited = [reader for reader in came_later if reader.wait_s > _CLEARLY * take_s]

    seen_s = {last[reader]: reader.continued_s - modelled_s[last[reader]] for reader in came_before}
    usual_of = _medians((_boundary(timeline, place), late_s) for place, late_s in seen_s.items())
    usual_of_kind = _medians((_is_sum(timeline, place), late_s) for place, late_s in seen_s.items())
    usual_s: dict[PostPlace, float] = {}
    for reader in readers:
        for place in reader.brings:
            late_s = usual_of.get(_boundary(timeline, place), usual_of_kind.get(_is_sum(timeline, place), 0.0))
            latest_s = reader.continued_s - modelled_s[place]
            usual_s[place] = late_s if reader in came_before else min(late_s, latest_s)
    seen_s |= {last[reader]: reader.continued_s - take_s - modelled_s[last[reader]] for reader in waited}

    transit_of = _medians((_boundary(timeline, last[reader]), reader.wait_s) for reader in in_transit)

    def rows(late_s: Mapping[PostPlace, float], *, is_usual: bool = False) -> GivenRows:
        before_s = {reader.place: 0.0 for reader in came_before}
        for reader in in_transit:
            usual_wait_s = transit_of[_boundary(timeline, last[reader])]
            before_s[reader.place] = usual_wait_s if is_usual else reader.wait_s
        for reader in came_later:
            there_s = max(modelled_s[place] + late_s[place] for place in reader.brings)
            before_s[reader.place] = max(0.0, min(take_s, reader.continued_s - max(reader.reached_s, there_s)))
        return _rows(timeline, readers, before_s, late_s)

    return RunSeconds(rows(usual_s | seen_s), rows(usual_s, is_usual=True), len(readers), len(seen_s))


def _rows(
    timeline: Timeline,
    readers: Sequence[Reader],
    before_s: Mapping[PostPlace, float],
    late_s: Mapping[PostPlace, float],
) -> GivenRows:
    """Return the seconds of all ops.

    Args:
        timeline: The Timeline.
        readers: All ops that wait.
        before_s: Own time of each of them from the arrival to the work or the posting [s].
        late_s: Lateness of each message and sum [s].
    """
    continued_s = {reader.place: reader.continued_s for reader in readers}

    def row(rank: int, now_s: float) -> Iterator[OpSeconds]:
        spans = timeline.of_rank(rank)
        for index, span in enumerate(spans):
            place = rank, index
            begun_s = 0.0 if index else max(0.0, span.posted_s - now_s)  # a rank may begin later than others
            next_s = spans[index + 1].posted_s if index + 1 < len(spans) else None
            if isinstance(span.op, PostOp):
                post_s = _post_s(timeline, place)
                own_s = before_s.get(place, 0.0) + max(0.0, post_s - continued_s.get(place, span.posted_s))
                after_s = 0.0 if next_s is None else next_s - post_s
                yield OpSeconds(None, begun_s + own_s, max(0.0, after_s), late_s.get(place, 0.0))
                continue
            wait_s = max(0.0, span.start_s - span.posted_s) if computes(span.op) else 0.0
            after_s = 0.0 if next_s is None else next_s - span.end_s
            yield OpSeconds(span.end_s - span.start_s, begun_s + before_s.get(place, wait_s), max(0.0, after_s))

    first_s = min((span.posted_s for span in timeline.spans), default=0.0)
    return tuple(tuple(row(rank, first_s)) for rank in range(len(timeline.rank_to_device)))


def _readers(timeline: Timeline) -> list[Reader]:
    """Return the ops that wait for messages or sums of others."""
    num_stages, readers = schedule_of(timeline).num_stages, []
    for rank in range(len(timeline.rank_to_device)):
        received: dict[Message | None, PostPlace] = {}
        reduced: dict[int, PostPlace] = {}
        for index, span in enumerate(timeline.of_rank(rank)):
            op, brings, continued_s = span.op, [], span.start_s
            if isinstance(op, Recv):
                received[op.message] = (rank, index)
            elif awaits_sum(op) and op.stage in reduced:
                brings = [reduced.pop(op.stage)]
                if isinstance(op, Reduce):  # its span starts when all ranks have posted
                    continued_s = max(span.posted_s, _span(timeline, brings[0]).end_s)
            else:
                messages = [message for part in computes(op) for message in needs(part, num_stages)]
                brings = [received.pop(message) for message in messages if message in received]
            if isinstance(op, Reduce):
                reduced[op.stage] = (rank, index)
            if brings:
                readers.append(Reader((rank, index), span.posted_s, continued_s, tuple(brings)))
    return readers


def _last_brought(timeline: Timeline, reader: Reader) -> PostPlace:
    """Return the place of the message that a reader waits for longest: the one that is posted last."""
    return max(reader.brings, key=lambda place: _span(timeline, place).start_s)


def _posted_s(timeline: Timeline) -> dict[PostPlace, float]:
    """Return when all sides had posted each message and each sum, by the places of Recvs and Reduces [s]."""
    lists, posted_s = schedule_of(timeline).ops, dict[PostPlace, float]()
    meetings = [[(a, i), (b, j)] for _, (a, i, _), (b, j, _) in transfers(listed(lists))]
    meetings += [[(rank, index) for rank, index, _ in reduces] for reduces in meeting_reduces(listed(lists))]
    for places in meetings:
        posted_s |= dict.fromkeys(places, max(_post_s(timeline, place) for place in places))
    return posted_s


def _post_s(timeline: Timeline, place: PostPlace) -> float:
    """Return when a rank posted its side of a message or a sum [s].

    Sends and Recvs are posted when they are reached. A Reduce is posted when its rank continues.
    """
    span, spans = _span(timeline, place), timeline.of_rank(place[0])
    if not isinstance(span.op, Reduce) or place[1] + 1 == len(spans):
        return span.posted_s
    return max(span.posted_s, min(span.end_s, spans[place[1] + 1].posted_s))


def _boundary(timeline: Timeline, place: PostPlace) -> Hashable:
    """Return the boundary of a message or the group of a sum: a key that similar ones share."""
    op = _span(timeline, place).op
    if isinstance(op, Reduce):
        return op.group
    return (op.peer, place[0], op.message.origin) if isinstance(op, Recv) else op


def _is_sum(timeline: Timeline, place: PostPlace) -> bool:
    return isinstance(_span(timeline, place).op, Reduce)


def _medians(pairs: Iterable[tuple[Hashable, float]]) -> dict[Hashable, float]:
    """Return the median of the numbers of each key."""
    alike = defaultdict[Hashable, list[float]](list)
    for key, number in pairs:
        alike[key].append(number)
    return {key: median(numbers) for key, numbers in alike.items()}


def _span(timeline: Timeline, place: PostPlace) -> Span:
    return timeline.of_rank(place[0])[place[1]]
