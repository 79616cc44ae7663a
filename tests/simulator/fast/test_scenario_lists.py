"""Lists that are compiled once have the times, peaks and pace of SimPy under any costs and links."""

import random
from dataclasses import replace

import pytest

from pipesched.profiles.clusters import Cluster, Device, Link, flat
from pipesched.profiles.costs import Compression, StageCost, StageCosts
from pipesched.schedules import make_schedule, repeat
from pipesched.schedules.builders import build
from pipesched.schedules.columns import machine_code
from pipesched.schedules.formats.op_text import parse_op_with_peer
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import recompute
from pipesched.simulator import NetworkOptions, Scenario, SimulationError
from pipesched.simulator.engine import predict_by_events
from pipesched.simulator.fast import RepeatedRuns, ScenarioLists, busy_s

NETWORK = NetworkOptions()
NAMES = ["gpipe", "1f1b", "interleaved", "looped_bfs", "hanayo", "zb_h1", "zb_h2", "zbv", "1f1b_afp", "chimera",
         "dualpipe", "pipedream", "wpipe", "gems"]  # fmt: skip
SETTINGS = [(name, p, m) for name in NAMES for p, m in ((2, 4), (4, 8))]


@pytest.fixture(params=["lists", "arrays"])
def form(request, monkeypatch):
    """Let loops run in plain Python, or as machine code."""
    monkeypatch.setattr(machine_code, "BREAK_EVEN", 10**12 if request.param == "lists" else 0)
    return request.param


def drawn_costs(draw, num_stages):
    def seconds():
        return draw.choice([0.25, 1.0, draw.random()])

    def num_bytes():
        return draw.choice([0, 10, draw.randrange(100)])

    stages = [
        StageCost(seconds(), seconds(), seconds(), seconds(), step_s=draw.choice([0.0, 0.2]),
                  output_bytes=num_bytes(), saved_bytes=num_bytes(), weight_bytes=1 + num_bytes(),
                  saved_for_weight_bytes=draw.choice([None, num_bytes()]), optimizer_bytes=num_bytes(),
                  output_is_saved=draw.random() < 0.5, working_bytes=num_bytes())
        for _ in range(num_stages)
    ]  # fmt: skip
    return StageCosts(tuple(stages), compression=draw.choice([None, None, Compression(4, 50.0)]))


def drawn_cluster(draw, num_devices):
    devices = tuple(Device(draw.choice([1.0, 0.5]), node=number // 2) for number in range(num_devices))
    link = Link(draw.choice([0.0, 0.3]), draw.choice([10.0, 1e3]), send_s=draw.choice([0.0, 0.0, 0.01]))
    return Cluster(devices, link, draw.choice([None, Link(0.5, 20.0)]))


def assert_as_simulated(lists, scenario):
    timeline, peak_bytes = lists.under(scenario).timeline_and_peaks()
    simulated = predict_by_events(scenario)
    assert timeline.makespan_s == pytest.approx(simulated.seconds, rel=1e-9)
    assert peak_bytes == simulated.peak_bytes
    assert busy_s(timeline) == pytest.approx(sum(s.end_s - s.start_s for s in simulated.timeline.work), rel=1e-9)


@pytest.mark.parametrize(("name", "p", "m"), SETTINGS)
def test_times_and_peaks_are_those_of_simpy_under_any_costs(name, p, m, form):
    draw, batch = random.Random(name), build(name, p, m)
    for schedule in (batch, recompute(batch)) if name not in ("pipedream", "wpipe") else (batch,):
        lists = ScenarioLists(lower(schedule))
        for _ in range(4):
            costs, cluster = drawn_costs(draw, schedule.num_stages), drawn_cluster(draw, p)
            assert_as_simulated(lists, Scenario(lower(schedule), costs, cluster))
            slower = replace(cluster, intra=Link(0.7, 5.0))
            assert_as_simulated(lists, Scenario(lower(schedule), costs, slower))


@pytest.mark.parametrize(
    "network", [NETWORK, NetworkOptions("eager", "blocking"), NetworkOptions(chunk_bytes=7, slowdown=0.5)]
)
def test_so_they_are_where_devices_share_a_nic_and_messages_go_otherwise(network):
    draw, schedule = random.Random(1), lower(build("1f1b", 4, 4))
    lists = ScenarioLists(schedule)
    for _ in range(6):
        cluster = replace(drawn_cluster(draw, 4), nics=((0, 1),))
        assert_as_simulated(lists, Scenario(schedule, drawn_costs(draw, 4), cluster, network))


def test_so_they_are_where_ranks_share_devices():
    schedule = lower(replace(build("gpipe", 4, 4), rank_to_device=(0, 0, 1, 1)))
    lists = ScenarioLists(schedule)
    for saved_bytes in (10, 30):
        costs = StageCosts((StageCost(1.0, 2.0, saved_bytes=saved_bytes, weight_bytes=5, utilisation=0.5),) * 4)
        timeline, peak_bytes = lists.under(scenario := Scenario(schedule, costs, flat(2))).timeline_and_peaks()
        simulated = predict_by_events(scenario)
        assert (timeline.makespan_s, peak_bytes) == (pytest.approx(simulated.seconds), simulated.peak_bytes)


def test_costs_without_bytes_have_no_peaks():
    costs = StageCosts((StageCost(1.0, 2.0),) * 2)
    lists = ScenarioLists(lower(build("gpipe", 2, 3)))
    timeline, peak_bytes = lists.under(Scenario(lists.schedule, costs, flat(2))).timeline_and_peaks()
    assert (timeline.makespan_s, peak_bytes) == ((3 + 1) * 3.0, {})


def test_lists_that_wait_forever_are_refused():
    ops = [["0RECV_B0<1", "0F0", "0B0", "0SEND_F0>1"], ["1RECV_F0<0", "1F0", "1B0", "1SEND_B0>0"]]
    stuck = make_schedule("stuck", 2, 1, [[parse_op_with_peer(cell) for cell in row] for row in ops])
    lists = ScenarioLists(stuck).under(Scenario(stuck, StageCosts((StageCost(1.0, 2.0),) * 2), flat(2)))
    with pytest.raises(SimulationError, match="stuck: deadlock"):
        lists.timeline_and_peaks()


@pytest.mark.parametrize("name", ["zb_h2", "zbv", "1f1b", "interleaved"])
def test_the_pace_is_by_how_much_a_run_of_one_batch_more_is_longer(name, form):
    schedule = build(name, 3, 6)
    runs = RepeatedRuns(schedule)
    for bandwidth in (16.0, 48.0):
        costs = StageCosts(
            (StageCost(1.0, None, 1.25, 0.5, step_s=0.125, output_bytes=3, weight_bytes=1),) * schedule.num_stages
        )
        cluster = flat(3, Link(0.125, bandwidth))
        longer = [
            predict_by_events(Scenario(lower(repeat(schedule, times).held()), costs, cluster)) for times in (7, 8)
        ]
        period_s = longer[1].seconds - longer[0].seconds
        work_s = 6 * schedule.num_stages * 2.75 + schedule.num_stages * 0.125
        pace = runs.predict(Scenario(schedule, costs, cluster))
        assert pace.seconds == pytest.approx(period_s, rel=1e-9)
        assert pace.bubble_fraction == pytest.approx(1 - work_s / (3 * period_s), abs=1e-9)
