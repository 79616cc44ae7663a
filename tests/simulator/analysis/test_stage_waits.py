"""Whom devices wait for, in Timelines whose every instant is known."""

import math

import pytest

from pipesched.schedules import Timeline
from pipesched.schedules.builders import build
from pipesched.schedules.ops import Recv
from pipesched.simulator.analysis import usage, waits_by_stage
from tests.hand_timelines import play

WAITS = ("upstream", "downstream", "busy_link", "transfer")


@pytest.mark.parametrize("microbatches", [1, 2, 8])
def test_under_gpipe_the_first_rank_waits_for_the_second(microbatches):
    """F takes 1 s, B 2 s, a message 0.5 s: the first gradient comes 4 s after the last forward of rank 0 is over."""
    timeline = play(build("gpipe", 2, microbatches), transfer_s=0.5)
    assert waits_by_stage(timeline) == pytest.approx({1: 4.0})


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb_h1", "zbv"])
def test_waits_for_all_stages_are_the_idle_time_charged_to_messages(name):
    timeline = play(build(name, 4, 8), transfer_s=0.25)
    charged = [seconds for use in usage(timeline) for cause, seconds in use.idle_by_cause_s if cause in WAITS]
    assert sum(waits_by_stage(timeline).values()) == pytest.approx(math.fsum(charged))


def test_a_slow_stage_is_the_one_that_is_waited_for():
    timeline = play(build("1f1b", 4, 16), seconds=lambda op: 5.0 if op.stage == 2 else 1.0)
    assert next(iter(waits_by_stage(timeline))) == 2


def test_nobody_waits_in_a_timeline_without_messages():
    timeline = play(build("1f1b", 1, 4))
    assert not any(isinstance(span.op, Recv) for span in timeline.spans)
    assert waits_by_stage(timeline) == waits_by_stage(Timeline("empty", "measured", (), (0,))) == {}
