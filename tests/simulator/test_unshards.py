"""Gathers of sharded weights by Unshards: closed forms, both engines on drawn lists, and estimated profiles."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipesched
from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import LayerSharding, StageCost, StageCosts
from pipesched.profiles.inside_stage import Fabric, estimated_profile
from pipesched.profiles.io import load_gpu, model_shape
from pipesched.schedules import ScheduleError, make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.formats.op_text import parse_op_with_peer
from pipesched.schedules.lowering import lower_for_torch
from pipesched.schedules.ops import Unshard
from pipesched.simulator import NetworkOptions
from pipesched.simulator.analysis import critical_path, usage
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import simulate_arrays
from tests.properties import examples
from tests.simulator.fast.draws import random_machines
from tests.simulator.fast.timelines import assert_same_timeline
from tests.strategies import random_costs

NAMES = ("1f1b", "gpipe", "interleaved", "zb_h1", "zbv", "dualpipe_v", "hanayo")
ENGINES = pytest.mark.parametrize("simulate", [simulate_lists, simulate_arrays])


def listed(*rows):
    return make_schedule("own", 2, 1, [[parse_op_with_peer(text) for text in row.split()] for row in rows])


def stages(count, unshard_s, **changes):
    return StageCosts((StageCost(1.0, 2.0, unshard_s=unshard_s, **changes),) * count)


@ENGINES
@pytest.mark.parametrize("unshard_s", [0.25, 1.0, 4.0])
def test_gathers_of_a_rank_take_turns_beside_its_work(simulate, unshard_s):
    rows = listed("0UNSHARD 1UNSHARD 0F0 1F0 1B0 0B0 0RESHARD 1RESHARD")
    timeline = simulate(rows, stages(2, unshard_s))
    second_s = max(unshard_s + 1, 2 * unshard_s)
    assert [(span.start_s, span.end_s) for span in timeline.spans] == [
        (0, unshard_s), (unshard_s, 2 * unshard_s), (unshard_s, unshard_s + 1), (second_s, second_s + 1),
        (second_s + 1, second_s + 3), (second_s + 3, second_s + 5), *[(second_s + 5, second_s + 5)] * 2,
    ]  # fmt: skip
    assert timeline.makespan_s == second_s + 5
    (device,) = usage(timeline)
    assert device.busy_s == 6
    waits = {"warmup": unshard_s, "collective": max(0.0, unshard_s - 1)}
    assert {cause: idle_s for cause, idle_s in device.idle_by_cause_s if idle_s} == {
        cause: idle_s for cause, idle_s in waits.items() if idle_s
    }


@ENGINES
def test_a_gather_begins_behind_the_work_before_it_and_other_stages_need_not_wait(simulate):
    rows = listed("0UNSHARD 0F0 1UNSHARD 1F0 0UNSHARD 1B0 0B0")
    spans = [(span.start_s, span.end_s) for span in simulate(rows, stages(2, 3.0)).spans]
    assert spans == [(0, 3), (3, 4), (4, 7), (7, 8), (8, 11), (8, 10), (11, 13)]


@ENGINES
@pytest.mark.parametrize(("depth", "count"), [(1, 3), (2, 4), (4, 8)])
def test_pipelines_of_one_stage_per_rank_gather_once_before_they_begin(simulate, depth, count):
    lists = lower_for_torch(build("1f1b", depth, count))
    assert simulate(lists, stages(depth, 0.5)).makespan_s == 0.5 + 3 * (count + depth - 1)


@ENGINES
def test_a_second_stage_is_gathered_beside_the_first(simulate):
    lists = lower_for_torch(build("interleaved", 2, 4, 2))
    alone_s = simulate(lists, stages(4, 0.0)).makespan_s
    assert simulate(lists, stages(4, 1.0)).makespan_s == alone_s + 1.0


@examples(60)
@given(name=st.sampled_from(NAMES), seed=st.integers(0, 10**6))
def test_both_engines_agree_on_any_lists_with_gathers(name, seed):
    chance = random.Random(seed)
    try:
        lists = lower_for_torch(build(name, chance.randint(1, 4), chance.randint(1, 8)))
    except ScheduleError:  # these counts are not for this schedule
        return
    drawn = random_costs(chance, lists.num_stages)
    costs = replace(drawn, stages=tuple(replace(cost, unshard_s=chance.uniform(0, 3)) for cost in drawn.stages))
    cluster = random_machines(chance, lists.num_devices) if chance.random() < 0.7 else flat(lists.num_devices)
    network = NetworkOptions(slowdown=chance.choice([0.0, 0.5]), protocol=chance.choice(["rendezvous", "eager"]))
    expected = simulate_lists(lists, costs, cluster, network=network)
    assert_same_timeline(simulate_arrays(lists, costs, cluster, network=network), expected)
    gathers = [span for span in expected.spans if isinstance(span.op, Unshard)]
    assert gathers
    assert all(span.end_s - span.start_s == pytest.approx(costs.stages[span.op.stage].unshard_s) for span in gathers)
    path = critical_path(expected)
    assert path[0].start_s == pytest.approx(expected.start_s)
    for device in usage(expected):
        assert device.busy_s + device.idle_s == pytest.approx(expected.makespan_s)


def test_unshards_take_the_gathers_of_the_estimate_out_of_the_passes():
    split = LayerSharding(data=8, zero=3, hides_weights=True, hides_gradients=True)
    fabric = Fabric(8, Link(5e-6, 900e9), Link(1e-5, 50e9))
    profile = estimated_profile(model_shape("llama3-8b:layers=6"), split, load_gpu("b200"), fabric, [1])
    setup = pipesched.Setup(profile, flat(2, Link(1e-5, 50e9)), partition="4,4")
    lists = build("1f1b", 2, 4)
    gathered, always = (pipesched.simulate(rows, setup) for rows in (lower_for_torch(lists), lists))
    for stage, (first, last) in enumerate([(0, 4), (4, 8)]):
        layers, cost, usual = profile.layers[first:last], gathered.costs.stages[stage], always.costs.stages[stage]
        assert cost.unshard_s == pytest.approx(sum(layer.sharded.gather_s for layer in layers))
        assert cost.forward_s == pytest.approx(sum(layer.measurements[0].forward_s for layer in layers))
        assert cost.backward_s == pytest.approx(sum(layer.measurements[0].backward_s for layer in layers))
        assert (usual.unshard_s, cost.step_s) == (0.0, usual.step_s)
        assert cost.forward_s < usual.forward_s
        assert cost.weight_bytes - usual.weight_bytes == sum(layer.sharded.gathered_bytes for layer in layers)
        assert cost.gradient_bytes == sum(layer.sharded.summed_bytes for layer in layers)
    assert gathered.makespan_s < always.makespan_s
