"""The network that a prediction supposes, and when it would have handed over the messages of a Timeline."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipesched.profiles.clusters import Cluster, flat
from pipesched.profiles.costs import StageCosts, uniform
from pipesched.schedules import Timeline, schedule_of
from pipesched.schedules.ops import PostOp
from pipesched.simulator import USUAL_NETWORK, NetworkOptions
from pipesched.simulator.engine import OpSeconds, simulate_lists

PostPlace = tuple[int, int]
"""A rank, and the index of a Send, Recv or Reduce in its list."""


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
