import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders.interleaved_zero_bubble import interleaved_zb
from pipesched.schedules.builders.zero_bubble import zb_h1
from pipesched.schedules.ops import Step, stages_of
from tests.properties import examples
from tests.schedules.builder_rules import MICROBATCHES, RANKS, assert_one_line, assert_sound, most_in_flight
from tests.schedules.drawings import drawn

CHUNKS = st.integers(1, 4)


def rounds(p: int, m: int) -> int:
    return max(1, m // p)


@examples(80)
@given(RANKS, MICROBATCHES, CHUNKS)
def test_it_is_sound_and_holds_the_same_on_every_rank(p, m, v):
    assume(m % rounds(p, m) == 0)
    schedule = interleaved_zb(p, m, v)
    assert_sound(schedule, p * v, m)
    assert [stages_of(row) for row in schedule.ops] == [tuple(range(k, p * v, p)) for k in range(p)]
    assert most_in_flight(schedule) == [min(m * v, (v - 1) * (m // rounds(p, m)) + p)] * p


@examples(30)
@given(RANKS, MICROBATCHES)
def test_with_one_chunk_it_is_h1(p, m):
    assume(m % rounds(p, m) == 0)
    assert interleaved_zb(p, m, 1).ops == zb_h1(p, m).ops


@pytest.mark.parametrize(("p", "v", "turns"), [(2, 2, 2), (4, 2, 2), (4, 3, 3), (3, 4, 1), (8, 2, 2)])
def test_the_bubble_is_that_of_h1_divided_by_the_chunks(p, v, turns):
    """With F, I and W of a chunk one column each: 3 m v columns of work and p - 1 of bubble."""
    m = p * turns
    assert len(drawn(interleaved_zb(p, m, v))[0]) == 3 * m * v + p - 1


def test_every_stage_of_a_rank_steps_once_at_the_end():
    for rank, row in enumerate(interleaved_zb(2, 4, 3).ops):
        assert row[-3:] == (Step(rank), Step(rank + 2), Step(rank + 4))
        assert sum(isinstance(op, Step) for op in row) == 3


def test_unequal_rounds_are_refused_with_the_nearest_counts_that_work():
    with pytest.raises(ScheduleError) as error:
        interleaved_zb(4, 9)
    assert_one_line(str(error.value), "interleaved_zb: got 9 micro-batches for 4 ranks")
    assert [int(count) for count in re.findall(r"\d+", str(error.value).split("try ")[1])] == [8, 10]
