"""Idle time part by part, against schedules whose gaps are known and against the works that lie between them."""

import pytest

from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.interleaved import interleaved
from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.builders.zero_bubble import zb_h1
from pipesched.schedules.lowering import lower
from pipesched.simulator.analysis import idle_parts, usage
from pipesched.simulator.engine import simulate_lists
from tests.hand_timelines import play, shaken


def test_the_parts_of_gpipe_are_where_its_gaps_are():
    """F takes 1 s, B 2 s and a message 0.5 s: B0 of rank 1 is over at 5.5 s, and B0 of rank 0 starts at 6 s."""
    assert {
        device: [tuple(part) for part in parts] for device, parts in idle_parts(play(gpipe(2, 2), 0.5)).items()
    } == {
        0: [("downstream", 2.0, 5.5), ("transfer", 5.5, 6.0)],
        1: [("warmup", 0.0, 1.5), ("cooldown", 7.5, 10.0)],
    }


@pytest.mark.parametrize("build", [gpipe, one_f_one_b, interleaved])
def test_parts_and_works_follow_one_another_from_the_first_work_to_the_last(build):
    line = shaken(play(build(3, 6), 0.1))
    for rank, parts in idle_parts(line).items():
        works = [(span.start_s, span.end_s) for span in line.of_rank(rank) if span.is_work]
        now_s = line.start_s
        for start_s, end_s in sorted([*works, *((part.start_s, part.end_s) for part in parts)]):
            assert start_s == pytest.approx(now_s, abs=1e-9)
            now_s = end_s
        assert now_s == pytest.approx(line.start_s + line.makespan_s)


def test_the_parts_add_up_to_what_usage_says():
    line = shaken(play(one_f_one_b(3, 6), 0.1))
    parts = idle_parts(line)
    for use in usage(line):
        for cause, idle_s in use.idle_by_cause_s:
            own = [part.end_s - part.start_s for part in parts[use.device] if part.cause == cause]
            assert sum(own) == pytest.approx(idle_s)


def test_a_work_waits_for_the_messages_of_ops_before_it_that_took_no_time():
    """Rank 0 is free from 20 ms; rank 1 ends its F at 20 ms and its I at 30 ms; I of rank 0 takes no time, W does."""
    stages = (StageCost(0.01, None, 0.0, 0.02), StageCost(0.01, None, 0.01, 0.01))
    timeline = simulate_lists(lower(zb_h1(2, 3)), StageCosts(stages))
    (part,) = idle_parts(timeline)[0]
    assert part == ("downstream", pytest.approx(0.02), pytest.approx(0.03))
