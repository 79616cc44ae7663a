import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.looped_bfs import looped_bfs
from pipesched.schedules.ops import Step, stages_of
from tests.properties import examples
from tests.schedules.builder_rules import MICROBATCHES, RANKS, assert_sound, most_in_flight
from tests.schedules.drawings import drawn

CHUNKS = st.integers(1, 4)


@examples(60)
@given(RANKS, MICROBATCHES, CHUNKS)
def test_it_is_sound_and_holds_all_microbatches_of_all_chunks(p, m, v):
    schedule = looped_bfs(p, m, v)
    assert_sound(schedule, p * v, m)
    assert [stages_of(row) for row in schedule.ops] == [tuple(range(k, p * v, p)) for k in range(p)]
    assert most_in_flight(schedule) == [m * v] * p


@pytest.mark.parametrize(("p", "m", "v"), [(2, 2, 2), (4, 8, 3), (3, 7, 4), (5, 9, 2)])
def test_the_bubble_is_gpipes_divided_by_the_chunks(p, m, v):
    """With F and B of a chunk one column each: GPipe's 2 (p - 1) columns of bubble beside v times as many of work."""
    assert len(drawn(gpipe(p, m))[0]) - 2 * m == len(drawn(looped_bfs(p, m, v))[0]) - 2 * m * v == 2 * (p - 1)


def test_the_backwards_are_the_forwards_reversed():
    row = [str(op) for op in looped_bfs(3, 4, 2).ops[1][:-2]]
    assert row[:8] == ["1F0", "1F1", "1F2", "1F3", "4F0", "4F1", "4F2", "4F3"]
    assert row[8:] == [text.replace("F", "B") for text in reversed(row[:8])]


def test_every_stage_of_a_rank_steps_once_at_the_end():
    for rank, row in enumerate(looped_bfs(2, 4, 3).ops):
        assert row[-3:] == (Step(rank), Step(rank + 2), Step(rank + 4))
