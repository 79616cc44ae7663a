"""Many costs and links through one program say what SimPy says of each."""

import random
from dataclasses import replace

import pytest

from pipesched.profiles.clusters import Cluster, Device, Link, flat
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules import machine_code, make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.formats.op_text import parse_op_with_peer
from pipesched.schedules.lowering import lower
from pipesched.simulator import NetworkOptions, Scenario, SimulationError
from pipesched.simulator.engine import predict_by_events
from pipesched.simulator.fast import CaseProgram, compile_lists, program_times
from pipesched.simulator.sweep import CaseSweep

NETWORK = NetworkOptions()
SETTINGS = [
    ("1f1b", 4, 6, None),
    ("chimera", 4, 4, None),
    ("interleaved", 2, 4, 2),
    ("zbv", 3, 6, None),
    ("pipedream", 3, 5, None),
]


def drawn_case(draw, num_stages, num_devices):
    stages = [
        StageCost(draw.random(), draw.random(), draw.random(), draw.random(), step_s=draw.choice([0.0, 0.2]),
                  output_bytes=draw.randrange(100), saved_bytes=draw.randrange(1000), weight_bytes=draw.randrange(50),
                  working_bytes=draw.randrange(1000))
        for _ in range(num_stages)
    ]  # fmt: skip
    link = Link(draw.choice([0.0, 0.3]), draw.choice([50.0, 1e3]), send_s=draw.choice([0.0, 0.0, 0.01]))
    devices = tuple(Device(draw.choice([1.0, 0.5])) for _ in range(num_devices))
    return StageCosts(tuple(stages)), Cluster(devices, link)


def assert_as_simulated(schedule, cases, network):
    measures = CaseSweep(schedule, network, is_repeated=True).measures(cases)
    for (costs, cluster), measured in zip(cases, measures, strict=True):
        simulated = predict_by_events(Scenario(schedule, costs, cluster, network))
        assert measured.makespan_s == pytest.approx(simulated.seconds, rel=1e-9)
        assert measured.peak_bytes == simulated.peak_bytes
        busy_s = sum(span.end_s - span.start_s for span in simulated.timeline.work)  # one after another on each device
        assert measured.busy_s == pytest.approx(busy_s, rel=1e-9)
        if measured.timeline is not None:
            assert measured.timeline.makespan_s == pytest.approx(simulated.seconds, rel=1e-9)


@pytest.mark.parametrize(("name", "p", "m", "v"), SETTINGS)
def test_each_case_is_what_a_simulation_of_it_is(name, p, m, v):
    draw, schedule = random.Random(name), lower(build(name, p, m, v))
    assert_as_simulated(schedule, [drawn_case(draw, schedule.num_stages, p) for _ in range(12)], NETWORK)


@pytest.mark.parametrize(
    "network", [NETWORK, NetworkOptions("eager", "blocking"), NetworkOptions(chunk_bytes=7, slowdown=0.5)]
)
def test_so_it_is_where_devices_share_a_nic_and_messages_go_otherwise(network):
    draw, schedule = random.Random(1), lower(build("1f1b", 4, 4))
    cases = [drawn_case(draw, 4, 4) for _ in range(9)]
    nodes = tuple(Device(node=device // 2) for device in range(4))
    shared = [(costs, replace(cluster, devices=nodes, nics=((0, 1),))) for costs, cluster in cases]
    assert_as_simulated(schedule, shared, network)


@pytest.mark.parametrize("break_even", [0, 10**12], ids=["machine code", "plain Python"])
def test_times_of_several_cases_are_those_of_each(break_even, monkeypatch):
    monkeypatch.setattr(machine_code, "BREAK_EVEN", break_even)
    draw, schedule = random.Random(20), lower(build("zbv", 2, 4))
    cases = [drawn_case(draw, schedule.num_stages, 2) for _ in range(20)]
    program = compile_lists(schedule, NETWORK, has_hand_over=True)
    times = CaseProgram(program, NETWORK).times(cases).of(range(program.num_times))
    for column, case in zip(times.T.tolist(), cases, strict=True):
        assert column == pytest.approx(program_times(program, *case), rel=1e-9, abs=1e-9)


def test_lists_that_wait_forever_are_refused():
    ops = [["0RECV_B0<1", "0F0", "0B0", "0SEND_F0>1"], ["1RECV_F0<0", "1F0", "1B0", "1SEND_B0>0"]]
    stuck = make_schedule("stuck", 2, 1, [[parse_op_with_peer(cell) for cell in row] for row in ops])
    lists, case = CaseSweep(stuck, NETWORK, is_repeated=True), (StageCosts((StageCost(1.0, 2.0),) * 2), flat(2))
    for count in (1, 20):
        with pytest.raises(SimulationError, match="stuck: deadlock"):
            lists.measures([case] * count)


def test_what_takes_no_time_and_ranks_that_share_a_device_are_left_to_the_simulator():
    schedule = lower(build("gpipe", 2, 2))
    costs = StageCosts((StageCost(1.0, 2.0),) * 2)
    nothing, endless = (StageCosts((StageCost(s, s),) * 2) for s in (0.0, 1e308))
    cases = [(costs, flat(2)), (nothing, flat(2)), (endless, flat(2))]
    lists = CaseSweep(schedule, NETWORK, is_repeated=True)
    assert [measured is None for measured in lists.measures(cases)] == [False, True, True]
    crowded = CaseSweep(replace(schedule, rank_to_device=(0, 0)), NETWORK, is_repeated=True)
    assert crowded.measures(cases[:1]) == [None]


def test_a_batch_shows_its_period_and_a_run_without_a_flush_its_timeline():
    schedule, costs = lower(build("gpipe", 2, 3)), StageCosts((StageCost(1.0, 2.0),) * 2)
    batch, run = (CaseSweep(schedule, NETWORK, is_repeated=repeated) for repeated in (True, False))
    (of_batch,), (of_run,) = batch.measures([(costs, flat(2))]), run.measures([(costs, flat(2))])
    assert (of_batch.period_s, of_batch.timeline) == (12.0, None)
    assert (of_run.period_s, of_run.timeline.makespan_s) == (None, 12.0)
