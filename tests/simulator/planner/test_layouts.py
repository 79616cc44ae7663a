"""The search over layouts of a transformer against a plain loop over all of them, and against known runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.profiles.costs import LayerSharding
from pipesched.profiles.inside_stage import Experts, Fabric, ModelShape, estimated_profile, message_link
from pipesched.profiles.io import load_gpu, model_shape
from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import with_step_barrier, with_tied_sum
from pipesched.simulator import Scenario
from pipesched.simulator.fast import predict_scenario
from pipesched.simulator.planner import LayoutJudge, LayoutRequest, TransformerLayout, layouts, search_plans, undivided

H100 = load_gpu("h100")
DGX = Fabric(8, Link(3.4e-6, 450e9), Link(9.6e-6, 50e9))
NODE_OF_TWO = Fabric(2, Link(3e-6, 100e9), Link(1e-5, 10e9))
SMALL = ModelShape(
    name="small", layers=6, hidden=1024, ffn=4096, heads=8, kv_heads=4, head_size=128, vocab=32000, sequence=4096
)
SPARSE = ModelShape(
    name="sparse", layers=5, hidden=512, ffn=2048, heads=8, kv_heads=8, head_size=64, vocab=8000, sequence=2048,
    experts=Experts(count=4, topk=2, ffn=1024, first_dense=1),
)  # fmt: skip


def small_request(shape: ModelShape, memory_bytes: int | None, **changes: object) -> LayoutRequest:
    fields = {
        "shape": shape, "gpu": H100, "fabric": NODE_OF_TWO, "num_gpus": 8, "memory_bytes": memory_bytes,
        "batch_size": 16, "sizes": (1, 2), "chunks": (2,), "zeros": (0, 1), "recomputes": ("none", "full"),
    }  # fmt: skip
    return LayoutRequest(**(fields | changes))  # type: ignore[arg-type]


def plain_seconds(shape: ModelShape, layout: TransformerLayout) -> tuple[float, int]:
    """Return seconds and peak bytes of a layout by the library's parts, without the planner."""
    depth, split = layout.num_ranks, layout.sharding
    profile = estimated_profile(shape, split, H100, NODE_OF_TWO, [layout.size])
    ends = [sum(layout.partition[:stage]) for stage in range(len(layout.partition) + 1)]
    costs = profile.costs_of_layers(tuple(pairwise(ends)), layout.size)
    nodes = [rank * (8 // depth) // 2 for rank in range(depth)]
    inside, between = (
        message_link(NODE_OF_TWO.intra, NODE_OF_TWO.inter, is_inside=is_inside) for is_inside in (True, False)
    )
    cluster = Cluster(tuple(Device(node=node) for node in nodes), inside, between)
    lists = with_step_barrier(build(layout.schedule, depth, layout.num_microbatches, layout.num_chunks))
    lists = lower(with_tied_sum(lists) if shape.is_tied else lists)
    estimate = predict_scenario(Scenario(lists, costs, cluster))
    return estimate.seconds, max(estimate.peak_bytes.values())


def plain_layouts(shape: ModelShape, experts: tuple[int, ...]) -> set[tuple[object, ...]]:
    """Return every split of 8 GPUs and 16 samples that divides the shape, by a loop over all numbers."""
    splits = set()
    counts = range(1, 9)
    for depth, tensor, context, data, expert in product(counts, (1, 2), (1, 2), counts, experts):
        if depth * tensor * context * data != 8 or 16 % data or expert > tensor * context * data:
            continue
        if shape.sequence // context < 2048:
            continue
        forms = [("1f1b", None)]
        if depth > 1:
            forms += [("zb_h1", None)]
            forms += [("interleaved", 2)] if 2 * depth <= shape.layers + 2 else []
        for (schedule, chunks), size, zero, how in product(forms, (1, 2), (0, 1), ("none", "full")):
            is_halved = context == 2 and size == 2
            fits_batch = (16 // data) % size == 0 and not is_halved
            if fits_batch and depth <= shape.layers + 2 and (zero == 0 or data * context > 1):
                splits.add((schedule, depth, chunks, tensor, context, expert, data, zero, size, how))
    return splits


def key(layout: TransformerLayout) -> tuple[object, ...]:
    split = layout.sharding
    return (
        layout.schedule, layout.num_ranks, layout.num_chunks, split.tensor, split.context, split.expert, split.data,
        split.zero, layout.size, split.recompute,
    )  # fmt: skip


@pytest.mark.parametrize(("shape", "experts"), [(SMALL, (1,)), (SPARSE, (1, 2, 4))])
def test_every_layout_once(shape: ModelShape, experts: tuple[int, ...]) -> None:
    splits = [*map(key, layouts(small_request(shape, None)))]
    assert len(splits) == len(set(splits))
    assert set(splits) == plain_layouts(shape, experts)


@pytest.mark.parametrize(
    ("shape", "memory_bytes", "changes"),
    [
        (SMALL, 2_500_000_000, {}),
        (SPARSE, 900_000_000, {}),
        (replace(SMALL, is_tied=True), None, {"sizes": (1,), "recomputes": ("none",)}),
        (SPARSE, 500_000_000, {"zeros": (3,)}),
    ],
    ids=["memory", "experts", "tied", "weights gathered"],
)
def test_search_agrees_with_a_plain_loop(
    shape: ModelShape, memory_bytes: int | None, changes: dict[str, object]
) -> None:
    is_hidden = "zeros" in changes
    base = LayerSharding(has_sequence=True, hides_weights=is_hidden, hides_gradients=is_hidden)
    request = small_request(shape, memory_bytes, base=base, **changes)
    judge, plain, needed_bytes = LayoutJudge(request), [], set()
    excluded = 0
    for number, layout in enumerate(layouts(request)):
        bounded, seconds = judge.first(layout, number), []
        for partition in judge.partitions(layout):
            try:
                of_cut, num_bytes = plain_seconds(shape, replace(layout, partition=partition))
            except ScheduleError:
                continue
            needed_bytes.add(num_bytes)
            if memory_bytes is None or num_bytes <= memory_bytes:
                seconds.append(of_cut)
        if seconds:
            assert bounded.cost * 16 <= min(seconds) * (1 + 1e-12), layout
            if layout.sharding.zero == 3:
                refined = judge(bounded)
                assert bounded.cost <= refined.cost <= min(seconds) / 16 * (1 + 1e-12), layout
            plain.append((min(seconds), number, layout))
        excluded += not seconds
    ranking = search_plans(request, top=5)
    assert ranking.is_complete
    best = sorted(plain, key=lambda entry: entry[:2])[:5]
    assert [outcome.seconds for outcome in ranking.ranked] == pytest.approx([entry[0] for entry in best], rel=1e-12)
    assert [key(outcome.setting) for outcome in ranking.ranked] == [key(layout) for _, _, layout in best]
    assert memory_bytes is None or excluded
    rejected = search_plans(replace(request, memory_bytes=min(needed_bytes) - 1)).rejected
    assert min(outcome.held_bytes for outcome in rejected if outcome.seconds is not None) == min(needed_bytes)


def llama_3_405b(zero: int, recompute: str) -> LayoutRequest:
    """Return the layout of the Llama 3 paper (arXiv:2407.21783, table 4): 8,192 H100, TP 8, CP 1, PP 16, DP 64."""
    return LayoutRequest(
        model_shape("llama3-405b"), H100, DGX, 8192, 80_000_000_000, 2048, depths=(16,), tensors=(8,), contexts=(1,),
        zeros=(zero,), sizes=(1,), schedules=("1f1b",), recomputes=(recompute,),
    )  # fmt: skip


def test_llama_3_405b_fits_with_sharded_states() -> None:
    ranking = search_plans(llama_3_405b(1, "full"), top=1)
    assert ranking.ranked[0].held_bytes < 50_000_000_000
    assert sorted(ranking.ranked[0].setting.partition) == [8] * 16


def test_llama_3_405b_does_not_fit_without_recomputation() -> None:
    ranking = search_plans(llama_3_405b(1, "none"), top=1)
    assert not ranking.ranked
    assert all("over memory" in (outcome.reason or "") for outcome in ranking.rejected)


def test_workers_and_limits_change_nothing() -> None:
    request = small_request(SMALL, 2_500_000_000, zeros=(1,), sizes=(1,))
    here = search_plans(request, top=3)
    assert search_plans(request, top=3, workers=2) == here


def test_numbers_that_do_not_divide() -> None:
    with pytest.raises(ProfileError, match="got no layout of small for 8 GPUs and a batch of 7 samples"):
        search_plans(small_request(SMALL, None, batch_size=7, depths=(1,), tensors=(1,), contexts=(1,)))
    with pytest.raises(ProfileError, match=r"^plan: got `tensor=3`, expected a divisor of the 8 GPUs; try `tensor=2`$"):
        search_plans(small_request(SMALL, None, tensors=(3,)))
    with pytest.raises(
        ProfileError, match="plan: got `expert=2`, expected 1, as the model has no experts; try `expert=1`"
    ):
        search_plans(small_request(SMALL, None, experts=(2,)))


def test_splits_that_do_not_divide_are_the_others():
    request = small_request(SMALL, None, batch_size=12, zeros=(0,), recomputes=("none",), sizes=(1,))
    kept = {(layout.num_ranks, layout.sharding) for layout in layouts(request)}
    left_out = {*undivided(request)}
    assert left_out
    assert not kept & left_out
    assert {split.data for _, split in left_out} == {8}
    groups = {(depth, tensor, context) for depth in (1, 2, 4, 8) for tensor in (1, 2) for context in (1, 2)}
    known = {(depth, split.tensor, split.context) for depth, split in kept | left_out}
    assert known == {group for group in groups if 8 % (group[0] * group[1] * group[2]) == 0}
