"""Sums of gradients put off until their Step."""

from itertools import pairwise

import pytest

from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules import make_schedule
from pipesched.schedules.builders import build, build_generated
from pipesched.schedules.ops import Reduce, Step, backward, forward
from pipesched.schedules.transforms import delay_reduces, replicate
from pipesched.simulator.engine import simulate_lists


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb_h1", "chimera", "wpipe"])
def test_every_sum_stands_right_before_its_step_and_nothing_else_moves(name):
    schedule = replicate(build(name, 4, 8), 2)
    late = delay_reduces(schedule)
    for before, after in zip(schedule.ops, late.ops, strict=True):
        assert [op for op in after if not isinstance(op, Reduce)] == [op for op in before if not isinstance(op, Reduce)]
        assert sorted(map(str, after)) == sorted(map(str, before))
        assert any(isinstance(op, Reduce) for op in after)
        assert all(op == Step(it.stage) for it, op in pairwise(after) if isinstance(it, Reduce))


def test_lists_that_are_made_while_they_are_read_are_put_off_alike():
    kept = delay_reduces(replicate(build("pipedream_2bw", 2, 8), 2))
    read = delay_reduces(replicate(build_generated("pipedream_2bw", 2, 8), 2))
    assert [tuple(ops) for ops in read.lists] == list(kept.ops)


def test_a_backward_hides_a_sum_unless_it_is_late():
    def row(microbatch):
        there = [forward(0, microbatch), forward(1, microbatch), backward(1, microbatch), Reduce(1)]
        return [*there, backward(0, microbatch), Reduce(0), Step(1), Step(0)]

    schedule = make_schedule("x", 2, 2, [row(0), row(1)])
    # two ranks: each of two rounds moves half of 20 bytes at 10 bytes a second, so a sum takes 2 s
    costs = StageCosts((StageCost(1.0, 2.0, weight_bytes=20),) * 2)
    cluster = flat(2, Link(bandwidth_bytes_per_s=10.0))
    # F F B to 4 s; the sum of stage 1 beside B to 6 s, that of stage 0 after it
    assert simulate_lists(schedule, costs, cluster).makespan_s == 8.0
    # both after 6 s, one after the other
    assert simulate_lists(delay_reduces(schedule), costs, cluster).makespan_s == 10.0
