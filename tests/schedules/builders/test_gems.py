import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders.gems import gems
from pipesched.schedules.ops import Compute, Reduce, Step
from tests.properties import examples
from tests.schedules.builder_rules import assert_one_line, assert_sound, finish_times, most_in_flight


@examples(50)
@given(p=st.integers(2, 8), m=st.integers(2, 16))
def test_it_is_sound_and_holds_one_microbatch_on_a_rank(p, m):
    schedule = gems(p, m)
    assert_sound(schedule, p, m)
    assert most_in_flight(schedule) == [1] * p


@pytest.mark.parametrize("p", range(2, 17))
def test_a_microbatch_enters_every_p_plus_1_slots_and_takes_2_p(p):
    for m in (2, 3, 8, 64):
        over = finish_times(gems(p, m))
        assert len(over) == 2 * m * p
        assert max(over.values()) == (m - 1) * (p + 1) + 2 * p


def test_at_most_two_microbatches_are_on_their_way_one_of_them_in_each_direction():
    p, m = 5, 7
    over = finish_times(gems(p, m))

    def starts(letter, stage, i):
        return over[next(op for op in over if (op.phase.value, op.stage, op.microbatch) == (letter, stage, i))] - 1

    for i in range(m - 2):
        assert starts("F", 0, i + 2) >= starts("B", 0, i) + 1
        assert starts("B", p - 1, i) < starts("F", 0, i + 1) < starts("B", 0, i)


def test_even_microbatches_go_down_the_ranks_and_odd_ones_up():
    for (stage, i), rank in gems(5, 7).routes().items():
        assert rank == (stage if i % 2 == 0 else 4 - stage)


def test_replicas_reduce_and_step_and_the_middle_stage_of_an_odd_number_of_ranks_only_steps():
    ends = [tuple(op for op in row if not isinstance(op, Compute)) for row in gems(3, 4).ops]
    assert ends == [(Reduce(0), Reduce(2), Step(0), Step(2)), (Step(1),), (Reduce(0), Reduce(2), Step(0), Step(2))]


@pytest.mark.parametrize(
    ("p", "m", "parts"),
    [
        (1, 4, ("got 1 ranks and 4 micro-batches", "try 2 and 4")),
        (4, 1, ("got 4 ranks and 1 micro-batches", "try 4 and 2")),
        (0, 0, ("num_ranks is 0", "num_microbatches is 0")),
    ],
)
def test_what_it_cannot_do_is_refused_with_what_it_can(p, m, parts):
    with pytest.raises(ScheduleError) as error:
        gems(p, m)
    assert_one_line(str(error.value), *parts)
