"""The judge of layouts: a bound from the costs of a layer of each kind, then the simulation of one copy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import final

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import LayerSharding, StageCost, least_delay_s
from pipesched.profiles.inside_stage import ModelShape, estimated_profile
from pipesched.schedules import Schedule
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import with_tied_sum
from pipesched.simulator.fast import EqualPipelines
from pipesched.simulator.planner.layout_bound import (
    KindCosts,
    KindStates,
    StageCut,
    cuts_of,
    layers_of,
    least_bytes,
    least_s,
)
from pipesched.simulator.planner.layouts import Form, LayoutRequest, TransformerLayout, layouts, no_layout
from pipesched.simulator.search import UNPREDICTABLE, BoundedSetting, Outcome, Setting, over_memory_reason

_GATHERS = 3
"""Stage of ZeRO that gathers weights in each pass."""


@final
class LayoutJudge:
    """Bounds and predictions of the layouts of a request; a copy in another process recomputes them there."""

    def __init__(self, request: LayoutRequest) -> None:
        self._request = request
        self._small, self._numbers = _one_of_each_kind(request.shape), layers_of(request.shape)
        self._costs: dict[tuple[LayerSharding, int], tuple[KindCosts, ...]] = {}
        self._states: dict[LayerSharding, KindStates] = {}
        self._alike: dict[LayerSharding, LayerSharding] = {}

    def __reduce__(self) -> tuple[type[LayoutJudge], tuple[LayoutRequest]]:
        return LayoutJudge, (self._request,)

    def candidates(self) -> Iterator[TransformerLayout]:
        """Yield every layout of the request once, without a partition."""
        return layouts(self._request)

    def nothing_possible(self) -> ProfileError:
        """Return why the request has no layout."""
        return no_layout(self._request)

    def first(self, setting: Setting, number: int) -> BoundedSetting[float]:
        """Return a layout with the lower bound of its cost, or refused if by its bound no cut fits into memory.

        Args:
            setting: The layout.
            number: Its number among all layouts.
        """
        layout = _layout(setting)
        return self._bounded(layout, number, self._without_gathers(layout.sharding))

    def __call__(self, bounded: BoundedSetting[float]) -> BoundedSetting[float]:
        """Return a layout with the cost of its fastest cut that fits, or with infinite cost if no cut fits.

        A layout of ZeRO-3 first gets a second bound, which includes the exchanges in each pass.
        """
        layout = _layout(bounded.setting)
        if layout.sharding.zero == _GATHERS and not bounded.num_refined:
            return replace(self._bounded(layout, bounded.number, self._own_passes(layout.sharding)), num_refined=1)
        outcome = self.weigh(layout)
        cost = outcome.seconds / outcome.samples if outcome.fits and outcome.seconds is not None else math.inf
        return replace(bounded, cost=cost, outcome=outcome)

    def partitions(self, layout: TransformerLayout) -> tuple[tuple[int, ...], ...]:
        """Return the layers of each stage of every cut that is tried."""
        return tuple(cut.partition for _, _, cut in self._bounds(layout, self._own_passes(layout.sharding)))

    def least_bytes(self, setting: Setting) -> float:
        """Return the lower bound of the peak bytes of a layout."""
        layout = _layout(setting)
        return min(num_bytes for num_bytes, _, _ in self._bounds(layout, self._own_passes(layout.sharding)))

    def weigh(self, setting: Setting) -> Outcome:
        """Predict time and memory of the fastest cut that fits, else of the one with least memory, or a refusal."""
        layout, limit, best = _layout(setting), self._request.memory_bytes, None
        bounds = self._bounds(layout, self._own_passes(layout.sharding))
        for _, least_seconds, cut in sorted(bounds, key=lambda bound: bound[1]):
            if best is not None and best.fits and (best.seconds or 0.0) <= least_seconds:
                break
            outcome = self._wanted(replace(layout, partition=cut.partition))
            if outcome.held_bytes is not None and limit is not None and outcome.held_bytes > limit:
                over = f"a GPU holds {outcome.held_bytes} bytes of {limit}"
                outcome = replace(outcome, reason=over_memory_reason(over))
            best = outcome if best is None else min(best, outcome, key=_rank)
        return best or Outcome(layout, reason="no cut can be predicted")

    def _wanted(self, layout: TransformerLayout) -> Outcome:
        """Predict a layout with its partition, unless it is refused."""
        refusal = self._request.refusal
        reason = None if refusal is None else refusal(layout)
        return self.predicted(layout) if reason is None else Outcome(layout, reason=reason)

    def predicted(self, layout: TransformerLayout) -> Outcome:
        """Predict time and memory of a layout with its partition, whatever the memory of a GPU.

        All stages step after the last backward of any stage, because clipping needs the norm of all gradients. The
        lists are simulated with Steps that take no time, and the longest sum of the steps of a rank is added.
        """
        request = self._request
        try:
            costs = request.profile(layout.sharding, layout.size).costs_of_layers(layout.bounds, layout.size)
            lists = _lists(layout.order, costs.tied_bytes > 0)
            unstepped = replace(costs, stages=tuple(replace(stage, step_s=0.0) for stage in costs.stages))
            estimate = EqualPipelines(lists, unstepped, request.pipeline(layout.num_ranks)).together(1)
        except UNPREDICTABLE as error:
            return Outcome(layout, reason=str(error))
        peaks = tuple(num_bytes for _, num_bytes in sorted(estimate.peak_bytes.items()))
        ranks = range(layout.num_ranks)
        step_s = max(sum(costs.stages[stage].step_s for stage in lists.columns.stages_of(rank)) for rank in ranks)
        return Outcome(layout, estimate.seconds + step_s, max(peaks), device_bytes=peaks)

    def _bounded(self, layout: TransformerLayout, number: int, split: LayerSharding) -> BoundedSetting[float]:
        """Return a layout with the lower bound of its cost, given the passes of `split`."""
        limit = self._request.memory_bytes
        num_bytes = self._states_in(layout).held_bytes.times(self._numbers) / layout.num_ranks
        if limit is None or num_bytes <= limit:
            bounds = self._bounds(layout, split)
            fitting = [seconds for held_bytes, seconds, _ in bounds if limit is None or held_bytes <= limit]
            if fitting:
                return BoundedSetting(min(fitting) / layout.samples_per_step, number, layout)
            num_bytes = min(held_bytes for held_bytes, _, _ in bounds)
        reason = over_memory_reason(f"a GPU holds at least {round(num_bytes)} bytes of {limit}")
        return BoundedSetting(math.inf, number, layout, Outcome(layout, None, round(num_bytes), reason))

    def _bounds(self, layout: TransformerLayout, split: LayerSharding) -> list[tuple[float, float, StageCut]]:
        """Return least bytes and least seconds of each cut that is tried, with the passes of `split`."""
        form = Form(layout.schedule, layout.num_ranks, layout.num_chunks)
        costs, states = self._costs_of(split, layout.size), self._states_in(layout)
        count, bounds = layout.num_microbatches, []
        for cut in cuts_of(self._request.shape, form, costs[0], is_uniform=self._request.is_uniform):
            num_bytes = least_bytes(form, cut, count, costs[0], states)
            bounds.append((num_bytes, max(least_s(form, cut, count, bound, states) for bound in costs), cut))
        return bounds

    def _without_gathers(self, split: LayerSharding) -> LayerSharding:
        """Return a split like `split` whose passes exchange nothing with data copies; many splits share one result.

        Only in ZeRO-3 do passes exchange with data copies.
        """
        if split not in self._alike:
            shared = split.expert * split.expert_tensor
            fewest = shared // math.gcd(split.tensor * split.context, shared)
            self._alike[split] = replace(split, zero=0, data=fewest)
        return self._alike[split]

    def _own_passes(self, split: LayerSharding) -> LayerSharding:
        """Return a split whose passes take as long as those of `split`."""
        return split if split.zero == _GATHERS else self._without_gathers(split)

    def _costs_of(self, split: LayerSharding, size: int) -> tuple[KindCosts, ...]:
        """Return the costs of a layer of each kind for a lower bound; with ZeRO-3, two such costs.

        Each of the two is a lower bound of the layer's part of a stage. In the first, a gather slows the layer beside
        it. In the second, a pass takes as long as its gathers. Sums of gradients count as free.
        """
        if (split, size) not in self._costs:
            costs, gathers_s = self._of_kinds(split, size)
            pairs = [*zip(costs, gathers_s, (*gathers_s[:-1], 0.0), strict=True)]  # the head is gathered once
            bounds = [[_longer(cost, least_delay_s(g), least_delay_s(again)) for cost, g, again in pairs]]
            if any(gathers_s):
                idle = [replace(cost, forward_s=0.0, backward_s=0.0, backward_input_s=0.0) for cost in costs]
                bounds.append([_longer(cost, g, again) for cost, (_, g, again) in zip(idle, pairs, strict=True)])
            self._costs[split, size] = tuple(map(KindCosts.of, bounds))
        return self._costs[split, size]

    def _states_in(self, layout: TransformerLayout) -> KindStates:
        """Return the state of a layer of each kind; on one rank a tied head has the weights of the embedding."""
        states = self._states_of(layout.sharding)
        if not self._request.shape.is_tied or layout.num_ranks > 1:
            return states
        return KindStates(states.held_bytes._replace(head=0.0), states.step_s._replace(head=0.0))

    def _states_of(self, split: LayerSharding) -> KindStates:
        """Return the state of a layer of each kind; its step is that behind the longest backward, which hides most."""
        known = self._states.get(split)
        if known is None:
            longest = replace(split, recompute="full")
            size = max(self._request.sizes)
            known = self._states.get(longest) or KindStates.of(self._of_kinds(longest, size)[0])
            self._states[split] = self._states[longest] = known
        return known

    def _of_kinds(self, split: LayerSharding, size: int) -> tuple[tuple[StageCost, ...], list[float]]:
        """Return costs with whole weights, and gathers [s], of four parts of the model.

        They are the embedding, a block without experts, a block with experts, and all layers behind the blocks.
        """
        request = self._request
        profile = estimated_profile(self._small, split, request.gpu, request.fabric, [size], request.optimizer)
        blocks = range(1, 1 + self._small.layers)
        bounds = [(0, 1), *((block, block + 1) for block in blocks), (blocks[-1] + 1, len(profile.layers))]
        layers = profile.layers
        gathers_s = [sum(layer.sharded.gather_s for layer in layers[slice(*of)] if layer.sharded) for of in bounds]
        whole = replace(profile, layers=tuple(replace(layer, sharded=None) for layer in layers))
        costs = whole.costs_of_layers(bounds, size).stages
        return (costs, gathers_s) if len(blocks) == 2 else ((*costs[:2], *costs[1:]), [*gathers_s[:2], *gathers_s[1:]])


def _longer(cost: StageCost, forward_s: float, backward_s: float) -> StageCost:
    """Return the cost of a layer with longer passes."""
    assert cost.backward_s is not None, "an estimate has it"
    input_s = None if cost.backward_input_s is None else cost.backward_input_s + backward_s
    return replace(
        cost, forward_s=cost.forward_s + forward_s, backward_s=cost.backward_s + backward_s, backward_input_s=input_s
    )


@lru_cache(maxsize=16)
def _lists(order: Setting, is_tied: bool) -> Schedule:
    """Return the lowered lists of one step of one copy; raises ScheduleError if the schedule has no such counts."""
    lists = order.build()
    return lower(with_tied_sum(lists) if is_tied else lists)


def _one_of_each_kind(shape: ModelShape) -> ModelShape:
    """Return the shape with one block without experts and one with experts, if the model has experts."""
    if shape.experts is None:
        return replace(shape, layers=1)
    return replace(shape, layers=2, experts=replace(shape.experts, first_dense=1, every=1))


def _rank(outcome: Outcome) -> tuple[bool, float]:
    """Return the order of the outcomes of the cuts of a layout: fitting ones by time, then others by memory."""
    if outcome.fits:
        return False, outcome.seconds or 0.0
    return True, math.inf if outcome.held_bytes is None else outcome.held_bytes


def _layout(setting: Setting) -> TransformerLayout:
    assert isinstance(setting, TransformerLayout), "a candidate of this judge"
    return setting
