"""The default cut of layers: the right times of known cases, and all cuts under an event loop of its own."""

import random
from collections import defaultdict
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

import pipesched
from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.profiles.costs import LayerCosts, StageCost
from pipesched.schedules import ScheduleTraits
from pipesched.schedules.builders import build
from pipesched.schedules.ops import Phase
from pipesched.simulator.memory import peak_memory
from pipesched.workflows.measuring import profile_of_layers

EQUAL = StageCost(0.010, 0.020)
CASES = ("1f1b", "gpipe", "interleaved", "looped_bfs", "zbv", "zb_h1", "v_half", "interleaved_zb")


def makespan_s(schedule, stages, bandwidth=float("inf")):
    """Seconds of lists, each channel a link of its own, by a loop that knows nothing of the simulator."""
    seconds = {
        Phase.FORWARD: "forward_s", Phase.BACKWARD: "backward_s",
        Phase.BACKWARD_INPUT: "backward_input_s", Phase.BACKWARD_WEIGHT: "backward_weight_s",
    }  # fmt: skip
    last, at, free_s = schedule.num_stages - 1, [0] * schedule.num_ranks, [0.0] * schedule.num_ranks
    over_s, arrived_s = {}, defaultdict(float)
    rows = [[part for op in row for part in (getattr(op, "first", op), getattr(op, "second", None)) if part]
            for row in schedule.ops]  # fmt: skip
    rows = [[op for op in row if hasattr(op, "phase")] for row in rows]
    rank_of, link_free_s = {op.stage: rank for rank, row in enumerate(rows) for op in row}, defaultdict(float)
    while any(index < len(row) for index, row in zip(at, rows, strict=True)):
        for rank, row in enumerate(rows):
            while at[rank] < len(row):
                op = row[at[rank]]
                back = "F" if op.phase is Phase.FORWARD else "W" if op.phase is Phase.BACKWARD_WEIGHT else "B"
                needs = {
                    "F": [("F", op.stage - 1)] if op.stage else [],
                    "B": [("F", op.stage), *([("B", op.stage + 1)] if op.stage < last else [])],
                    "W": [("B", op.stage)],
                }[back]
                if any((kind, stage, op.microbatch) not in over_s for kind, stage in needs):
                    break
                needed_s = [over_s[kind, stage, op.microbatch] for kind, stage in needs]
                ready_s = max([free_s[rank], arrived_s[back, op.stage, op.microbatch], *needed_s])
                free_s[rank] = ready_s + getattr(stages[op.stage], seconds[op.phase])
                over_s[back, op.stage, op.microbatch] = free_s[rank]
                at[rank] += 1
                to = op.stage + {"F": 1, "B": -1, "W": 0}[back]
                if 0 <= to <= last and rank_of[to] != rank:
                    bytes_sent = stages[min(to, op.stage)].output_bytes
                    there_s = max(free_s[rank], link_free_s[rank, rank_of[to]]) + bytes_sent / bandwidth
                    link_free_s[rank, rank_of[to]] = arrived_s[back, to, op.microbatch] = there_s
    return max(free_s)


def all_cuts(num_layers, num_stages):
    for ends in combinations(range(1, num_layers), num_stages - 1):
        yield tuple(pairwise((0, *ends, num_layers)))


@pytest.mark.parametrize(
    ("schedule", "num_layers", "counts", "right_s"),
    [
        ("interleaved", 10, (4, 8, 2), 0.780),
        ("1f1b", 10, (4, 8, None), 0.870),
        ("interleaved", 6, (2, 8, 2), 0.760),
        ("1f1b", 42, (16, 32, None), 3.870),
        ("1f1b", 7, (2, 8, None), 1.020),
    ],
)
def test_equal_layers_that_do_not_divide_evenly_take_the_best_time(schedule, num_layers, counts, right_s):
    num_ranks, num_microbatches, num_chunks = counts
    lists = pipesched.build(schedule, num_ranks, num_microbatches, num_chunks)
    result = pipesched.simulate(lists, LayerCosts((EQUAL,) * num_layers))
    assert result.makespan_s == pytest.approx(right_s, rel=1e-9)


def test_interleaved_is_compared_with_1f1b_at_the_best_cut_of_each():
    rows = pipesched.compare(["1f1b", "interleaved"], LayerCosts((EQUAL,) * 10), num_ranks=4, num_microbatches=8)
    assert rows["interleaved"].summary.makespan_s < rows["1f1b"].summary.makespan_s
    swept = pipesched.sweep(["1f1b", "interleaved"], LayerCosts((EQUAL,) * 10), num_ranks=4, num_microbatches=8)
    assert swept.to_frame().schedule.tolist() == ["interleaved", "1f1b"]


@pytest.mark.parametrize("name", CASES)
def test_the_cut_is_within_half_a_percent_of_the_best_of_all_cuts(name):
    for seed in range(2):
        draw = random.Random(f"{name} {seed}")
        num_ranks = draw.choice([2, 3])
        num_microbatches = 2 * num_ranks * draw.choice([1, 2])
        chunks = 2 if name in ("interleaved", "looped_bfs", "interleaved_zb") else None
        schedule = build(name, num_ranks, num_microbatches, chunks)
        layers = []
        for _ in range(schedule.num_stages + 3):
            forward_s, input_s, weight_s = (draw.uniform(0.5, 3) for _ in range(3))
            layers.append(StageCost(forward_s, input_s + weight_s, input_s, weight_s))
        costs = LayerCosts(tuple(layers))
        cuts = all_cuts(len(layers), schedule.num_stages)
        best_s = min(makespan_s(schedule, costs.costs_of_layers(cut).stages) for cut in cuts)
        result = pipesched.simulate(schedule, costs)
        uniform = pipesched.simulate(schedule, pipesched.Setup(costs, partition="uniform"))
        assert best_s * (1 - 1e-9) <= result.makespan_s <= best_s * 1.005
        assert result.makespan_s <= uniform.makespan_s * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_ranks"), [("looped_bfs", 4), ("v_half", 3), ("1f1b", 4)])
def test_the_cut_is_within_half_a_percent_of_the_best_of_all_cuts_over_slow_links(name, num_ranks):
    draw = random.Random(f"{name} over links")
    schedule = build(name, num_ranks, 4 * num_ranks)
    layers = []
    for _ in range(schedule.num_stages + 3):
        seconds, size = draw.uniform(0.5, 3), int(draw.uniform(0, 2000))
        layers.append(StageCost(seconds, 2 * seconds, seconds, seconds, output_bytes=size))
    costs, cluster = LayerCosts(tuple(layers)), pipesched.flat(num_ranks, Link(0.0, 1000))
    times_s = [
        pipesched.simulate(
            schedule, pipesched.Setup(costs, cluster, partition=[end - begin for begin, end in cut])
        ).makespan_s
        for cut in all_cuts(len(layers), schedule.num_stages)
    ]
    assert pipesched.simulate(schedule, pipesched.Setup(costs, cluster)).makespan_s <= min(times_s) * 1.005


SMALL, LARGE = (100, 200), (3000,)


@pytest.mark.parametrize(
    ("name", "counts", "sizes"),
    [
        ("zb_h1", (6, 18, None), SMALL + LARGE),
        ("v_half", (3, 6, None), SMALL + LARGE),
        ("1f1b", (5, 10, None), LARGE + SMALL),
        ("gpipe", (4, 4, None), SMALL + LARGE),
        ("interleaved", (3, 6, 2), SMALL + LARGE),
        ("zbv", (3, 6, None), SMALL + LARGE),
        ("looped_bfs", (2, 4, 2), SMALL + LARGE),
        ("interleaved_zb", (2, 4, 2), LARGE + SMALL),
    ],
)
def test_the_cut_is_the_best_of_all_where_messages_take_up_to_ten_times_as_long_as_work(name, counts, sizes):
    schedule = build(name, *counts)
    for slowness in (1.5, 10):
        draw = random.Random(f"{name} {slowness}")
        layers = []
        for _ in range(schedule.num_stages + 3):
            forward_s, input_s, weight_s, size = *(draw.uniform(0.5, 3) for _ in range(3)), draw.choice(sizes)
            layers.append(StageCost(forward_s, input_s + weight_s, input_s, weight_s, output_bytes=size))
        costs, bandwidth = LayerCosts(tuple(layers)), 3000 / (slowness * 3.0)
        best_s = min(
            makespan_s(schedule, costs.costs_of_layers(cut).stages, bandwidth)
            for cut in all_cuts(len(layers), schedule.num_stages)
        )
        result = pipesched.simulate(schedule, pipesched.Setup(costs, pipesched.flat(counts[0], Link(0.0, bandwidth))))
        assert best_s * (1 - 1e-9) <= result.makespan_s <= best_s * 1.005


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pipedream", "xpipe", "wpipe"])
def test_a_run_without_a_flush_has_the_best_pace_of_all_cuts_over_slow_links(name):
    draw = random.Random(f"{name} paces")
    num_stages = build(name, 3, 6).num_stages
    pairs = [(draw.uniform(0.5, 3), draw.choice(SMALL + LARGE)) for _ in range(num_stages + 3)]
    costs = LayerCosts(tuple(StageCost(f, 2 * f, f, f, output_bytes=size) for f, size in pairs))
    lists, setup = pipesched.build(name, 3, 6), pipesched.Setup(costs, pipesched.flat(3, Link(0.0, 150)))
    cuts = ([end - begin for begin, end in cut] for cut in all_cuts(len(pairs), num_stages))
    paces_s = [pipesched.simulate(lists, replace(setup, partition=cut)).steady_s_per_microbatch for cut in cuts]
    result = pipesched.simulate(lists, setup)
    assert result.steady_s_per_microbatch <= min(paces_s) * 1.005


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zbv"])
def test_a_cut_that_fits_is_taken_where_the_fastest_does_not(name):
    layer = StageCost(1.0, 2.0, 1.0, 1.0, saved_bytes=1, weight_bytes=1)
    costs = LayerCosts((*[layer] * 7, *[StageCost(0.5, 1.0, 0.5, 0.5, saved_bytes=4, weight_bytes=8)] * 3))

    def held_bytes(limit, partition=None):
        cluster = Cluster((Device(memory_bytes=limit),) * 2)
        result = pipesched.simulate(pipesched.build(name, 2, 4), pipesched.Setup(costs, cluster, partition=partition))
        return max(peak.total_bytes for peak in peak_memory(result.timeline.memory).values())

    num_stages = build(name, 2, 4).num_stages
    cuts = [",".join(str(end - begin) for begin, end in cut) for cut in all_cuts(10, num_stages)]
    least = min(held_bytes(None, cut) for cut in cuts)
    assert held_bytes(None) > least
    assert held_bytes(least) == least


@pytest.mark.parametrize(("name", "least_bytes"), [("1f1b", 168), ("interleaved", 212), ("zbv", 208)])
def test_where_no_cut_fits_no_device_needs_far_more_than_the_others(name, least_bytes):
    costs = LayerCosts((StageCost(1.0, 2.0, 1.0, 1.0, saved_bytes=10, weight_bytes=2),) * 26)
    schedule, cluster = pipesched.build(name, 4, 8), Cluster((Device(memory_bytes=100),) * 4)
    result = pipesched.simulate(schedule, pipesched.Setup(costs, cluster))
    peaks = [peak.total_bytes for peak in peak_memory(result.timeline.memory).values()]
    assert least_bytes <= max(peaks) <= 1.07 * least_bytes  # the least of all cuts that were tried with any limit


@pytest.mark.parametrize("name", ["pipedream", "spectrain", "wpipe", "xpipe"])
def test_a_run_without_a_flush_is_cut_alike_by_its_name_and_as_lists(name):
    for seed in range(3):
        draw = random.Random(seed)
        costs = LayerCosts(tuple(StageCost(f := draw.uniform(0.5, 2), 2 * f, f, f) for _ in range(9)))
        named = pipesched.simulate(pipesched.build_own(name, 3, 6), costs)
        lists = pipesched.simulate(build(name, 3, 6), costs)
        assert lists.costs == named.costs
        assert lists.steady_s_per_microbatch == pytest.approx(named.steady_s_per_microbatch, rel=1e-9)


def test_lists_of_a_user_without_a_flush_are_cut_for_their_pace():
    schedule = build("xpipe", 4, 8)
    own = schedule.made_from("mine", ScheduleTraits())
    for seed in (0, 6, 12):
        draw = random.Random(seed)
        costs = LayerCosts(tuple(StageCost(f := draw.uniform(0.5, 2), 2 * f) for _ in range(7)))
        assert pipesched.simulate(own, costs).costs == pipesched.simulate(schedule, costs).costs


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(3, 6), (4, 12)])
def test_pipelines_that_drift_apart_are_not_slower_than_with_equal_numbers_of_layers(counts):
    num_ranks, num_microbatches = counts
    for seed in range(2):
        draw = random.Random(f"{counts} {seed}")
        layers = [(draw.uniform(0.5, 3), draw.choice(SMALL + LARGE)) for _ in range(num_ranks + 2)]
        costs = LayerCosts(tuple(StageCost(f, 2 * f, output_bytes=size) for f, size in layers))
        cluster = pipesched.flat(num_ranks, Link(0.0, 500))
        lists = pipesched.build("avgpipe", num_ranks, num_microbatches)
        default = pipesched.simulate(lists, pipesched.Setup(costs, cluster))
        uniform = pipesched.simulate(lists, pipesched.Setup(costs, cluster, partition="uniform"))
        assert default.step_s <= uniform.step_s * (1 + 1e-9)


def test_a_plan_takes_the_best_cut_and_claims_no_more_than_it_knows():
    profile = profile_of_layers(LayerCosts((EQUAL,) * 10), 1).profile
    result = pipesched.plan(profile, batch_size=8, num_devices=4, depths=4, recompute="no")
    assert result.best.setting.schedule == "interleaved"
    assert result.best.seconds == pytest.approx(0.780, rel=1e-9)
    (second,) = [plan for plan in result.ranking.ranked if plan.setting.schedule == "1f1b"]
    assert second.seconds == pytest.approx(0.870, rel=1e-9)
    assert "no other can be faster" not in result.table().caption
    assert "the cuts of the plans shown come from a local search" in result.table().caption
