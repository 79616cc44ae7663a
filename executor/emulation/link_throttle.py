"""The link throttle holds real messages back to the latency and bandwidth of an emulated cluster.

Whoever of a message's two ends posts last works out when it starts and when it arrives, as the simulator does:

    start    = max(last post, link free, shared NICs free)
    free     = start + bytes / bandwidth
    arrival  = free + latency

The last replica that comes to a Reduce does so for the sum, with the rounds of `profiles.clusters.reduction_time`.

The times are nanoseconds of the host's monotonic clock, on a page of memory that all ranks share: so all are on one
host. The message itself travels meanwhile, and is held back until it may have arrived. What travelling really takes
(over loopback some 0.1 ms, and the copies of its bytes) shows only where it is longer than that: so of a tensor of
more than a MiB, which may be gigabytes of gradients, only a MiB really travels.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

from torch import Tensor

from pipesched.executor import ExecutionError
from pipesched.executor.core import PendingReduction, Transport
from pipesched.executor.emulation.emulated_stage import wait_until
from pipesched.profiles.clusters import Cluster, all_reduce
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import LONGEST_S, Message, Recv, Reduce, Schedule, Send

MOST_BYTES = 2**20
"""Of a tensor that really travels."""


@dataclass(frozen=True, slots=True)
class ThrottledRoute:
    """What goes over links once `num_ends` ranks have posted it, one after the other in each run of the list.

    Attributes:
        cell: On the page: how often it was posted; and behind it, when it is over.
        num_ends: Ranks that post it.
        kept_ns: The links and NICs in its way, by their cells, and for how long from its start it keeps each.
        takes_ns: From its start until it is over.
    """

    cell: int
    num_ends: int
    kept_ns: Mapping[int, int]
    takes_ns: int


@final
class Links:
    """The ways of all messages and sums of a lowered schedule on a cluster.

    Args:
        schedule: That `require_emulable` has nothing against.
        cluster: Of its devices.
        costs: Say the bytes of messages and gradients.

    Attributes:
        messages: The way of each.
        sums: The way of each Reduce of a stage, in order.
        num_cells: Of a page that has room for all.
    """

    def __init__(self, schedule: Schedule, cluster: Cluster, costs: StageCosts) -> None:
        self._devices = schedule.rank_to_device
        self._cluster = cluster
        self._cells: defaultdict[tuple[str, int, int], int] = defaultdict(self._next)
        self.num_cells = 0
        self.messages: dict[Message, ThrottledRoute] = {}
        for rank, ops in enumerate(schedule.ops):
            for op in ops:
                if isinstance(op, Send):
                    self.messages[op.message] = self._message(rank, op.peer, costs.message_bytes(op.message))
        self.sums = {
            stage: [
                self._sum(ranks, costs.stages[stage].weight_bytes)
                for _ in range(schedule.ops[ranks[0]].count(Reduce(stage)))
            ]
            for stage, ranks in schedule.reducers.items()
        }

    def _message(self, source: int, target: int, num_bytes: int) -> ThrottledRoute:
        hop = self._devices[source], self._devices[target]
        link = self._cluster.link(*hop)
        return self._way(2, {hop: link.occupied_s(num_bytes)}, link.transfer_s(num_bytes))

    def _sum(self, ranks: Sequence[int], num_bytes: int) -> ThrottledRoute:
        plan = all_reduce(num_bytes, [self._devices[rank] for rank in ranks], self._cluster)
        return self._way(len(ranks), plan.until_s(), plan.seconds)

    def _way(self, num_ends: int, kept_s: Mapping[tuple[int, int], float], takes_s: float) -> ThrottledRoute:
        if not takes_s <= LONGEST_S:
            raise ExecutionError(
                f"cluster ({self._cluster.origin}): got links that take {takes_s:.3g} s, expected at most a week "
                f"({LONGEST_S:g}); try shorter latencies, or more bandwidth"
            )
        cell, _ = self._next(), self._next()
        kept_ns: dict[int, int] = {}
        for hop, seconds in kept_s.items():
            for link in self._between(*hop):
                kept_ns[link] = max(kept_ns.get(link, 0), round(seconds * 1e9))
        return ThrottledRoute(cell, num_ends, kept_ns, round(takes_s * 1e9))

    def _between(self, source: int, target: int) -> Iterator[int]:
        """Yield the cells of the link from one device to another, and of the NICs' sides in its way."""
        yield self._cells["link", source, target]
        out, into = self._cluster.nics_between(source, target)
        if out is not None:
            yield self._cells["out", out, 0]
        if into is not None:
            yield self._cells["in", into, 0]

    def _next(self) -> int:
        self.num_cells += 1
        return self.num_cells - 1


def require_emulable(schedule: Schedule, cluster: Cluster) -> None:
    """Refuse what cannot be emulated on `cluster`.

    Raises:
        ExecutionError: Several ranks share a device, or the cluster has too few.
    """
    devices = schedule.rank_to_device
    if len(set(devices)) < len(devices):
        raise ExecutionError(
            f"cluster: got schedule {schedule.name} with several ranks on a device, expected one on each: emulated "
            "ranks do not share; try it without a cluster"
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
        path: A file of as many zeros, opened by each rank for itself.
        now_ns: The time.
    """

    def __init__(self, path: Path, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._file = os.open(path, os.O_RDWR)
        self._map = mmap.mmap(self._file, 0)
        self._cells = memoryview(self._map).cast("q")

    @staticmethod
    def create(path: Path, num_cells: int) -> None:
        """Write the file."""
        path.write_bytes(bytes(8 * max(1, num_cells)))

    def post(self, way: ThrottledRoute) -> None:
        """Post one end; the last one to post says when `way` is over."""
        with self._alone() as cells:
            cells[way.cell] += 1
            if cells[way.cell] % way.num_ends:
                return
            start_ns = max((self._now_ns(), *(cells[link] for link in way.kept_ns)))
            for link, kept_ns in way.kept_ns.items():
                cells[link] = max(cells[link], start_ns + kept_ns)
            cells[way.cell + 1] = start_ns + way.takes_ns

    def over_ns(self, way: ThrottledRoute, run: int) -> int | None:
        """Return when `way` is over in the list's run number `run`, from 0; None while an end has not posted."""
        with self._alone() as cells:
            return cells[way.cell + 1] if cells[way.cell] >= way.num_ends * (run + 1) else None

    @contextmanager
    def _alone(self) -> Iterator[memoryview]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield self._cells
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


@final
class ThrottledTransport(Transport):
    """A transport whose messages come no sooner than over `links`.

    Args:
        inner: What they really travel by.
        links: Of all messages.
        page: Of all ranks.
    """

    def __init__(self, inner: Transport, links: Links, page: Page) -> None:
        self._inner = inner
        self._links = links
        self._page = page
        self._run = 0
        self._sums: dict[int, Iterator[ThrottledRoute]] = {}

    def send(self, op: Send, tensor: Tensor) -> None:
        self._page.post(self._links.messages[op.message])
        self._inner.send(op, tensor)

    def post(self, op: Recv) -> None:
        self._page.post(self._links.messages[op.message])
        self._inner.post(op)

    def take(self, message: Message) -> Tensor | None:
        tensor = self._inner.take(message)
        if tensor is not None:
            self._wait(self._links.messages[message])
        return tensor

    def reduce(self, op: Reduce, tensor: Tensor) -> PendingReduction:
        if op.stage not in self._sums:
            self._sums[op.stage] = iter(self._links.sums[op.stage])
        way = next(self._sums[op.stage])
        self._page.post(way)
        take = self._inner.reduce(op, tensor)

        def take_late() -> Tensor | None:
            sums = take()
            if sums is not None:
                self._wait(way)
            return sums

        return take_late

    def flush(self) -> None:
        self._inner.flush()
        self._run += 1
        self._sums.clear()

    def _wait(self, way: ThrottledRoute) -> None:
        over_ns = self._page.over_ns(way, self._run)
        assert over_ns is not None, "what has come was posted at all its ends"
        wait_until(over_ns / 1e9)
