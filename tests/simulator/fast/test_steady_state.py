"""The pace in the long run, beside closed forms and a loop of its own."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from pipesched.profiles.clusters import Link, dealt, flat
from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules import repeat
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Phase
from pipesched.simulator import NetworkOptions, Scenario
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import (
    UnflushedRuns,
    batch_pace,
    repeated_pace,
    simulate_arrays,
    unflushed_pace,
)
from tests.simulator.fast.op_loop import ends_s


def batch(name, p, m, costs, link=Link()):  # noqa: B008 -- frozen
    """Return the pace of a repeated batch: as its Timeline shows it, or None, and as longer runs do."""
    schedule = build(name, p, m)

    def run(times):
        lists = repeat(schedule, times).held()
        return lists, simulate_lists(lower(lists), costs, flat(p, link))

    shown = batch_pace(*run(1), flat(p, link))
    settled = repeated_pace((run(times) for times in (1, 2, 4, 8, 16)), m)
    return None if shown is None else shown.s_per_microbatch, None if settled is None else settled.s_per_microbatch


def unflushed(name, p, m, costs, link=Link(), **parameters):  # noqa: B008
    def run(times):
        lists = build(name, p, times * m, **parameters)
        return lists, simulate_lists(lower(lists), costs, flat(p, link))

    pace = unflushed_pace(run(times) for times in (1, 2, 4, 8, 16, 32, 64))
    return None if pace is None else pace.s_per_microbatch


@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 4), (2, 3), (3, 3), (4, 8)])
def test_nothing_of_two_gpipe_batches_overlaps_as_the_first_rank_begins_and_ends_each(p, m):
    """By hand for p = 2, m = 2, f = 1, b = 2: rank 0 works from 0 to 9, and the next batch begins with its F.

    rank 0  F0 F1 .. .. B0 B0 B1 B1 .. | F2    (its B0 waits for that of rank 1 from 3 to 5, its B1 from 5 to 7)
    """
    expected = (m + p - 1) * 3 / m
    shown, run = batch("gpipe", p, m, uniform(p, 1.0, 2.0))
    assert shown == pytest.approx(expected, rel=1e-12)
    assert run == pytest.approx(expected, rel=1e-12)


def test_batches_of_a_zero_bubble_schedule_overlap():
    """ZB-H2: no rank is idle between its first op and its last, and the next batch begins right behind."""
    shown, run = batch("zb_h2", 4, 8, uniform(4, 1.0, None, 1.0, 1.0))
    assert shown == run == pytest.approx(3.0, rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_uneven_stages_settle_to_what_a_loop_of_its_own_finds(seed):
    chance = random.Random(seed)
    p, m = chance.randint(2, 4), chance.randint(1, 5)
    stages = list(zip(*([chance.uniform(0.5, 2) for _ in range(p)] for _ in range(3)), strict=True))
    costs = StageCosts(tuple(StageCost(f, b, step_s=s) for f, b, s in stages))
    over_s = ends_s(repeat(build("gpipe", p, m), 40).held(), stages)
    expected = (over_s[Phase.BACKWARD, 0, 40 * m - 1] - over_s[Phase.BACKWARD, 0, 16 * m - 1]) / (24 * m)
    shown, run = batch("gpipe", p, m, costs)
    assert run == pytest.approx(expected, rel=1e-9)
    assert shown == pytest.approx(expected, rel=1e-9)
    over_s = ends_s(build("pipedream", p, 400), stages)
    expected = (over_s[Phase.BACKWARD, 0, 360] - over_s[Phase.BACKWARD, 0, 120]) / 240  # a multiple of 2, 3 and 4
    assert unflushed("pipedream", p, 4, costs) == pytest.approx(expected, rel=1e-9)


def test_a_slow_link_is_waited_for_once_for_all_micro_batches_that_are_under_way():
    """Two go round between two ranks: F and B of both stages and a message each way, so every second finds a gap."""
    costs, link = uniform(2, 1.0, 2.0), Link(latency_s=1.0)
    assert unflushed("pipedream", 2, 4, costs, link) == pytest.approx((1 + 1 + 1 + 2 + 1 + 2) / 2, rel=1e-12)
    over_s = [span.end_s for span in simulate_lists(build("pipedream", 2, 40), costs, flat(2, link)).of_rank(0)]
    assert len({round(later - first, 6) for first, later in pairwise(over_s[60:100])}) > 1


def test_a_run_that_changes_its_pace_has_that_at_which_it_gets_longer():
    """Hybrid: of as many more micro-batches half are pipelined, 3 s each, and half go through p stages alone."""
    assert unflushed("hybrid", 4, 16, uniform(4, 1.0, 2.0)) == pytest.approx((3 + 4 * 3) / 2, rel=1e-12)


def test_short_runs_that_get_longer_alike_show_no_pace_where_their_parts_do_not():
    """Runs of 2 to 16 micro-batches get longer by 18.5 s for each; in the long run it is half of 9 + 29 s."""
    costs = StageCosts(tuple(StageCost(4.0, float(backward_s)) for backward_s in (5, 3, 4, 1)))
    assert unflushed("hybrid", 4, 2, costs) == pytest.approx((9 + 29) / 2, rel=1e-12)
    assert unflushed("hybrid", 4, 2, costs, pipelined=2) == pytest.approx(29, rel=1e-12)


@pytest.mark.parametrize(("name", "p", "is_shown"), [("avgpipe", 2, True), ("1f1b", 4, True), ("zb_h2", 4, False)])
def test_where_ranks_share_a_batch_shows_its_pace_if_nothing_is_left_when_the_first_ranks_end(name, p, is_shown):
    """Devices are shared by avgpipe's pipelines, a NIC by two devices each."""
    costs = StageCosts((StageCost(1.0, 2.0, 1.0, 1.0, step_s=0.5, output_bytes=20),) * p)
    machines = replace(flat(p, Link(0.25, 50.0)), nics=dealt(p, 2))

    def simulated(times):
        lists = lower(repeat(build(name, p, 8), times).held())
        return lists, simulate_arrays(lists, costs, machines)

    lists, line = simulated(1)
    shown, settled = batch_pace(lists, line, machines), repeated_pace(map(simulated, (2, 4, 8)), 8)
    assert (shown is not None) == is_shown
    far_s, long_s = (simulated(times)[1].makespan_s for times in (4, 12))
    assert settled.s_per_microbatch == pytest.approx((long_s - far_s) / 64, rel=1e-9)
    if is_shown:
        assert (shown[:2], shown.error) == (pytest.approx(settled[:2], rel=1e-9), settled.error)


def test_what_does_not_settle_in_the_runs_there_are_is_not_known():
    lists = build("pipedream", 8, 4)
    line = simulate_lists(lists, uniform(8, 1.0, 2.0))
    assert unflushed_pace([(lists, line)]) is None
    assert repeated_pace([(lists, line)], 4) is None


def test_the_timeline_of_a_batch_with_blocking_sends_does_not_show_its_pace():
    schedule, costs, network = lower(build("gpipe", 2, 4)), uniform(2, 1.0, 2.0), NetworkOptions(sends="blocking")
    timeline = simulate_lists(schedule, costs, flat(2), network=network)
    assert batch_pace(schedule, timeline, flat(2)) is not None
    assert batch_pace(schedule, timeline, flat(2), network) is None


def test_longer_runs_that_are_kept_have_the_pace_of_the_slowest_stage_under_any_costs():
    schedule = build("pipedream", 3, 6)
    runs = UnflushedRuns(schedule, lambda times: build("pipedream", 3, times * 6))
    for slowest_s in (1.0, 2.5, 0.5):
        stages = (StageCost(0.25, 0.25), StageCost(slowest_s, 2 * slowest_s), StageCost(0.125, 0.5))
        answer = runs.predict(Scenario(schedule, StageCosts(stages), flat(3)))
        assert answer.seconds == pytest.approx(6 * 3 * slowest_s, rel=1e-9)
