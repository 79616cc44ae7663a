"""The steps of lists say what SimPy says of them: times, peaks and the pace of a batch that is repeated."""

import random

import pytest

from pipesched.profiles.clusters import Cluster, Device, Link, flat
from pipesched.profiles.costs import Compression, StageCost, StageCosts
from pipesched.schedules import machine_code, make_schedule, repeat
from pipesched.schedules.builders import build
from pipesched.schedules.formats.op_text import parse_op_with_peer
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import recompute
from pipesched.simulator import Scenario
from pipesched.simulator.engine import predict_by_events
from pipesched.simulator.sweep import Links, RepeatedLists, WalkedLists, walkable

NAMES = ["gpipe", "1f1b", "interleaved", "looped_bfs", "hanayo", "zb_h1", "zb_h2", "zbv", "1f1b_afp"]
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
    link = Link(draw.choice([0.0, 0.3]), draw.choice([10.0, 1e3]))
    return Cluster(devices, link, draw.choice([None, Link(0.5, 20.0)]))


@pytest.mark.parametrize(("name", "p", "m"), SETTINGS)
def test_times_and_peaks_are_those_of_simpy(name, p, m, form):
    draw, batch = random.Random(name), build(name, p, m)
    for schedule in (batch, recompute(batch)):
        assert walkable(schedule)
        lists = WalkedLists([schedule.columns], schedule.num_stages, [m])
        assert lists.in_arrays is (form == "arrays")
        for _ in range(3):
            costs, cluster = drawn_costs(draw, schedule.num_stages), drawn_cluster(draw, p)
            measured = lists.measures(costs, cluster, schedule.rank_to_device)
            assert [*measured.are_known] == [True]
            simulated = predict_by_events(Scenario(lower(schedule), costs, cluster))
            assert measured.makespans_s[0] == pytest.approx(simulated.seconds, rel=1e-9)
            assert dict(enumerate(measured.peaks[0])) == simulated.peak_bytes
            assert measured.busy_s[0] == pytest.approx(
                sum(s.end_s - s.start_s for s in simulated.timeline.work), rel=1e-9
            )


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zbv"])
def test_many_links_are_gone_through_together(name, monkeypatch):
    monkeypatch.setattr(machine_code, "BREAK_EVEN", 0)
    draw, schedule = random.Random(5), build(name, 4, 8)
    lists, costs = WalkedLists([schedule.columns], schedule.num_stages, [8]), drawn_costs(draw, schedule.num_stages)
    links = Links([draw.random() for _ in range(150)], [draw.uniform(5.0, 500.0) for _ in range(150)])
    for num_threads in (1, 2):
        together = lists.measures(costs, flat(4), schedule.rank_to_device, links, num_threads=num_threads)
        for case in range(0, 150, 7):
            cluster = flat(4, Link(links.latencies_s[case], links.bandwidths[case]))
            simulated = predict_by_events(Scenario(lower(schedule), costs, cluster))
            assert together.makespans_s[case] == pytest.approx(simulated.seconds, rel=1e-9)
            assert dict(enumerate(together.peaks[case].tolist())) == simulated.peak_bytes


@pytest.mark.parametrize("name", ["zb_h2", "zbv", "1f1b", "interleaved"])
def test_the_pace_is_by_how_much_a_run_of_one_batch_more_is_longer(name, form):
    schedule = build(name, 3, 6)
    costs = StageCosts((StageCost(1.0, None, 1.25, 0.5, step_s=0.125, output_bytes=3, weight_bytes=1),)
                       * schedule.num_stages)  # fmt: skip
    cluster = flat(3, Link(0.125, 16.0))
    measured = WalkedLists([schedule.columns], schedule.num_stages, [6]).measures(
        costs, cluster, schedule.rank_to_device
    )
    runs = [predict_by_events(Scenario(lower(repeat(schedule, times).held()), costs, cluster)) for times in (7, 8)]
    period_s = runs[1].seconds - runs[0].seconds
    if measured.periods_s[0] >= 0:
        assert measured.periods_s[0] == pytest.approx(period_s, rel=1e-9)
    pace = RepeatedLists(schedule).pace(costs, cluster)
    assert pace.s_per_microbatch == pytest.approx(period_s / 6, rel=1e-9)
    assert pace.bubble_fraction == pytest.approx(1 - measured.busy_s[0] / (3 * period_s), abs=1e-9)


def is_known(schedule):
    lists = WalkedLists([schedule.columns], schedule.num_stages, [schedule.num_microbatches])
    costs = StageCosts((StageCost(1.0, 2.0, backward_input_s=1.0, backward_weight_s=1.0),) * schedule.num_stages)
    measured = lists.measures(costs, flat(schedule.num_ranks), schedule.rank_to_device, with_bytes=False)
    return measured.are_known[0]


def test_lists_that_steps_do_not_say_are_left_to_others(form):
    for name in ("chimera", "pipedream", "dualpipe", "avgpipe", "data_parallel"):
        schedule = build(name, 4, 8)
        assert not (walkable(schedule) and is_known(schedule))
    assert not walkable(lower(build("1f1b", 2, 4)))
    lists = WalkedLists([build("1f1b", 2, 4).columns], 2, [4])
    sizes = {2**40: True, 2**61: False}
    assert {size: lists.can_add_up(StageCosts((StageCost(1.0, 2.0, saved_bytes=size),) * 2)) for size in sizes} == sizes
    ops = [["0F0", "0F1", "0B1", "0B0", "0STEP"], ["1F0", "1B0", "1F1", "1B1", "1STEP"]]
    fine = make_schedule("fine", 2, 2, [[parse_op_with_peer(cell) for cell in row] for row in ops])
    assert is_known(fine)
    stuck = [ops[0], ["1B0", "1F0", "1F1", "1B1", "1STEP"]]
    early = [["0F0", "0STEP", "0F1", "0B1", "0B0"], ops[1]]
    for rows in (stuck, early):
        lists = make_schedule("other", 2, 2, [[parse_op_with_peer(cell) for cell in row] for row in rows])
        assert not is_known(lists)


def test_lists_of_many_counts_are_gone_through_together(monkeypatch):
    monkeypatch.setattr(machine_code, "BREAK_EVEN", 0)
    draw = random.Random(7)
    for name in NAMES:
        counts = [4, 8, 12, 40]
        schedules = [build(name, 4, count) for count in counts]
        costs, cluster = drawn_costs(draw, schedules[0].num_stages), drawn_cluster(draw, 4)
        lists = WalkedLists([schedule.columns for schedule in schedules], schedules[0].num_stages, counts)
        together = lists.measures(costs, cluster, (0, 1, 2, 3))
        assert [*together.are_known] == [True] * len(counts)
        for number, schedule in enumerate(schedules):
            simulated = predict_by_events(Scenario(lower(schedule), costs, cluster))
            assert together.makespans_s[number] == pytest.approx(simulated.seconds, rel=1e-9)
            assert dict(enumerate(together.peaks[number])) == simulated.peak_bytes
