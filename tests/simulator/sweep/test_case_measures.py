"""Many costs and links through one event graph say what SimPy says of each."""

import random
from dataclasses import replace

import pytest

from pipesched.profiles.clusters import Cluster, Device, Link, flat
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.simulator import NetworkOptions, Scenario
from pipesched.simulator.engine import predict_by_events
from pipesched.simulator.fast import event_graph_of
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
                  output_bytes=draw.randrange(100), saved_bytes=draw.randrange(1000), weight_bytes=draw.randrange(50))
        for _ in range(num_stages)
    ]  # fmt: skip
    link = Link(draw.choice([0.0, 0.3]), draw.choice([50.0, 1e3]), send_s=draw.choice([0.0, 0.0, 0.01]))
    devices = tuple(Device(draw.choice([1.0, 0.5])) for _ in range(num_devices))
    return StageCosts(tuple(stages)), Cluster(devices, link)


@pytest.mark.parametrize(("name", "p", "m", "v"), SETTINGS)
def test_each_case_is_what_a_simulation_of_it_is(name, p, m, v):
    draw, schedule = random.Random(name), lower(build(name, p, m, v))
    cases = [drawn_case(draw, schedule.num_stages, p) for _ in range(12)]
    measures = CaseSweep(schedule, NETWORK, is_repeated=True).measures(cases)
    for (costs, cluster), measured in zip(cases, measures, strict=True):
        simulated = predict_by_events(Scenario(schedule, costs, cluster))
        assert measured.makespan_s == pytest.approx(simulated.seconds, rel=1e-9)
        assert measured.peak_bytes == simulated.peak_bytes
        busy_s = sum(span.end_s - span.start_s for span in simulated.timeline.work)  # one after another on each device
        assert measured.busy_s == pytest.approx(busy_s, rel=1e-9)
        if measured.timeline is not None:
            assert measured.timeline.makespan_s == pytest.approx(simulated.seconds, rel=1e-9)


@pytest.mark.parametrize("count", [1, 20])
def test_times_of_several_cases_are_those_of_each(count):
    draw, schedule = random.Random(count), lower(build("zbv", 2, 4))
    cases = [drawn_case(draw, schedule.num_stages, 2) for _ in range(count)]
    cases = [(costs, replace(cluster, intra=replace(cluster.intra, send_s=0.0))) for costs, cluster in cases]
    graph = event_graph_of(schedule, *cases[0])
    columns = graph.times_of_cases_s(cases).T.tolist()
    assert columns == [graph.times_s(*case) for case in cases]


def test_what_contends_or_takes_no_time_is_left_to_the_simulator():
    schedule = lower(build("gpipe", 2, 2))
    costs = StageCosts((StageCost(1.0, 2.0),) * 2)
    lists = CaseSweep(schedule, NETWORK, is_repeated=True)
    shared = replace(flat(2), nics=((0, 1),))
    nothing, endless = (StageCosts((StageCost(s, s),) * 2) for s in (0.0, 1e308))
    cases = [(costs, flat(2)), (costs, shared), (nothing, flat(2)), (endless, flat(2))]
    assert [measured is None for measured in lists.measures(cases)] == [False, True, True, True]
    assert CaseSweep(schedule, NetworkOptions("eager"), is_repeated=True).measures(cases) == [None] * 4


def test_a_batch_shows_its_period_and_a_run_without_a_flush_its_timeline():
    schedule, costs = lower(build("gpipe", 2, 3)), StageCosts((StageCost(1.0, 2.0),) * 2)
    batch, run = (CaseSweep(schedule, NETWORK, is_repeated=repeated) for repeated in (True, False))
    (of_batch,), (of_run,) = batch.measures([(costs, flat(2))]), run.measures([(costs, flat(2))])
    assert (of_batch.period_s, of_batch.timeline) == (12.0, None)
    assert (of_run.period_s, of_run.timeline.makespan_s) == (None, 12.0)
