"""The array engine: SimPy is the oracle, span by span, of any lists on any machines."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import Compression, StageCost, StageCosts, uniform
from pipesched.schedules import Recv, Reduce, ScheduleError, computes, machine_code, make_schedule, needs
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.builders.avgpipe import avgpipe
from pipesched.schedules.formats.op_text import parse_op_with_peer
from pipesched.schedules.lowering import lower, lower_for_torch
from pipesched.schedules.transforms import recompute, replicate
from pipesched.simulator import USUAL_NETWORK, NetworkOptions, SimulationError
from pipesched.simulator.engine import OpSeconds, simulate_lists
from pipesched.simulator.fast import CompiledLists, compile_lists, program_times, simulate_arrays
from tests.schedules.edits import mutant, reduced_early
from tests.simulator.fast.timelines import AskedSimPyError, assert_same_timeline, without_simpy
from tests.strategies import random_cluster, random_costs

ERRORS = (ScheduleError, SimulationError, ProfileError)


def received_late(schedule):
    """Post each Recv only right before the op that needs its message, so that it holds its transfer back."""
    rows = []
    for row in schedule.ops:
        recvs = {op.message: op for op in row if isinstance(op, Recv)}
        late = []
        for op in row:
            wanted = [m for part in computes(op) for m in needs(part, schedule.num_stages) if m in recvs]
            late += [recvs.pop(message) for message in wanted]
            late += [] if isinstance(op, Recv) else [op]
        rows.append(late)
    return make_schedule(schedule.name, schedule.num_stages, schedule.num_microbatches, rows)


def random_lists(chance):
    """Draw lists of the catalogue, of several pipelines, of replicas, or changed ones; some share devices."""
    while True:
        try:
            kind = chance.choice(["mutant", "pipelines", "replicas", "recomputed", "torch", "late", "early", "usual"])
            if kind == "mutant":
                return mutant(chance.randint(0, 10**6))[1]
            if kind == "pipelines":
                number = chance.randint(1, 3)
                return lower(avgpipe(chance.randint(1, 3), number * chance.randint(1, 5), number, chance.randint(0, 2)))
            schedule = build(chance.choice(list(CATALOGUE)), chance.randint(1, 5), chance.randint(1, 8))
            if kind == "recomputed":
                schedule = recompute(schedule)
            if kind == "torch":
                return lower_for_torch(schedule)
            schedule = lower(reduced_early(schedule) if kind == "early" else schedule)
            if kind == "replicas":
                schedule = replicate(schedule, chance.randint(2, 3))
            if kind == "late":
                schedule = received_late(schedule)
            num_devices = max(1, schedule.num_ranks - chance.choice([0, 0, 0, 1, 2]))
            return replace(schedule, rank_to_device=tuple(d % num_devices for d in schedule.rank_to_device))
        except ScheduleError:  # these counts are not for this schedule, or it cannot be changed so
            continue


def random_machines(chance, num_devices):
    """Draw nodes with or without shared NICs, and devices and links with or without hand-over."""
    cluster, num_nodes = random_cluster(chance, num_devices), chance.randint(1, 3)
    devices = tuple(
        replace(device, node=index * num_nodes // num_devices, op_s=chance.choice([0.0, chance.uniform(0, 0.1)]))
        for index, device in enumerate(cluster.devices)
    )
    if chance.random() < 0.5:  # so that much happens at the same time
        devices = tuple(replace(device, speed=1.0, op_s=0.0) for device in devices)
    nodes = [[index for index, device in enumerate(devices) if device.node == node] for node in range(num_nodes)]
    nics = tuple(tuple(members) for members in nodes if members and chance.random() < 0.5)
    kept = {"send_s": 0.1, "send_s_per_byte": 0.001, "post_s": chance.choice([0.0, 0.05]), "receive_s": 0.02}
    intra = replace(cluster.intra, **(kept if chance.random() < 0.3 else {}))
    inter = chance.choice([None, Link(chance.uniform(0, 1), chance.choice([10.0, 25.0]))])
    links = cluster.links if chance.random() < 0.5 else ()
    return replace(cluster, devices=devices, intra=intra, inter=inter, nics=nics, links=links)


def random_seconds(chance, schedule):
    """Draw seconds of single ops."""

    def some():
        return chance.choice([None, None, 0.0, chance.uniform(0, 1)])

    late_s = [0.0, 0.0, chance.uniform(-0.5, 0.5)]
    return [[OpSeconds(some(), some(), some(), chance.choice(late_s)) for _ in row] for row in schedule.ops]


def drawn(seed):
    """Return schedule, costs, cluster and the rest of what `simulate_lists` takes."""
    chance = random.Random(seed)
    schedule = random_lists(chance)
    costs = random_costs(chance, schedule.num_stages)
    if chance.random() < 0.3:  # so that much happens at the same time
        alike = replace(costs.stages[0], forward_s=1.0, backward_s=2.0, backward_input_s=1.0, backward_weight_s=1.0)
        costs = replace(costs, stages=(replace(alike, output_bytes=10),) * schedule.num_stages)
    if chance.random() < 0.2:
        costs = replace(costs, compression=Compression(4, 50.0))
    network = NetworkOptions(
        chance.choice(["rendezvous", "eager"]),
        chance.choice(["posted", "posted", "blocking"]),
        chance.choice([None, 5, 7]),
        chance.choice([0.0, 0.0, 0.5]),
    )
    more = {"network": network}
    if chance.random() < 0.3:
        more |= {"jitter": chance.choice([0.1, 0.5]), "seed": chance.randint(0, 5)}
    if chance.random() < 0.3:
        more["given"] = random_seconds(chance, schedule)
    return schedule, costs, random_machines(chance, max(schedule.rank_to_device) + 1), more


def test_every_span_is_simpys_whatever_is_drawn(monkeypatch):
    outcomes = Counter()
    without_simpy(monkeypatch)

    @settings(deadline=None, max_examples=200)
    @given(seed=st.integers(0, 10**9))
    def hold(seed):
        schedule, costs, cluster, more = drawn(seed)
        try:
            expected = simulate_lists(schedule, costs, cluster, **more)
        except ERRORS:
            with pytest.raises((AskedSimPyError, *ERRORS)):
                simulate_arrays(schedule, costs, cluster, **more)
            outcomes["refused"] += 1
            return
        assert_same_timeline(simulate_arrays(schedule, costs, cluster, **more), expected)
        outcomes["same"] += 1

    hold()
    assert outcomes["same"] > 3 * outcomes["refused"] > 0, outcomes


@pytest.mark.parametrize("seed", range(24))
def test_compiled_it_is_the_same_bit_for_bit(seed, monkeypatch):
    schedule, costs, cluster, more = drawn(seed)
    try:
        expected = simulate_lists(schedule, costs, cluster, **more)
    except ERRORS:
        return
    without_simpy(monkeypatch)
    timelines = []
    for break_even in (0, 10**18):
        monkeypatch.setattr(machine_code, "BREAK_EVEN", break_even)
        timelines.append(simulate_arrays(schedule, costs, cluster, **more))
    assert timelines[0] == timelines[1]
    assert_same_timeline(timelines[0], expected)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_the_program_of_some_costs_gives_the_times_of_others(seed):
    chance = random.Random(seed)
    schedule = lower(build(chance.choice(["1f1b", "interleaved", "zbv", "dualpipe_v", "chimera"]), 4, 8))
    program = compile_lists(schedule, USUAL_NETWORK, has_hand_over=True)
    for _ in range(2):
        costs, cluster = random_costs(chance, schedule.num_stages), random_machines(chance, 4)
        times_s, expected = program_times(program, costs, cluster), simulate_lists(schedule, costs, cluster)
        assert_same_timeline(program.timeline(times_s), expected)
        assert program.makespan_s(times_s) == pytest.approx(expected.makespan_s, rel=1e-9)


def test_without_a_cluster_messages_take_no_time():
    assert simulate_arrays(build("1f1b", 4, 8), uniform(4, 1.0, 2.0)).makespan_s == 33.0


def test_compiled_lists_give_the_makespan_of_any_seed():
    schedule, costs, cluster = lower(build("1f1b", 3, 4)), uniform(3, 1.0, 2.0), flat(3)
    lists = CompiledLists(schedule, costs, cluster)
    for seed in range(3):
        expected = simulate_lists(schedule, costs, cluster, jitter=0.2, seed=seed)
        assert lists.makespan_s(0.2, seed) == expected.makespan_s
        assert lists.timeline(0.2, seed) == expected


def test_a_program_without_hand_over_is_not_run_where_handing_over_takes_time():
    program = compile_lists(lower(build("1f1b", 2, 2)), USUAL_NETWORK, has_hand_over=False)
    with pytest.raises(SimulationError, match="handing over takes time, expected one where it does not"):
        program_times(program, uniform(2, 1.0, 2.0), flat(2, Link(post_s=0.1)))


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([["0F0", "0SEND_F0>1", "0B0"], ["1F0", "1B0"]], "waits forever for activation 0 of stage 0"),
        ([["0RECV_B0<1", "0F0", "0B0"], ["1RECV_F0<0", "1F0", "1B0"]], "deadlock: rank 0 at 0B0 waits"),
        ([["0F0", "0SEND_F0>1"], []], "which rank 1 never receives"),
        ([["0F0", "0SEND_F0>1"], ["1RECV_F1<0"]], "expected the k-th send of a channel to meet its k-th receive"),
    ],
)
def test_lists_that_cannot_come_to_their_end_are_refused_as_simpy_does(rows, text):
    ops = [[parse_op_with_peer(cell) for cell in row] for row in rows]
    schedule, costs = make_schedule("bad", 2, 1, ops), uniform(2, 1.0, 1.0)
    for simulate in (simulate_lists, simulate_arrays):
        with pytest.raises(ERRORS) as caught:
            simulate(schedule, costs)
        assert text in str(caught.value)


def test_a_replica_that_does_not_reduce_is_told_of_by_simpy():
    schedule = lower(replicate(build("1f1b", 1, 2), 2))
    stuck = replace(schedule, lists=((*schedule.ops[0], Reduce(0)), schedule.ops[1]))
    with pytest.raises(ERRORS) as caught:
        simulate_lists(stuck, uniform(1, 1.0, 2.0))
    with pytest.raises(ERRORS) as again:
        simulate_arrays(stuck, uniform(1, 1.0, 2.0))
    assert str(again.value) == str(caught.value)


def test_times_beyond_all_numbers_are_refused():
    costs = StageCosts((StageCost(1e308, 1e308),))
    with pytest.raises(SimulationError, match="expected a finite one"):
        simulate_arrays(build("gpipe", 1, 4), costs)
