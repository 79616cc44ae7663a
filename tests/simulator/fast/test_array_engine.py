"""The array engine: SimPy is the oracle, span by span, of any lists on any machines."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules import ScheduleError, make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.columns import machine_code
from pipesched.schedules.formats.op_text import parse_op_with_peer
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Reduce
from pipesched.schedules.transforms import replicate
from pipesched.simulator import USUAL_NETWORK, NetworkOptions, SimulationError
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import LoadedProgram, compile_lists, simulate_arrays
from tests.properties import examples
from tests.simulator.fast.draws import drawn, random_machines
from tests.simulator.fast.timelines import AskedSimPyError, assert_same_timeline, without_simpy
from tests.strategies import random_costs

ERRORS = (ScheduleError, SimulationError, ProfileError)


@pytest.mark.slow
def test_every_span_is_simpys_whatever_is_drawn(monkeypatch):
    outcomes = Counter()
    without_simpy(monkeypatch)

    @examples(100)
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


@pytest.mark.parametrize("seed", range(12))
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


@examples(30)
@given(seed=st.integers(0, 10**6))
def test_the_program_of_some_costs_gives_the_times_of_others(seed):
    chance = random.Random(seed)
    schedule = lower(build(chance.choice(["1f1b", "interleaved", "zbv", "dualpipe_v", "chimera"]), 4, 8))
    program = compile_lists(schedule, USUAL_NETWORK, has_hand_over=True)
    for _ in range(2):
        costs, cluster = random_costs(chance, schedule.num_stages), random_machines(chance, 4)
        times_s, expected = LoadedProgram(program, costs, cluster).times(), simulate_lists(schedule, costs, cluster)
        assert_same_timeline(program.timeline(times_s), expected)
        assert program.makespan_s(times_s) == pytest.approx(expected.makespan_s, rel=1e-9)


def test_a_program_without_hand_over_is_not_run_where_handing_over_takes_time():
    program = compile_lists(lower(build("1f1b", 2, 2)), USUAL_NETWORK, has_hand_over=False)
    with pytest.raises(SimulationError, match="with hand-over times, expected one without"):
        LoadedProgram(program, uniform(2, 1.0, 2.0), flat(2, Link(post_s=0.1))).times()


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([["0F0", "0SEND_F0>1", "0B0"], ["1F0", "1B0"]], "rank 1: 1F0 waits forever for activation 0 of stage 0"),
        ([["0RECV_B0<1", "0F0", "0B0"], ["1RECV_F0<0", "1F0", "1B0"]], "deadlock: rank 0 at 0B0 waits"),
        ([["0F0", "0SEND_F0>1"], []], "rank 0 posts 0SEND_F0, which rank 1 never receives"),
        ([["0F0"], ["1RECV_F0<0"]], "rank 1 posts 1RECV_F0, which rank 0 never sends"),
        ([["0F0", "0SEND_F0>1"], ["1RECV_F1<0"]], "bad: rank 0 sends 0SEND_F0 where rank 1 receives 1RECV_F1"),
    ],
)
@pytest.mark.parametrize("protocol", ["rendezvous", "eager"])
def test_lists_that_cannot_come_to_their_end_are_refused_by_both_engines(rows, text, protocol):
    ops = [[parse_op_with_peer(cell) for cell in row] for row in rows]
    schedule, costs = make_schedule("bad", 2, 1, ops), uniform(2, 1.0, 1.0)
    for simulate in (simulate_lists, simulate_arrays):
        with pytest.raises(ERRORS) as caught:
            simulate(schedule, costs, network=NetworkOptions(protocol))
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
