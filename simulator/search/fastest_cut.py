"""The cut of layers into stages that minimises the time of a schedule on given machines, among all cuts that fit."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TypeAlias, final

import numpy as np

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import Compression, CostSource, StageCost, StageCosts, stages_of_layers
from pipesched.profiles.partitioning import (
    Layers,
    RankWork,
    Stages,
    arranged,
    balanced_over_ranks,
    first_cuts,
    flushed_bytes,
)
from pipesched.schedules import Schedule, ScheduleError
from pipesched.schedules.columns import Float64s, op_cells
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Message, Payload
from pipesched.schedules.transforms import runs_without_flush
from pipesched.simulator import USUAL_NETWORK, Buffers, Estimate, Inexact, NetworkOptions, Scenario
from pipesched.simulator.engine import require_simulable
from pipesched.simulator.fast import (
    LoadedProgram,
    Program,
    UnflushedRuns,
    compile_lists,
    drifting_scenario,
    predict_drifting,
)
from pipesched.simulator.memory import peak_bytes
from pipesched.simulator.search.cut_search import CutBounds, CutSearch
from pipesched.simulator.search.kept import Kept
from pipesched.simulator.search.outcome import UNPREDICTABLE

StageRanges: TypeAlias = tuple[tuple[int, int], ...]
"""The first layer of each stage, and the layer behind its last."""

_MOST_CUTS = 64
"""Most cuts to simulate, besides the starting cuts of a search."""
_MOST_STEPS = 50_000
"""Instructions that are simulated at most: numba, for which others count theirs too, is not loaded for so few."""
_MOST_PACES = 4
"""Cuts likewise of pipelines that drift apart, whose pace takes about 0.1 s."""
_MOST_CELLS = 60_000
"""Ops in the lists of a run without a flush, of all cuts whose pace is found by longer runs."""
_EXCESS_POWER = 4
"""Power of the bytes over memory in their sum over devices: the fullest counts most, yet each counts."""
_MOST_COSTS = 1_024
"""Costs of cuts that a function of `costs_of_cuts` keeps."""
_costs_of: Kept[Callable[[StageRanges], StageCosts]] = Kept(256)
"""The functions of `costs_of_cuts`; several parts of an answer ask for the same costs."""
_programs: Kept[Program] = Kept(4)
"""Programs of op lists, for searches with other costs or machines."""
_runs: Kept[UnflushedRuns | None] = Kept(4)
"""Runs of op lists without a flush, likewise."""


@dataclass(frozen=True, slots=True)
class CutTask:
    """Layers that are to be cut for a schedule.

    Attributes:
        schedule: The lists.
        num_layers: Layers of the model.
        costs_of: Returns the costs of a cut's stages.
        cluster: Devices and links.
        network: How messages go.
        longer: Makes a run without a flush a number of times as long, or None to continue its lists.
        buffers: How receive buffers are allocated.
    """

    schedule: Schedule
    num_layers: int
    costs_of: Callable[[StageRanges], StageCosts]
    cluster: Cluster
    network: NetworkOptions = USUAL_NETWORK
    longer: Callable[[int], Schedule] | None = None
    buffers: Buffers = "pooled"

    def costs(self, layers: Layers) -> StageCosts:
        """Return the costs of stages with these numbers of layers."""
        return self.costs_of(tuple(pairwise(accumulate(layers, initial=0))))


def costs_of_cuts(
    costs: CostSource,
    num_stages: int,
    size: int | None = None,
    num_sharing: int = 1,
    compression: Compression | None = None,
) -> Callable[[StageRanges], StageCosts]:
    """Return the function from the cut of layers into stages to their costs; it keeps the last ones.

    Args:
        costs: Costs of layers; the layers of a graph are arranged for the number of stages.
        num_stages: Number of stages.
        size: Samples of a micro-batch, for a profile (default: the smallest measured size).
        num_sharing: Ranks on each device, for a profile.
        compression: Compression of messages.

    Raises:
        ProfileError: The profile does not cover the size.
    """

    def make() -> Callable[[StageRanges], StageCosts]:
        stages_of = stages_of_layers(arranged(costs, num_stages), size, num_sharing)
        return lru_cache(_MOST_COSTS)(lambda bounds: replace(stages_of(bounds), compression=compression))

    return _costs_of.get((costs,), (num_stages if costs.graph else 0, size, num_sharing, compression), make)


def fastest_cut(task: CutTask) -> Layers:
    """Return the layers of each stage with which the schedule is fastest, as far as a short search finds them.

    The search never returns a cut that is slower than the uniform cut, or than the cut that minimizes the time of the
    slowest stage. It returns a cut that exceeds the memory of a device only if it finds no cut that fits.

    Raises:
        ProfileError: There are more stages than layers, or a time is negative or not finite.
    """
    alone = task.costs((1,) * task.num_layers)
    layers, seconds = alone.stages, [layer.both_s for layer in alone.stages]
    if task.schedule.num_stages in (task.num_layers, 1):
        return first_cuts(bounds_of_cuts(task.schedule, alone, task.cluster).work, seconds)[0]
    try:
        lists = lower(task.schedule)
        bounds = bounds_of_cuts(lists, alone, task.cluster)
        starts = first_cuts(bounds.work, seconds)
        if lists.ranks_per_device > 1:
            return CutSearch(bounds, _drifting_cost(task), _MOST_PACES).fastest(starts)
        measure = _Measure(task, lists, task.costs(starts[0]))
        if measure.has_limits:
            starts = [*starts, *_small_cuts(lists, layers, starts)]
        return CutSearch(bounds, measure, measure.most).fastest(starts)
    except UNPREDICTABLE:  # whoever simulates the schedule learns why
        return first_cuts(bounds_of_cuts(task.schedule, alone, task.cluster).work, seconds)[0]


def bounds_of_cuts(lists: Schedule, alone: StageCosts, cluster: Cluster) -> CutBounds:
    """Return lower bounds of cuts: the work of ranks and channels and, with a flush, the way there and back.

    Args:
        lists: The lists; the channels are known only if the lists are lowered.
        alone: Costs of each layer as a stage of its own.
        cluster: Speeds of the devices, and links.
    """
    columns = lists.columns
    is_asynchronous = lists.ranks_per_device > 1 or runs_without_flush(lists)
    ranks = _sums_of_ranks(lists, alone.stages, cluster)
    channels, hops_s, returns_s = _sums_of_channels(lists, alone, cluster, has_way=not is_asynchronous)
    mean_s = math.fsum(sums[-1] for of_rank in ranks for _, sums in of_rank[:1]) / max(1, len(ranks)) ** 2
    busy = (of for of in channels if math.fsum(max(seconds) for _, seconds in of) > mean_s)
    work = RankWork(lists.num_stages, ranks, tuple(dict.fromkeys(busy)))
    speeds = [device.speed for device in cluster.devices]
    waits_back = not (is_asynchronous or columns.splits_backward)
    there_s, back_s, steps_s = (
        np.cumsum([0.0, *seconds])
        for seconds in (
            [layer.forward_s / max(speeds) * (not is_asynchronous) for layer in alone.stages],
            [(layer.both_s - layer.forward_s) / max(speeds) * waits_back for layer in alone.stages],
            [layer.step_s / min(speeds) for layer in alone.stages],
        )
    )
    hidden = alone.overlap / 2 if columns.num_overlaps else 0.0
    return CutBounds(work, there_s, back_s, steps_s, hops_s, returns_s, hidden)


def _sums_of_ranks(lists: Schedule, layers: Sequence[StageCost], cluster: Cluster) -> tuple[Stages, ...]:
    """Return (stage, running sums of the seconds of its layers) for each stage of each rank that has stages."""
    begins, codes, stages, *_ = lists.columns.in_lists
    sums_of: dict[object, list[float]] = {}
    ranks = []
    for device, (begin, end) in zip(lists.rank_to_device, pairwise(begins), strict=True):
        counts: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        for code, stage in zip(codes[begin:end], stages[begin:end], strict=True):
            counts[stage][code % op_cells.OVERLAPPED] += 1
        speed, of_rank = cluster.devices[device].speed, []
        for stage, count in sorted(counts.items()):
            of_work = tuple((code, count[code]) for code in _SECONDS if count[code])
            if stage < lists.num_stages and of_work:
                key = speed, of_work
                if key not in sums_of:
                    sums_of[key] = [0.0, *accumulate(_work_s(layer, of_work) / speed for layer in layers)]
                of_rank.append((stage, sums_of[key]))
        if of_rank:
            ranks.append(tuple(of_rank))
    return tuple(ranks)


def _sums_of_channels(
    lists: Schedule, alone: StageCosts, cluster: Cluster, *, has_way: bool
) -> tuple[list[Stages], Float64s, Float64s]:
    """Return times of messages by boundary layer, for `CutBounds`: sums per channel, then `hops_s` and `returns_s`.

    Args:
        lists: The lists, lowered.
        alone: Costs of each layer as a stage of its own.
        cluster: The links.
        has_way: Whether each micro-batch goes through all stages within the run.
    """
    begins, codes, stages, _, peers = lists.columns.in_lists
    payloads = {op_cells.SEND_F: Payload.ACTIVATION, op_cells.SEND_B: Payload.GRADIENT}
    sent = Counter(
        (rank, peers[cell], Message(payloads[codes[cell]], stages[cell], 0))
        for rank, (begin, end) in enumerate(pairwise(begins))
        for cell in range(begin, end)
        if codes[cell] in payloads
    )
    channels: dict[tuple[int, int], list[tuple[int, Sequence[float]]]] = {}
    layers = range(len(alone.stages))
    hops_s = {payload: np.zeros((lists.num_stages, 1 + len(layers))) for payload in payloads.values()}
    sizes_of = {
        Payload.ACTIVATION: [alone.message_bytes(Message(Payload.ACTIVATION, layer, 0)) for layer in layers],
        Payload.GRADIENT: [alone.message_bytes(Message(Payload.GRADIENT, layer + 1, 0)) for layer in layers],
    }
    for (rank, peer, message), num_sent in sorted(sent.items(), key=lambda item: item[0][2].origin):
        link = cluster.link(lists.rank_to_device[rank], lists.rank_to_device[peer])
        stage, sizes = message.origin, sizes_of[message.payload]
        seconds = (0.0, *(num_sent * link.occupied_s(size) for size in sizes))
        channels.setdefault((rank, peer), []).append((stage, seconds))
        if has_way and len(lists.replicas(stage)) == 1:
            hops_s[message.payload][stage] = 0.0, *(link.transfer_s(size) for size in sizes)
    return [*map(tuple, channels.values())], hops_s[Payload.ACTIVATION], hops_s[Payload.GRADIENT]


_SECONDS = {
    op_cells.F: "forward_s",
    op_cells.B: "backward_s",
    op_cells.I: "backward_input_s",
    op_cells.W: "backward_weight_s",
    op_cells.R: "recompute_s",
    op_cells.LATE_R: "recompute_s",
    op_cells.STEP: "step_s",
}
"""The seconds of an op, by its code."""


def _work_s(layer: StageCost, counts: Iterable[tuple[int, int]]) -> float:
    """Return the seconds that a layer adds to a stage, given (code, count) of the stage's ops."""
    return math.fsum(count * (layer.said(_SECONDS[code]) or 0.0) for code, count in counts)


def _small_cuts(lists: Schedule, layers: Sequence[StageCost], starts: Sequence[Layers]) -> list[Layers]:
    """Return cuts that balance the bytes of the ranks: weights, states, and as many activations as are in flight."""
    columns, most = lists.columns, defaultdict[tuple[int, int], int](int)
    begins, codes, stages, *_ = columns.in_lists
    for rank, (begin, end) in enumerate(pairwise(begins)):
        held: defaultdict[int, int] = defaultdict(int)
        for code, stage in zip(codes[begin:end], stages[begin:end], strict=True):
            phase = code % op_cells.OVERLAPPED
            if phase in (op_cells.F, op_cells.B, op_cells.W):
                held[stage] += 1 if phase == op_cells.F else -1
                most[rank, stage] = max(most[rank, stage], held[stage])
    ranks: list[list[tuple[int, list[float]]]] = [[] for _ in range(columns.num_ranks)]
    for (rank, stage), count in sorted(most.items()):
        held_bytes = (always + count * for_microbatch for always, for_microbatch in map(flushed_bytes, layers))
        ranks[rank].append((stage, [0.0, *accumulate(map(float, held_bytes))]))
    work = RankWork(lists.num_stages, tuple(tuple(stages) for stages in ranks if stages))
    return [cut for cut in (balanced_over_ranks(work, start) for start in starts) if cut not in starts]


def _drifting_cost(task: CutTask) -> Callable[[Layers], tuple[float, ...]]:
    """Return the cost function for pipelines that drift apart: their pace, or infinity if it is unknown."""

    def cost(layers: Layers) -> tuple[float, ...]:
        scenario = drifting_scenario(Scenario(task.schedule, task.costs(layers), task.cluster, task.network))
        answer = predict_drifting(scenario) if isinstance(scenario, Scenario) else scenario
        return 0, answer.seconds if isinstance(answer, Estimate) else math.inf

    return cost


@final
class _Measure:
    """The cost of cuts: the bytes beyond the memory of the devices, added up as powers, and the seconds."""

    def __init__(self, task: CutTask, lists: Schedule, costs: StageCosts) -> None:
        require_simulable(lists, costs, task.cluster, task.network, 0.0)
        self._task, self._lists = task, lists
        has_hand_over = task.cluster.has_hand_over
        self._program = _programs.get(
            (lists,),
            (task.network, has_hand_over),
            lambda: compile_lists(lists, task.network, has_hand_over=has_hand_over),
        )
        limits = {device: task.cluster.devices[device].memory_bytes for device in lists.rank_to_device}
        self._limits = {device: limit for device, limit in limits.items() if limit is not None}
        self.has_limits = bool(self._limits) and costs.has_bytes
        self._least_s = math.inf  # of a cut that fits
        self._runs = _runs.get((task.schedule, task.longer), None, lambda: _unflushed_runs(task.schedule, task.longer))

    @property
    def most(self) -> int:
        """Most cuts to simulate."""
        if self._runs is not None:
            return max(2, min(_MOST_CUTS, _MOST_CELLS // len(self._lists.columns.codes)))
        return max(4, min(_MOST_CUTS, _MOST_STEPS // len(self._program.kinds)))

    def __call__(self, layers: Layers) -> tuple[float, ...]:
        """Return (bytes over memory, seconds, makespan [s]); the bytes are infinite if a faster cut is known to fit."""
        task, program = self._task, self._program
        costs = task.costs(layers)
        times_s = LoadedProgram(program, costs, task.cluster, task.network).times()
        seconds = makespan_s = program.makespan_s(times_s)
        if self._runs is not None:
            scenario = Scenario(self._lists, costs, task.cluster, task.network)
            answer = self._runs.predict(scenario, program.timeline(times_s))
            seconds = math.inf if isinstance(answer, Inexact) else answer.seconds
        if not self.has_limits:
            return 0, seconds, makespan_s
        if seconds > self._least_s:
            return math.inf, seconds, makespan_s
        peaks = peak_bytes(program.timeline(times_s), costs, self._lists, buffers=task.buffers)
        excesses = (max(0, peaks.get(device, 0) - limit) for device, limit in self._limits.items())
        over_bytes = math.fsum(float(excess) ** _EXCESS_POWER for excess in excesses) ** (1 / _EXCESS_POWER)
        if not over_bytes:
            self._least_s = min(self._least_s, seconds)
        return over_bytes, seconds, makespan_s


def _unflushed_runs(schedule: Schedule, longer: Callable[[int], Schedule] | None) -> UnflushedRuns | None:
    """Return the runs of a schedule without a flush, whose pace counts; None where the makespan does."""
    if longer is None and not runs_without_flush(schedule):
        return None
    try:
        return UnflushedRuns(lower(schedule), longer)
    except ScheduleError:  # lists that do not repeat have no pace
        return None
