import pytest
from hypothesis import given

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders.naive import naive
from pipesched.schedules.ops import Step
from tests.properties import examples
from tests.schedules.builder_rules import MICROBATCHES, RANKS, assert_one_line, assert_sound, letters, most_in_flight


@examples(30)
@given(RANKS, MICROBATCHES)
def test_it_is_sound_and_holds_one_microbatch(p, m):
    schedule = naive(p, m)
    assert_sound(schedule, p, m)
    assert most_in_flight(schedule) == [1] * p


def test_one_rank_takes_micro_batches_in_turn_and_steps_once():
    row = naive(1, 3).ops[0]
    assert letters(row) == "F0 B0 F1 B1 F2 B2"
    assert row.count(Step(0)) == 1


def test_both_bad_counts_are_named_in_one_line():
    with pytest.raises(ScheduleError) as error:
        naive(0, -1)
    assert_one_line(str(error.value), "num_ranks is 0", "num_microbatches is -1", "at least 1")
