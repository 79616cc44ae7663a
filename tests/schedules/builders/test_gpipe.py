import pytest
from hypothesis import given

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.ops import Step
from tests.properties import examples
from tests.schedules.builder_rules import MICROBATCHES, RANKS, assert_one_line, assert_sound, letters, most_in_flight


@examples(30)
@given(RANKS, MICROBATCHES)
def test_it_is_sound_and_holds_all_microbatches(p, m):
    schedule = gpipe(p, m)
    assert_sound(schedule, p, m)
    assert most_in_flight(schedule) == [m] * p


@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 3), (3, 1), (5, 2), (4, 8)])
def test_every_rank_runs_all_forwards_then_all_backwards_then_one_step(p, m):
    order = [f"F{i}" for i in range(m)] + [f"B{i}" for i in range(m)]
    for rank, row in enumerate(gpipe(p, m).ops):
        assert letters(row) == " ".join(order)
        assert row[2 * m :] == (Step(rank),)


@pytest.mark.parametrize(("p", "m"), [(0, 4), (4, 0), (2, 1.5), ("2", 4), (True, 4)])
def test_a_bad_count_is_one_line(p, m):
    with pytest.raises(ScheduleError) as error:
        gpipe(p, m)
    assert_one_line(str(error.value), "expected an integer of at least 1")
