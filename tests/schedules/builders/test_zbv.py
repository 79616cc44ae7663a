import random

import pytest
from hypothesis import given, settings

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import zbv as module
from pipesched.schedules.builders.zbv import zbv
from pipesched.schedules.ops import stages_of
from tests.schedules.builder_rules import (
    MICROBATCHES,
    RANKS,
    assert_complete,
    assert_one_line,
    assert_sound,
    finish_times,
    most_in_flight,
    parts,
)
from tests.schedules.drawings import cells, drawn, is_in
from tests.schedules.torch_schedules import NUM_SHAPES, built, vee, words_of

DRAWING = """
    rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2 ..
    rank 1  ..  1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
"""


def test_it_runs_as_drawn():
    assert drawn(zbv(2, 3), cell=str) == cells(DRAWING)
    assert is_in(DRAWING, module.__doc__)


@settings(deadline=None, max_examples=60)
@given(RANKS, MICROBATCHES)
def test_it_is_sound_on_a_v(p, m):
    schedule = zbv(p, m)
    assert_sound(schedule, 2 * p, m)
    assert [stages_of(row) for row in schedule.ops] == [(k, 2 * p - 1 - k) for k in range(p)]


def test_it_orders_as_pytorch_lists():
    chance = random.Random(4)
    fewer = 0
    for _ in range(NUM_SHAPES):
        p, m = chance.randint(1, 8), chance.randint(1, 24)
        fewer += m < 2 * p - 1
        assert words_of(zbv(p, m)) == built("ScheduleZBVZeroBubble", p, m, vee(p)), f"p = {p}, m = {m}"
    assert 10 < fewer < 90


@pytest.mark.parametrize("p", range(1, 17))
def test_with_equal_chunk_times_no_rank_is_idle_between_its_ops_and_none_holds_more_than_2_p_chunks(p):
    for m in (2 * p - 1, 2 * p, 4 * p, 64):
        schedule = zbv(p, m)
        assert_complete(schedule)
        over = finish_times(schedule)
        assert max(over.values()) == 6 * m + p - 1
        for rank, row in enumerate(schedule.ops):
            assert [over[op] for op in parts(row)] == list(range(rank + 1, rank + 6 * m + 1))
        assert most_in_flight(schedule) == [2 * p] * p


def test_with_fewer_microbatches_the_order_is_that_of_2_p_minus_1_with_those_left_out():
    for p in range(1, 7):
        whole = zbv(p, 2 * p - 1)
        for m in range(1, 2 * p - 1):
            left = [[op for op in parts(row) if op.microbatch < m] for row in whole.ops]
            assert [parts(row) for row in zbv(p, m).ops] == left


def test_bad_counts_are_named_in_one_line():
    with pytest.raises(ScheduleError) as error:
        zbv(0, 0)
    assert_one_line(str(error.value), "num_ranks is 0", "num_microbatches is 0")
