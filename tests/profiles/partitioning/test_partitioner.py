"""Profiles cut for the devices of a cluster."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster, Device, Link, flat, of_nodes
from pipesched.profiles.costs import StageCost
from pipesched.profiles.partitioning import Level, balanced_partition, cheapest_partition
from pipesched.profiles.partitioning.partitioner import (
    by_memory,
    by_replicas,
    by_time,
    flushed_bytes,
    levels,
    over_memory,
    stashed_bytes,
)
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import memory, peak_memory
from tests.profiles.hand_profiles import layer, measurement, profile
from tests.profiles.partitioning.brute_force import all_partitions

LAYERS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 50)), min_size=1, max_size=7)


def made(costs):
    """Return a profile of layers of (seconds, saved bytes, weight bytes); slow layers use more working memory."""
    return profile(
        *(
            layer(
                measurement(forward_s=seconds, backward_s=0.0, saved_bytes=saved, working_bytes=9 * int(seconds)),
                weight_bytes=weights,
            )
            for seconds, saved, weights in costs
        )
    )


def held(model, bounds):
    """Return 1F1B memory by stage: weights, gradients, Adam's state, p - s micro-batches, working memory of B."""
    stages = model.costs_of_layers(bounds, 1).stages
    return [
        2 * cost.weight_bytes + cost.optimizer_bytes + (len(bounds) - s) * cost.saved_bytes + cost.working_bytes
        for s, cost in enumerate(stages)
    ]


@given(LAYERS, st.data())
def test_no_partition_holds_less_on_its_fullest_device(costs, data):
    num_stages = data.draw(st.integers(1, len(costs)))
    model = made(costs)
    partitioned = by_memory(model, 1, flat(num_stages), num_stages)
    bounds = [(stage.first, stage.last) for stage in partitioned.stages]
    assert [stage.memory_bytes for stage in partitioned.stages] == held(model, bounds)
    assert max(held(model, bounds)) == min(max(held(model, b)) for b in all_partitions(len(costs), num_stages))


@given(LAYERS, st.data())
def test_no_partition_that_fits_is_faster_on_devices_of_their_own_speeds(costs, data):
    num_stages = data.draw(st.integers(1, len(costs)))
    devices = [
        Device(data.draw(st.sampled_from((0.5, 1.0, 2.0))), data.draw(st.one_of(st.none(), st.integers(1, 900))))
        for _ in range(num_stages)
    ]
    model = made(costs)
    slowest = [
        max(sum(c[0] for c in costs[a:b]) / device.speed for (a, b), device in zip(bounds, devices, strict=True))
        for bounds in all_partitions(len(costs), num_stages)
        if all(d.memory_bytes is None or h <= d.memory_bytes for d, h in zip(devices, held(model, bounds), strict=True))
    ]
    cluster = Cluster(tuple(devices))
    if slowest:
        partitioned = by_time(model, 1, cluster, num_stages)
        assert partitioned.slowest_s == pytest.approx(min(slowest))
        assert over_memory(partitioned, cluster) is None
    else:
        with pytest.raises(ProfileError, match=r"expected \d+ bytes on each for"):
            by_time(model, 1, cluster, num_stages)


def test_the_memory_of_a_stage_is_what_1f1b_is_predicted_to_hold_less_buffers():
    model = made([(2, 30, 10), (2, 10, 50), (3, 50, 20), (1, 80, 10), (2, 10, 40)])
    partitioned = by_memory(model, 1, flat(3), 3)
    bounds = [(stage.first, stage.last) for stage in partitioned.stages]
    costs = model.costs_of_layers(bounds, 1)
    silent = replace(costs, stages=tuple(replace(cost, output_bytes=0) for cost in costs.stages))
    schedule = build("1f1b", 3, 8)
    peaks = peak_memory(memory(simulate_lists(schedule, silent), silent, lower(schedule)))
    assert [peaks[device].total_bytes for device in range(3)] == [stage.memory_bytes for stage in partitioned.stages]


def test_several_stages_of_a_device_take_turns():
    model = made([(seconds, 0, 0) for seconds in (4, 1, 1, 2, 3, 1, 2, 2)])
    cluster = Cluster((Device(), Device(speed=0.5)), intra=Link(0.5, 10.0))
    partitioned = by_time(model, 1, cluster, 2, 2)
    slowest = min(
        max(sum((4, 1, 1, 2, 3, 1, 2, 2)[a:b]) / (1.0, 0.5)[s % 2] for s, (a, b) in enumerate(bounds))
        for bounds in all_partitions(8, 4)
    )
    assert max(stage.compute_s for stage in partitioned.stages) == slowest
    assert partitioned.slowest_s == max(sum(s.compute_s for s in partitioned.stages[d::2]) for d in (0, 1))
    assert [stage.transfer_s for stage in partitioned.stages] == [0.0] + [2 * (0.5 + 10 / 10.0)] * 3


def test_a_gradient_smaller_than_its_activation_takes_its_own_transfer():
    model = made([(1, 0, 0)] * 2)
    first = replace(model.layers[0].measurements[0], output_gradient_bytes=4)
    model = replace(model, layers=(replace(model.layers[0], measurements=(first,)), model.layers[1]))
    timed = by_time(model, 1, Cluster((Device(),) * 2, Link(0.5, 10.0)), 2)
    assert timed.stages[1].transfer_s == (0.5 + 10 / 10) + (0.5 + 4 / 10)
    replicated = by_replicas(model, 1, Cluster((Device(),) * 2, Link(0.0, 10.0)), 2, straight=True)
    assert replicated.stages[1].transfer_s == pytest.approx((10 + 4) / 10)


def test_replicas_are_planned_on_the_levels_of_the_cluster():
    node = Cluster((Device(),) * 4, Link(0.0, 8.0), Link(0.0, 2.0))
    two = of_nodes(node, 2)
    assert levels(two, 8) == (Level(4, 8.0), Level(2, 2.0))
    assert levels(two, 3) == (Level(3, 8.0),)
    assert levels(of_nodes(replace(node, devices=(Device(),)), 3), 3) == (Level(3, 2.0),)
    assert levels(two, 1) == (Level(1, 8.0),)
    partitioned = by_replicas(made([(8, 0, 0), (4, 0, 0)]), 1, flat(3), 3)
    assert (partitioned.partition, partitioned.replicas, partitioned.slowest_s) == ("2", "3", 4.0)
    straight = by_replicas(made([(8, 5, 1), (4, 5, 1)]), 1, flat(2), 2, straight=True)
    assert (straight.partition, straight.replicas, straight.slowest_s) == ("1,1", "1:1", 8.0)
    assert [stage.memory_bytes for stage in straight.stages] == [72 + 16 + 2 * (1 + 15), 36 + 16 + (1 + 15)]


def test_nodes_of_unequal_sizes_are_refused_where_stages_are_replicated():
    with pytest.raises(ProfileError, match="nodes of 2, 1 devices"):
        levels(of_nodes(flat(2), 2), 3)


def test_replicas_are_as_slow_and_as_small_as_the_least_of_them():
    """Six and three seconds; devices 0 and 1 have speed 2 and 1, so that as two replicas they work at 2."""
    model = made([(6, 0, 0), (3, 0, 0)])
    cluster = Cluster((Device(speed=2.0), Device(speed=1.0), Device(speed=1.0)))
    partitioned = by_replicas(model, 1, cluster, 3)
    assert [(stage.first, stage.last, stage.devices, stage.compute_s) for stage in partitioned.stages] == [
        (0, 2, (0, 1, 2), 3.0)
    ]
    uneven = by_replicas(made([(6, 0, 0), (3, 0, 0)]), 1, Cluster((Device(speed=3.0), Device())), 2)
    assert [(stage.devices, stage.compute_s) for stage in uneven.stages] == [((0,), 2.0), ((1,), 3.0)]


def test_devices_are_handed_out_node_by_node_however_they_are_numbered():
    """Two nodes, dealt out by turns: gradients are averaged inside a node, which is where links are fast."""
    devices = tuple(Device(node=device % 2) for device in range(4))
    cluster = Cluster(devices, Link(0.0, 1e9), Link(0.0, 1.0))
    partitioned = by_replicas(made([(8, 0, 90), (8, 0, 90)]), 1, cluster, 4)
    assert [stage.devices for stage in partitioned.stages] == [(0, 2), (1, 3)]


@pytest.mark.parametrize("replicas", ["1:1:1", "2:1", "1:2", "3:1", "2:2:1"])
def test_the_memory_of_a_replica_bounds_what_1f1b_rr_is_predicted_to_hold_less_buffers(replicas):
    """By the activations of one micro-batch at most: those of the backward that a Step follows are gone by then."""
    counts = tuple(map(int, replicas.split(":")))
    model = made([(2, 30, 10), (2, 10, 50), (3, 50, 20)][: len(counts)])
    costs = model.costs_of_layers([(stage, stage + 1) for stage in range(len(counts))], 1)
    silent = replace(costs, stages=tuple(replace(cost, output_bytes=0) for cost in costs.stages))
    schedule = build("1f1b_rr", sum(counts), 36, replicas=counts)
    peaks = peak_memory(memory(simulate_lists(schedule, silent), silent, lower(schedule)))
    rank = 0
    for stage, count in enumerate(counts):
        always, per_microbatch = stashed_bytes(silent.stages[stage])
        bound = always + -(-sum(counts[stage:]) // count) * per_microbatch
        for replica in range(rank, rank + count):
            assert bound - silent.stages[stage].saved_bytes <= peaks[replica].total_bytes <= bound
        rank += count


@pytest.mark.parametrize(("num_devices", "num_chunks"), [(1, 2), (2, 2), (3, 2), (2, 3)])
def test_the_memory_of_several_stages_is_what_interleaved_1f1b_is_predicted_to_hold(num_devices, num_chunks):
    model = made([(2, 30, 10), (2, 10, 50), (3, 50, 20), (1, 80, 10), (2, 10, 40), (1, 5, 5)])
    partitioned = by_time(model, 1, flat(num_devices), num_devices, num_chunks)
    costs = model.costs_of_layers([(stage.first, stage.last) for stage in partitioned.stages], 1)
    silent = replace(costs, stages=tuple(replace(cost, output_bytes=0) for cost in costs.stages))
    schedule = build("interleaved", num_devices, 6 * num_devices, num_chunks)
    peaks = peak_memory(memory(simulate_lists(schedule, silent), silent, lower(schedule)))
    held = [peaks[device].total_bytes for device in range(num_devices)]
    assert [stage.memory_bytes for stage in partitioned.stages] == held * num_chunks
    device, limit = held.index(max(held)), max(held) - 1
    assert over_memory(partitioned, flat(num_devices)) is None
    assert over_memory(partitioned, Cluster((Device(memory_bytes=limit),) * num_devices)) == (device, max(held), limit)


def test_more_stages_than_layers_are_refused_with_the_nearest_number():
    for cut in (by_time, by_memory):
        with pytest.raises(ProfileError, match="expected 1 to 2 stages"):
            cut(made([(1, 1, 1)] * 2), 1, flat(3), 3)


def test_speeds_must_be_one_above_0_for_each_stage():
    assert balanced_partition([1.0, 1.0, 1.0], 2, [1.0, 2.0]) == ((0, 1), (1, 3))
    for speeds in ([1.0], [1.0, 0.0], [1.0, float("nan")]):
        with pytest.raises(ProfileError, match="speeds above 0, one per stage"):
            balanced_partition([1.0, 1.0], 2, speeds)


def test_a_partition_without_a_possible_stage_is_refused():
    with pytest.raises(ProfileError, match="got no cut of 3 layers into 2 stages"):
        cheapest_partition(lambda stage, first, last: float("inf"), 3, 2)


@given(LAYERS, st.data())
def test_the_bound_is_the_work_of_the_busiest_device_on_all_its_stages(costs, data):
    num_devices = data.draw(st.integers(1, len(costs)))
    num_chunks = data.draw(st.integers(1, len(costs) // num_devices))
    speeds = [data.draw(st.sampled_from((0.5, 1.0, 2.0))) for _ in range(num_devices)]
    model = made(costs)
    partitioned = by_time(model, 1, Cluster(tuple(map(Device, speeds))), num_devices, num_chunks)
    busy_s = [0.0] * num_devices
    for stage in partitioned.stages:
        busy_s[stage.devices[0]] += sum(cost[0] for cost in costs[stage.first : stage.last])
    assert partitioned.slowest_s == pytest.approx(max(b / speed for b, speed in zip(busy_s, speeds, strict=True)))


def test_gradients_with_bytes_of_their_own_count_as_such():
    cost = StageCost(1.0, weight_bytes=10, optimizer_bytes=5, gradient_bytes=100, saved_bytes=3)
    assert (flushed_bytes(cost), stashed_bytes(cost)) == ((115, 3), (105, 13))
