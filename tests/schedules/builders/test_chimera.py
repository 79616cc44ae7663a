import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders.chimera import chimera
from pipesched.schedules.ops import Reduce, Step, stages_of
from tests.properties import examples
from tests.schedules.builder_rules import (
    assert_complete,
    assert_one_line,
    assert_ordered,
    assert_sound,
    finish_times,
    most_in_flight,
    parts,
)


@examples(30)
@given(half=st.integers(1, 4), units=st.integers(1, 3))
def test_it_is_sound(half, units):
    assert_sound(chimera(2 * half, 2 * half * units), 2 * half, 2 * half * units)


@pytest.mark.parametrize("p", range(2, 17, 2))
def test_the_bubble_is_the_papers_for_equal_times_and_for_any_number_of_units(p):
    for m in {p, 2 * p, 3 * p, 64 - 64 % p}:
        schedule = chimera(p, m)
        assert_complete(schedule)
        assert_ordered(schedule)
        over = finish_times(schedule)
        makespan = max(over.values())
        assert (makespan - 2 * m) / makespan == (p - 2) / (2 * m + p - 2)
        assert len(over) == 2 * m * p


@pytest.mark.parametrize("p", range(2, 17, 2))
def test_a_backward_of_twice_the_time_makes_the_papers_other_bubble_with_one_unit(p):
    makespan = max(finish_times(chimera(p, p), {"F": 1.0, "B": 2.0}).values())
    assert (makespan - 3 * p) / makespan == pytest.approx((p - 2) / (1.5 * p + p - 2), rel=1e-12)


@pytest.mark.parametrize("p", range(2, 17, 2))
def test_the_middle_ranks_hold_p_microbatches_the_outermost_half_of_them_and_one(p):
    for units in (1, 2, 3):
        peaks = most_in_flight(chimera(p, p * units))
        assert peaks == [p // 2 + 1 + min(k, p - 1 - k) for k in range(p)]
        assert (min(peaks), max(peaks)) == (p // 2 + 1, p)


def test_half_of_every_unit_goes_down_the_ranks_and_half_goes_up():
    route = chimera(6, 12).routes()
    for (stage, i), rank in route.items():
        assert rank == (stage if i % 6 < 3 else 5 - stage)


def test_a_unit_is_repeated_in_the_order_of_the_first_and_fits_between_its_backwards():
    p = 6
    first = [parts(row) for row in chimera(p, p).ops]
    both = [parts(row) for row in chimera(p, 2 * p).ops]
    for once, twice in zip(first, both, strict=True):
        for unit in range(2):
            unit_ops = [(op.phase, op.stage, op.microbatch - unit * p) for op in twice if op.microbatch // p == unit]
            assert unit_ops == [(op.phase, op.stage, op.microbatch) for op in once]
    assert [op.microbatch // p for op in both[0]] != sorted(op.microbatch // p for op in both[0])


def test_both_replicas_reduce_both_stages_then_step_them():
    for rank, row in enumerate(chimera(4, 4).ops):
        low, high = sorted((rank, 3 - rank))
        assert stages_of(row) == (low, high)
        assert row[-4:] == (Reduce(low), Reduce(high), Step(low), Step(high))


@pytest.mark.parametrize(
    ("p", "m", "parts_of_text"),
    [
        (5, 10, ("got 5 ranks, expected an even number", "try 4 or 6")),
        (1, 4, ("got 1 ranks", "try 2")),
        (4, 3, ("got 3 micro-batches for 4 ranks, expected a multiple of 4", "try 4")),
        (4, 10, ("got 10 micro-batches", "try 8 or 12")),
        (0, 0, ("num_ranks is 0", "num_microbatches is 0")),
    ],
)
def test_what_it_cannot_do_is_refused_with_what_it_can(p, m, parts_of_text):
    with pytest.raises(ScheduleError) as error:
        chimera(p, m)
    assert_one_line(str(error.value), *parts_of_text)
