"""A lower bound of any lists: no order of their ops on their ranks takes less, whatever it holds.

The inputs of an op give it a head and a tail; each rank and device has a bound of its own, as in `order_bound`. Any
op may be hidden behind another as far as an Overlap hides one. Waits for memory, weight versions, reductions and other
messages on a link are left out, which makes nothing longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from typing import NamedTuple, TypeAlias

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Average, Compute, Overlap, Phase, Recv, Step, gives, needs
from pipesched.simulator.optimum.order_bound import least_of_jobs
from pipesched.simulator.optimum.order_problem import travel_s


class _Work(NamedTuple):
    """The n-th thing that a rank does."""

    rank: int
    number: int
    op: Compute | Step | Average


_Waits: TypeAlias = Mapping[_Work, Mapping[_Work, float]]
"""``waits[after][before]``: the seconds that lie between the end of one and the start of another, at least."""


def least_seconds_of_lists(schedule: Schedule, costs: StageCosts, cluster: Cluster) -> float:
    """Return seconds that no order of the ops of a schedule on their ranks takes less than.

    Args:
        schedule: Any lists that can run, with replicas, weight versions or ranks that share a device, too.
        costs: Seconds of every op, and bytes of messages.
        cluster: Speeds and links.

    Raises:
        NotRunnableError: The lists cannot finish.
        ProfileError: The costs lack the seconds of an op.
    """
    lists = lower(schedule)
    devices, speeds = lists.rank_to_device, [device.speed for device in cluster.devices]
    waits = _waits(lists, costs, cluster)
    seconds = {work: costs.seconds(work.op) / speeds[devices[work.rank]] for work in waits}
    heads, tails = dict.fromkeys(waits, 0.0), dict.fromkeys(waits, 0.0)
    order = [*TopologicalSorter(waits).static_order()]
    for work in order:
        for before, between_s in waits[work].items():
            heads[work] = max(heads[work], heads[before] + seconds[before] + between_s)
    for work in reversed(order):
        for before, between_s in waits[work].items():
            tails[before] = max(tails[before], between_s + seconds[work] + tails[work])
    of_one = defaultdict[tuple[str, int], list[tuple[float, float, float]]](list)
    for work in waits:
        length_s = seconds[work] * (1 - costs.overlap / 2)  # two ops hide at most that share of their sum
        share_s = length_s * costs.stages[work.op.stage].utilisation
        of_one["rank", work.rank].append((heads[work], length_s, tails[work]))
        of_one["device", devices[work.rank]].append((heads[work], share_s, tails[work]))
    longest_s = max((heads[work] + seconds[work] + tails[work] for work in waits), default=0.0)
    return max([longest_s, *map(least_of_jobs, of_one.values())])


def _waits(lists: Schedule, costs: StageCosts, cluster: Cluster) -> _Waits:
    """Return the waits of each op, in lists with their communication."""
    works = [work for rank in range(lists.num_ranks) for work in _works(lists, rank)]
    makers = {(work.rank, gives(work.op)): work for work in works if isinstance(work.op, Compute)}
    sources = [{op.message: op.peer for op in row if isinstance(op, Recv)} for row in lists.ops]
    rebuilding = {
        (work.rank, work.op.stage, work.op.microbatch): work
        for work in works
        if isinstance(work.op, Compute) and work.op.phase is Phase.RECOMPUTE
    }

    def before(work: _Work) -> Iterator[tuple[_Work, float]]:
        rank, op = work.rank, work.op
        if not isinstance(op, Compute):
            return
        for message in needs(op, lists.num_stages):
            peer = sources[rank].get(message, rank)
            yield makers[peer, message], travel_s(message, peer, rank, lists, costs, cluster)
        again = rebuilding.get((rank, op.stage, op.microbatch))
        if again is not None and op.phase in (Phase.BACKWARD, Phase.BACKWARD_INPUT):
            yield again, 0.0

    return {work: dict(before(work)) for work in works}


def _works(lists: Schedule, rank: int) -> Iterator[_Work]:
    ops = (part for op in lists.ops[rank] for part in ((op.first, op.second) if isinstance(op, Overlap) else (op,)))
    for number, op in enumerate(ops):
        if isinstance(op, Compute | Step | Average):
            yield _Work(rank, number, op)
