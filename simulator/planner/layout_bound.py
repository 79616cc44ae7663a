"""The cuts of a layout into stages, and lower bounds of its seconds and bytes, from the costs of each kind of layer.

    rank 0   F0 .  .  .  .  .  .  B0          A  ahead: F of the stages before, and B of them, outside
    rank k      F0 F1 .  .  B0 F2 B1 .. Step  R  rest: F and B of the later stages, while k waits or works
    last           F0 B0 F1 B1 ..

    a rank     is busy with all its work, between the way of the first micro-batch to it and of the last one from it
    1F1B       starts at most p - k forwards on rank k before its first backward, and ends with as many backwards: the
               way through the later ranks takes longer by R less that work, twice
    bytes      weights, states, the activations that the lists hold at once, and the peak inside a backward

Only the first and the last ranks are bounded: they have the most activations, the embedding and the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heapreplace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from pipesched.profiles.costs import StageCost
from pipesched.profiles.inside_stage import ModelShape
from pipesched.profiles.partitioning import uniform_partition
from pipesched.schedules.builders import build_generated
from pipesched.schedules.columns import op_cells
from pipesched.simulator.planner.layouts import Form
from pipesched.simulator.planner.stage_layout import StageLayout, layout_of

_LAYER_SHARES = 10
"""Parts of a block's seconds to which embedding and head are rounded in a cut."""


class Kinds(NamedTuple):
    """A number for each kind of layer."""

    embedding: float
    block: float
    expert_block: float
    head: float

    def times(self, other: Kinds) -> float:
        """Return the sum over the kinds of this number times the other one."""
        return self[0] * other[0] + self[1] * other[1] + self[2] * other[2] + self[3] * other[3]


@dataclass(frozen=True, slots=True)
class KindCosts:
    """The costs of one layer of each kind, for a micro-batch.

    Attributes:
        forward_s: Seconds of F.
        backward_s: Seconds of B, or of I and W together.
        input_s: Seconds of I, whose gradient is sent before W.
        both_s: Seconds of F and the whole backward.
        saved_bytes: Bytes kept for the backward.
        working_bytes: Peak memory of the backward besides its inputs.
    """

    forward_s: Kinds
    backward_s: Kinds
    input_s: Kinds
    both_s: Kinds
    saved_bytes: Kinds
    working_bytes: Kinds

    @classmethod
    def of(cls, costs: Sequence[StageCost]) -> KindCosts:
        """Return the costs of the layers of each kind."""
        return cls(
            Kinds(*(cost.forward_s for cost in costs)),
            Kinds(*(cost.both_s - cost.forward_s for cost in costs)),
            Kinds(*(cost.backward_input_s or 0.0 for cost in costs)),
            Kinds(*(cost.both_s for cost in costs)),
            Kinds(*(cost.saved_bytes for cost in costs)),
            Kinds(*(cost.working_bytes for cost in costs)),
        )


@dataclass(frozen=True, slots=True)
class KindStates:
    """The training state of one layer of each kind.

    Attributes:
        held_bytes: Bytes of weights, gradients and optimizer states.
        step_s: Seconds of the step with its exchanges; no micro-batch makes it shorter.
    """

    held_bytes: Kinds
    step_s: Kinds

    @classmethod
    def of(cls, costs: Sequence[StageCost]) -> KindStates:
        """Return the states of the layers of each kind."""
        return cls(
            Kinds(*(cost.weight_bytes + cost.optimizer_bytes for cost in costs)),
            Kinds(*(cost.step_s for cost in costs)),
        )


class RankShare(NamedTuple):
    """The layers of a rank, by kind.

    Attributes:
        rank: The rank.
        layers: All layers of its stages.
        ahead: Layers of all stages before its first stage.
        rest: Layers of all stages behind its last stage.
        fewest: For each kind, the fewest layers in any of its stages.
    """

    rank: int
    layers: Kinds
    ahead: Kinds
    rest: Kinds
    fewest: Kinds


@dataclass(frozen=True, slots=True)
class StageCut:
    """A cut of the layers into stages.

    Attributes:
        partition: Layers of each stage.
        shares: Layers of the first rank, of the last one, and of their neighbours.
    """

    partition: tuple[int, ...]
    shares: tuple[RankShare, ...]


def cuts_of(shape: ModelShape, form: Form, costs: KindCosts, *, is_uniform: bool = False) -> tuple[StageCut, ...]:
    """Return the cuts that are tried: ranks of equal seconds, and stages of equal numbers of blocks or layers.

    Args:
        shape: The model.
        form: The schedule.
        costs: The costs of the layers.
        is_uniform: Whether stages of equal numbers of layers, embedding and head included, are the only cut.
    """
    both, numbers = costs.both_s, layers_of(shape)
    mean_s = (both.block * numbers.block + both.expert_block * numbers.expert_block) / shape.layers
    ends = round(both.embedding / mean_s * _LAYER_SHARES), round(both.head / mean_s * _LAYER_SHARES)
    return _cuts(shape, form, None if is_uniform else ends)


@lru_cache(maxsize=16)
def layers_of(shape: ModelShape) -> Kinds:
    """Return the number of layers of each kind."""
    num_sparse = sum(map(shape.has_experts, range(shape.layers)))
    return Kinds(1, shape.layers - num_sparse, num_sparse, 1)


@lru_cache(maxsize=4096)
def _cuts(shape: ModelShape, form: Form, ends: tuple[int, int] | None) -> tuple[StageCut, ...]:
    """Return the cuts for the work of embedding and head, or the cut into stages of equal numbers of layers."""
    layout = _layout(form)
    if ends is None:
        return (_cut(shape, layout, _uniform(shape.layers + 2 + shape.predicted_tokens, layout.num_stages)),)
    sizes = dict.fromkeys((_balanced(shape.layers, layout, ends), _even(shape.layers, layout.num_stages)))
    return tuple(_cut(shape, layout, (*of[:-1], of[-1] + shape.predicted_tokens)) for of in sizes)


@lru_cache(maxsize=512)
def _layout(form: Form) -> StageLayout:
    return layout_of(form.setting)


def _balanced(num_blocks: int, layout: StageLayout, ends: tuple[int, int]) -> tuple[int, ...]:
    """Return the layers of each stage, each block given to the rank with the least work so far.

    Args:
        num_blocks: Number of equal blocks.
        layout: The stages of each rank.
        ends: Work of the embedding and of the head, in parts of a block's.
    """
    num_stages = layout.num_stages
    sizes = [1] * num_stages
    if num_stages == 1:
        return (num_blocks + 2,)
    work = [sum(ends[0] if stage == 0 else ends[1] if stage == num_stages - 1 else _LAYER_SHARES for stage in stages)
            for stages in layout.stages]  # fmt: skip
    waiting = [(of_rank, -rank) for rank, of_rank in enumerate(work)]  # of equal ranks a later one, which holds less
    heapify(waiting)
    for _ in range(num_blocks + 2 - num_stages):
        of_rank, rank = waiting[0]
        stage = min(reversed(layout.stages[-rank]), key=sizes.__getitem__)
        sizes[stage] += 1
        heapreplace(waiting, (of_rank + _LAYER_SHARES, rank))
    return tuple(sizes)


def _even(num_blocks: int, num_stages: int) -> tuple[int, ...]:
    """Return stages with equal numbers of blocks, or else of layers; embedding and head are layers."""
    size, left = divmod(num_blocks, num_stages)
    if left:
        return _uniform(num_blocks + 2, num_stages)
    sizes = [size] * num_stages
    sizes[0] += 1
    sizes[-1] += 1
    return tuple(sizes)


def _uniform(num_layers: int, num_stages: int) -> tuple[int, ...]:
    return tuple(last - first for first, last in uniform_partition(num_layers, num_stages))


def _cut(shape: ModelShape, layout: StageLayout, partition: tuple[int, ...]) -> StageCut:
    kinds = [(1, 0, 0, 0)]
    kinds += [(0, 0, 1, 0) if shape.has_experts(block) else (0, 1, 0, 0) for block in range(shape.layers)]
    kinds += [(0, 0, 0, 0)] * shape.predicted_tokens  # they belong to the head
    before = np.cumsum([(0, 0, 0, 0), *kinds, (0, 0, 0, 1)], axis=0)
    bounds = [*pairwise(accumulate(partition, initial=0))]
    num_ranks = len(layout.stages)
    shares = []
    for rank in sorted({0, min(1, num_ranks - 1), max(0, num_ranks - 2), num_ranks - 1}):
        stages = layout.stages[rank]
        of_stages = np.array([before[bounds[stage][1]] - before[bounds[stage][0]] for stage in stages])
        ahead, behind = before[bounds[min(stages)][0]], before[-1] - before[bounds[max(stages)][1]]
        counts = (of_stages.sum(axis=0), ahead, behind, of_stages.min(axis=0))
        shares.append(RankShare(rank, *(Kinds(*map(int, count)) for count in counts)))
    return StageCut(partition, tuple(shares))


def least_s(form: Form, cut: StageCut, num_microbatches: int, costs: KindCosts, states: KindStates) -> float:
    """Return a lower bound of the seconds of a step of one copy."""
    layout, seconds, first_step_s = _layout(form), 0.0, cut.shares[0].layers.times(states.step_s)
    back_s = costs.input_s if layout.splits else costs.backward_s
    for rank, layers, ahead, rest, _ in cut.shares:
        busy_s, behind_s = num_microbatches * layers.times(costs.both_s), ahead.times(back_s)
        until_gone_s = busy_s
        if layout.splits:
            until_gone_s -= num_microbatches * layers.times(costs.backward_s) - num_microbatches * layers.times(back_s)
        if layout.goes_round and num_microbatches > form.num_ranks - rank:
            way_s, others = rest.times(costs.forward_s) + rest.times(back_s), form.num_ranks - rank - 1
            waits_s = max(0.0, way_s - others * layers.times(costs.forward_s))
            busy_s, until_gone_s = busy_s + waits_s, until_gone_s + waits_s
            if not layout.splits:
                until_gone_s += max(0.0, way_s - others * layers.times(costs.backward_s))
                busy_s = until_gone_s
        end_s = max(busy_s + layers.times(states.step_s), until_gone_s + behind_s + first_step_s)
        seconds = max(seconds, ahead.times(costs.forward_s) + end_s)
    return seconds


def least_bytes(form: Form, cut: StageCut, num_microbatches: int, costs: KindCosts, states: KindStates) -> float:
    """Return a lower bound of the peak memory of the fullest GPU."""
    most = 0.0
    held = _held_at_once(form, min(num_microbatches, 2 * form.num_ranks))
    for rank, layers, _, _, fewest in cut.shares:
        saved = held[rank] * fewest.times(costs.saved_bytes)
        present = [of_kind for count, of_kind in zip(fewest, costs.working_bytes, strict=True) if count]
        working = max(present, default=0.0)
        most = max(most, layers.times(states.held_bytes) + saved + working)
    return most


@lru_cache(maxsize=4096)
def _held_at_once(form: Form, num_microbatches: int) -> tuple[int, ...]:
    """Return, for each rank, the most forwards whose backward has not begun; 1 if the schedule has Overlaps."""
    lists = build_generated(form.schedule, form.num_ranks, num_microbatches, form.num_chunks).held()
    columns = lists.columns
    if columns.num_overlaps:
        return (1,) * form.num_ranks
    begun, over = columns.codes == op_cells.F, (columns.codes == op_cells.B) | (columns.codes == op_cells.I)
    changes = begun.astype(np.int64) - over
    return tuple(int(np.cumsum(changes[first:last]).max()) for first, last in pairwise(columns.begins.tolist()))
