"""Lists that are compiled once have the times, peaks and pace of SimPy under any costs and links."""

import random
from dataclasses import replace

import pytest

from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules import repeat
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import recompute
from pipesched.simulator import USUAL_NETWORK, NetworkOptions, Scenario
from pipesched.simulator.engine import predict_by_events
from pipesched.simulator.fast import RepeatedRuns, ScenarioLists, busy_s
from tests.schedules.builder_rules import kinds
from tests.simulator.fast.draws import random_machines
from tests.strategies import random_costs


def assert_as_simulated(lists, scenario):
    timeline, peak_bytes = lists.under(scenario).timeline_and_peaks()
    simulated = predict_by_events(scenario)
    assert timeline.makespan_s == pytest.approx(simulated.seconds, rel=1e-9)
    assert peak_bytes == simulated.peak_bytes
    assert busy_s(timeline) == pytest.approx(sum(s.end_s - s.start_s for s in simulated.timeline.work), rel=1e-9)


@pytest.mark.parametrize("name", [name for name in kinds() if name != "avgpipe"])  # whose ranks share devices
def test_times_and_peaks_are_those_of_simpy_under_any_costs(name):
    draw, batch = random.Random(name), build(name, 4, 8)
    for schedule in (batch, recompute(batch)) if not batch.traits.is_asynchronous else (batch,):
        lists = ScenarioLists(lower(schedule))
        for _ in range(2):
            costs, cluster = random_costs(draw, schedule.num_stages), random_machines(draw, 4)
            assert_as_simulated(lists, Scenario(lower(schedule), costs, cluster))
            slower = replace(cluster, intra=Link(0.7, 5.0))
            assert_as_simulated(lists, Scenario(lower(schedule), costs, slower))


@pytest.mark.parametrize(
    "network", [USUAL_NETWORK, NetworkOptions("eager", "blocking"), NetworkOptions(chunk_bytes=7, slowdown=0.5)]
)
def test_so_they_are_where_devices_share_a_nic_and_messages_go_otherwise(network):
    draw, schedule = random.Random(1), lower(build("1f1b", 4, 4))
    lists = ScenarioLists(schedule)
    for _ in range(6):
        cluster = replace(random_machines(draw, 4), nics=((0, 1),))
        assert_as_simulated(lists, Scenario(schedule, random_costs(draw, 4), cluster, network))


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


@pytest.mark.parametrize("name", ["zb_h2", "zbv", "1f1b", "interleaved"])
def test_the_pace_is_by_how_much_a_run_of_one_batch_more_is_longer(name):
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
