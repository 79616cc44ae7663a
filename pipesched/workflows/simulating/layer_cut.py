"""The balanced cut of layers for a schedule under a given setup, shared by predictions and runs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import Compression, CostSource, StageCosts, stages_of_layers, with_input_share
from pipesched.profiles.partitioning import Layers, arranged, uniform_partition
from pipesched.schedules import Schedule
from pipesched.simulator import USUAL_NETWORK, Buffers, NetworkOptions
from pipesched.simulator.search import CutTask, fastest_cut
from pipesched.workflows.arguments import ScheduleSource, naming_costs

_KEPT = 16
"""Cuts that are cached, because several parts of an answer need the same cut."""
_StagesOf: TypeAlias = Callable[[Sequence[tuple[int, int]]], StageCosts]
_stages_of: OrderedDict[tuple[int, int | None, int], tuple[object, _StagesOf]] = OrderedDict()
_known: OrderedDict[tuple[object, ...], tuple[tuple[object, ...], Layers]] = OrderedDict()


def balanced_layers(
    given: CostSource,
    source: ScheduleSource,
    cluster: Cluster,
    *,
    microbatch_size: int | None = None,
    input_share: float | None = None,
    network: NetworkOptions = USUAL_NETWORK,
    compression: Compression | None = None,
    buffers: Buffers = "pooled",
) -> Layers:
    """Return the layers of each stage with which a schedule is fastest, within a short search.

    Args:
        given: Costs of the layers.
        source: The schedule.
        cluster: The machines.
        microbatch_size: Samples of a micro-batch, with a profile; None: the smallest measured size.
        input_share: Share of B that I takes in costs with B alone; None: no split is assumed.
        network: Options of the network.
        compression: Compression of messages.
        buffers: Allocation of receive buffers.

    Raises:
        ArgumentError: The size of micro-batches is below 1.
        ProfileError: There are more stages than layers, or the profile does not cover the size.
    """
    objects, schedule = (given, source.schedule), source.schedule  # kept, so that their ids stay valid
    key = (
        *map(id, objects), source.longer is None, microbatch_size, cluster, network, compression, buffers, input_share
    )  # fmt: skip
    if key not in _known:
        stages = _stages_of_schedule(given, schedule, microbatch_size)

        def costs_of(bounds: Sequence[tuple[int, int]]) -> StageCosts:
            costs = replace(stages(bounds), compression=compression)
            if input_share is None:
                return costs
            return replace(costs, stages=tuple(with_input_share(costs.stages, input_share)))

        task = CutTask(schedule, given.num_layers, costs_of, cluster, network, source.longer, buffers)
        layers = fastest_cut(task)
        while len(_known) >= _KEPT:
            _known.popitem(last=False)
        _known[key] = objects, layers
    return _known[key][1]


def _stages_of_schedule(given: CostSource, schedule: Schedule, microbatch_size: int | None) -> _StagesOf:
    """Return the function from bounds to the costs of stages, after a check that there are enough layers."""
    with naming_costs(given, schedule):
        uniform_partition(given.num_layers, schedule.num_stages)
    return _stages(arranged(given, schedule.num_stages), microbatch_size, schedule.ranks_per_device)


def _stages(given: CostSource, size: int | None, num_sharing: int) -> _StagesOf:
    """Return the function from bounds to the costs of stages; the latest functions are cached."""
    key = id(given), size, num_sharing
    if key not in _stages_of:
        while len(_stages_of) >= _KEPT:
            _stages_of.popitem(last=False)
        _stages_of[key] = (
            given,
            stages_of_layers(given, size, num_sharing),
        )  # `given` is kept, so that its id stays valid
    return _stages_of[key][1]
