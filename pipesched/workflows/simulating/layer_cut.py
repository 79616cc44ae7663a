"""The balanced cut of layers for a schedule under some conditions: one answer for all that predict or run it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import LayerCosts, Profile, StageCosts, stages_of_layers, with_input_share
from pipesched.profiles.partitioning import Layers, arranged, uniform_partition
from pipesched.simulator.search import CutTask, fastest_cut
from pipesched.workflows.arguments import ScheduleSource, read_microbatch_size

if TYPE_CHECKING:
    from pipesched.workflows.simulating.prediction import Conditions

_KEPT = 16
"""Cuts that are kept, as several parts of an answer ask for the same one."""
_StagesOf: TypeAlias = Callable[[Sequence[tuple[int, int]]], StageCosts]
_stages_of: OrderedDict[tuple[int, int | None, int], _StagesOf] = OrderedDict()
_known: OrderedDict[tuple[object, ...], tuple[tuple[object, ...], Layers]] = OrderedDict()


def balanced_layers(conditions: Conditions, source: ScheduleSource, cluster: Cluster) -> Layers:
    """Return the layers of each stage with which a schedule is fastest, as far as a short search finds them.

    Args:
        conditions: Costs of layers or a profile, and how messages go.
        source: The schedule.
        cluster: The machines.

    Raises:
        ArgumentError: The size of micro-batches is below 1.
        ProfileError: There are more stages than layers, or the profile does not cover the size.
    """
    asked = conditions
    objects = asked.costs, source.schedule  # kept, and so their identity
    key = (
        *map(id, objects), source.longer is None, asked.microbatch_size, cluster, asked.network, asked.compression,
        asked.convert_bytes_per_s, asked.buffers, asked.input_share,
    )  # fmt: skip
    if key not in _known:
        layers = _searched(asked, source, cluster)
        while len(_known) >= _KEPT:
            _known.popitem(last=False)
        _known[key] = objects, layers
    return _known[key][1]


def _searched(conditions: Conditions, source: ScheduleSource, cluster: Cluster) -> Layers:
    given, schedule = conditions.costs, source.schedule
    assert isinstance(given, Profile | LayerCosts), "it has layers"
    num_layers = len(given.layers)
    try:
        uniform_partition(num_layers, schedule.num_stages)
    except ProfileError as error:
        if isinstance(given, Profile):
            raise
        raise ProfileError(f"{given.origin or 'costs'}: schedule {schedule.name}: {error}") from error
    if isinstance(given, Profile):
        given = arranged(given, schedule.num_stages)
    stages = _stages(given, conditions.microbatch_size, schedule.ranks_per_device)

    def costs_of(bounds: tuple[tuple[int, int], ...]) -> StageCosts:
        costs = stages(bounds)
        if conditions.input_share is not None:
            costs = replace(costs, stages=tuple(with_input_share(costs.stages, conditions.input_share)))
        return conditions.compressed(costs)

    task = CutTask(schedule, num_layers, costs_of, cluster, conditions.network, source.longer, conditions.buffers)
    return fastest_cut(task)


def _stages(given: Profile | LayerCosts, size: int | None, num_sharing: int) -> _StagesOf:
    """Return what says the costs of stages of some layers; those that were asked for last are kept."""
    if isinstance(given, Profile):
        size = read_microbatch_size(size, given)
    key = id(given), size, num_sharing
    if key not in _stages_of:
        while len(_stages_of) >= _KEPT:
            _stages_of.popitem(last=False)
        _stages_of[key] = stages_of_layers(given, size, num_sharing)  # which holds what is given, and so its identity
    return _stages_of[key]
