"""The link throttle delays real messages to the latency and bandwidth of an emulated cluster.

The end of a message that posts last computes its start and its arrival, as in the simulator:

    start    = max(last post, link free, shared NICs free)
    free     = start + bytes / bandwidth
    arrival  = free + latency

The last replica that reaches a Reduce does so for all, with the rounds of `profiles.clusters.reduction_time`.

The times are nanoseconds of the host's monotonic clock, on a page of memory that all ranks share: so all are on one
host. The real message travels meanwhile, and is delayed until its emulated arrival. The real travel time (over loopback
some 0.1 ms, and the copies of its bytes) only shows if it is longer. So of a tensor above a MiB, which may be gigabytes
of gradients, only a MiB really travels.

The overheads of messages on the ranks are emulated likewise: a post lasts as long as the link says, or longer if the
real post does. The overhead between ops is the executor's own.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import final

from torch import Tensor

from pipesched.executor import ExecutionError
from pipesched.executor.core import PendingReduction, Transport
from pipesched.executor.emulation.emulated_stage import wait_until
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts, reduction_of
from pipesched.profiles.models import Value
from pipesched.schedules import Schedule
from pipesched.schedules.common import LONGEST_S
from pipesched.schedules.ops import Message, PostOp, Recv, Reduce, Send
from pipesched.schedules.semantics import MeetingKey, Meetings

MOST_BYTES = 2**20
"""Largest size of a tensor that really travels [bytes]."""

_POLL_S = 2e-5


@dataclass(frozen=True, slots=True)
class ThrottledRoute:
    """A message or reduction over links, once `num_ends` ranks have posted it; posts of one run follow each other.

    Attributes:
        cell: Cell on the page that counts its posts; the next cell holds its end.
        num_ends: Ranks that post it.
        kept_ns: Cells of the links and NICs on its route, and how long from its start it occupies each.
        takes_ns: Time from its start to its end.
        hand_over_ns: Time of a message on its ranks: at the Send, at the Recv, and at its use.
    """

    cell: int
    num_ends: int
    kept_ns: Mapping[int, int]
    takes_ns: int
    hand_over_ns: tuple[int, int, int] = (0, 0, 0)


@final
class ThrottledRoutes:
    """The routes of all messages and reductions of a lowered schedule on a cluster.

    Args:
        schedule: A schedule that `require_emulable` accepts.
        cluster: Cluster of the schedule's devices.
        costs: Costs with the bytes of messages and gradients.

    Attributes:
        by_meeting: The route of each message and reduction, by the meeting of its posts.
    """

    def __init__(self, schedule: Schedule, cluster: Cluster, costs: StageCosts) -> None:
        self._devices = schedule.rank_to_device
        self._cluster = cluster
        self._cells: defaultdict[tuple[str, int, int], int] = defaultdict(self._next)
        self._num_cells = 0
        self.by_meeting: dict[MeetingKey, ThrottledRoute] = {}
        meetings = Meetings()
        for rank, ops in enumerate(schedule.ops):
            for op in ops:
                if isinstance(op, Send):
                    route = self._message(rank, op.peer, costs.message_bytes(op.message))
                    self.by_meeting[meetings.come(rank, op)] = route
                elif isinstance(op, Reduce):
                    key = meetings.come(rank, op)
                    if key not in self.by_meeting:
                        plan = reduction_of(op.group, schedule, costs, cluster)
                        num_ends = len(schedule.summands[op.group])
                        self.by_meeting[key] = self._route(num_ends, plan.until_s(), plan.seconds)

    @property
    def num_bytes(self) -> int:
        """Bytes of a page for all routes."""
        return 8 * max(1, self._num_cells)

    def _message(self, source: int, target: int, num_bytes: int) -> ThrottledRoute:
        hop = self._devices[source], self._devices[target]
        link = self._cluster.link(*hop)
        own_s = self._cluster.hand_over_s(*hop, num_bytes)
        self._require_possible(sum(own_s))
        send_ns, post_ns, receive_ns = (round(seconds * 1e9) for seconds in own_s)
        route = self._route(2, {hop: link.occupied_s(num_bytes)}, link.transfer_s(num_bytes))
        return replace(route, hand_over_ns=(send_ns, post_ns, receive_ns))

    def _route(self, num_ends: int, kept_s: Mapping[tuple[int, int], float], takes_s: float) -> ThrottledRoute:
        self._require_possible(takes_s)
        cell, _ = self._next(), self._next()
        kept_ns: dict[int, int] = {}
        for hop, seconds in kept_s.items():
            for link in self._between(*hop):
                kept_ns[link] = max(kept_ns.get(link, 0), round(seconds * 1e9))
        return ThrottledRoute(cell, num_ends, kept_ns, round(takes_s * 1e9))

    def _require_possible(self, takes_s: float) -> None:
        if not takes_s <= LONGEST_S:
            raise ExecutionError(
                f"cluster ({self._cluster.origin}): got links on which messages take {takes_s:.3g} s, expected at most "
                f"a week ({LONGEST_S:g}); try shorter latencies, or more bandwidth"
            )

    def _between(self, source: int, target: int) -> Iterator[int]:
        """Yield the cells of the link from one device to another, and of the NICs' sides in its route."""
        yield self._cells["link", source, target]
        out, into = self._cluster.nics_between(source, target)
        if out is not None:
            yield self._cells["out", out, 0]
        if into is not None:
            yield self._cells["in", into, 0]

    def _next(self) -> int:
        self._num_cells += 1
        return self._num_cells - 1


def require_emulable(schedule: Schedule, cluster: Cluster) -> None:
    """Refuse a schedule that cannot be emulated on `cluster`.

    Raises:
        ExecutionError: Several ranks share a device, or the cluster has too few.
    """
    devices = schedule.rank_to_device
    if len(set(devices)) < len(devices):
        raise ExecutionError(
            f"cluster: got schedule {schedule.name} with several ranks on a device, expected one on each: emulated "
            "ranks do not share devices; leave the cluster out"
        )
    if max(devices, default=-1) >= len(cluster.devices):
        raise ExecutionError(
            f"cluster ({cluster.origin}): got {len(cluster.devices)} devices, expected {max(devices) + 1} for schedule "
            f"{schedule.name}; add devices, or use fewer ranks"
        )


@final
class Page:
    """Cells of 64 bits that all ranks map; one rank at a time posts.

    Args:
        path: A file of zeros for the cells, opened by each rank for itself.
        now_ns: Returns the time [ns].
    """

    def __init__(self, path: Path, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._file = os.open(path, os.O_RDWR)
        self._map = mmap.mmap(self._file, 0)
        self._cells = memoryview(self._map).cast("q")

    def post(self, route: ThrottledRoute) -> None:
        """Post one end; the last one to post sets the end of `route`."""
        with self._alone() as cells:
            cells[route.cell] += 1
            if cells[route.cell] % route.num_ends:
                return
            start_ns = max((self._now_ns(), *(cells[link] for link in route.kept_ns)))
            for link, kept_ns in route.kept_ns.items():
                cells[link] = max(cells[link], start_ns + kept_ns)
            cells[route.cell + 1] = start_ns + route.takes_ns

    def over_ns(self, route: ThrottledRoute, run: int) -> int | None:
        """Return the end of `route` in run number `run` of the list, from 0, or None while an end has not posted."""
        with self._alone() as cells:
            return cells[route.cell + 1] if cells[route.cell] >= route.num_ends * (run + 1) else None

    @contextmanager
    def _alone(self) -> Iterator[memoryview]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield self._cells
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


@final
class ThrottledTransport(Transport):
    """A transport that delays each message until it would have arrived over `routes`.

    Args:
        rank: The rank that posts.
        inner: Transport of the real messages.
        routes: Routes of all messages.
        page: The page that all ranks share.
    """

    def __init__(self, rank: int, inner: Transport, routes: ThrottledRoutes, page: Page) -> None:
        self._rank = rank
        self._inner = inner
        self._routes = routes
        self._page = page
        self._run = 0
        self._meetings = Meetings()
        self._incoming: dict[Message, ThrottledRoute] = {}

    def send(self, op: Send, value: Value) -> None:
        route = self._route_of(op)
        self._post(route, route.hand_over_ns[0], partial(self._inner.send, op, value))

    def post(self, op: Recv) -> None:
        route = self._incoming[op.message] = self._route_of(op)
        self._post(route, route.hand_over_ns[1], partial(self._inner.post, op))

    def take(self, message: Message) -> Value | None:
        value = self._inner.take(message)
        if value is not None:
            route = self._incoming.pop(message)
            self._wait(route)
            if route.hand_over_ns[2]:
                wait_until(time.perf_counter() + route.hand_over_ns[2] / 1e9)
        return value

    def reduce(self, op: Reduce, tensor: Tensor) -> PendingReduction:
        route = self._route_of(op)
        self._page.post(route)
        take = self._inner.reduce(op, tensor)

        def take_late() -> Tensor | None:
            summed = take()
            if summed is not None:
                self._wait(route)
            return summed

        return take_late

    def flush(self) -> None:
        self._inner.flush()
        self._run += 1
        self._meetings.clear()

    def _route_of(self, op: PostOp) -> ThrottledRoute:
        return self._routes.by_meeting[self._meetings.come(self._rank, op)]

    def _post(self, route: ThrottledRoute, kept_ns: int, really: Callable[[], None]) -> None:
        """Post a message after its overhead on the rank, or at once if `kept_ns` is 0."""
        start_s = time.perf_counter()
        if not kept_ns:
            self._page.post(route)
        really()
        if kept_ns:
            wait_until(start_s + kept_ns / 1e9)
            self._page.post(route)

    def _wait(self, route: ThrottledRoute) -> None:
        while (over_ns := self._page.over_ns(route, self._run)) is None:
            time.sleep(_POLL_S)  # it has really come, while its sender still has it on its hands
        wait_until(over_ns / 1e9)
