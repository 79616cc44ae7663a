import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders.interleaved import chunk_order, interleaved, round_size
from pipesched.schedules.ops import Step, stages_of
from tests.properties import examples
from tests.schedules.builder_rules import MICROBATCHES, RANKS, assert_one_line, assert_sound, most_in_flight
from tests.schedules.drawings import drawn


def allowed(p: int, m: int) -> bool:
    return m % max(1, m // p) == 0


@examples(80)
@given(RANKS, MICROBATCHES, st.integers(1, 4))
def test_it_is_sound(p, m, v):
    assume(allowed(p, m))
    schedule = interleaved(p, m, v)
    assert_sound(schedule, p * v, m)
    assert [stages_of(row) for row in schedule.ops] == [tuple(range(k, p * v, p)) for k in range(p)]


@examples(80)
@given(RANKS, st.integers(1, 4), st.integers(1, 4))
def test_in_flight_is_megatrons_warmup_and_one_more(p, rounds, v):
    """Megatron-LM, get_num_microbatches: (p - k - 1) * 2 + (v - 1) * group size, at most all."""
    m = p * rounds
    assert most_in_flight(interleaved(p, m, v)) == [min(m * v, 2 * (p - k - 1) + (v - 1) * p + 1) for k in range(p)]


@pytest.mark.parametrize(("p", "v", "rounds"), [(2, 2, 2), (4, 2, 2), (4, 3, 3), (3, 4, 1), (8, 2, 2)])
def test_the_bubble_is_that_of_1f1b_divided_by_the_chunks(p, v, rounds):
    """With F and B one column each: 2 m v columns of work and 2 (p - 1) of bubble."""
    m = p * rounds
    assert len(drawn(interleaved(p, m, v))[0]) == 2 * m * v + 2 * (p - 1)


def test_one_rank_passes_each_microbatch_through_all_chunks():
    assert [str(op) for op in interleaved(1, 1, 3).ops[0]] == ["0F0", "1F0", "2F0", "2B0", "1B0", "0B0"] + [
        f"{k}STEP" for k in range(3)
    ]


def test_fewer_microbatches_than_ranks_make_one_round():
    assert round_size("interleaved", 8, 3) == 3
    assert chunk_order(3, 2, 3) == ([0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2])


def test_rounds_of_equal_size_follow_one_another():
    assert round_size("interleaved", 4, 10) == 5
    assert chunk_order(4, 2, 2) == ([0, 0, 1, 1, 0, 0, 1, 1], [0, 1, 0, 1, 2, 3, 2, 3])


def test_every_stage_of_a_rank_steps_once_at_the_end():
    for rank, row in enumerate(interleaved(2, 4, 3).ops):
        assert row[-3:] == (Step(rank), Step(rank + 2), Step(rank + 4))
        assert sum(isinstance(op, Step) for op in row) == 3


def test_unequal_rounds_are_refused_with_the_nearest_counts_that_work():
    for p, m in ((p, m) for p in range(1, 9) for m in range(1, 40) if not allowed(p, m)):
        with pytest.raises(ScheduleError) as error:
            interleaved(p, m)
        assert_one_line(str(error.value), f"got {m} micro-batches for {p} ranks")
        below, above = map(int, re.findall(r"\d+", str(error.value).split("try ")[1]))
        assert below == max(n for n in range(1, m) if allowed(p, n))
        assert above == min(n for n in range(m, 2 * m + p) if allowed(p, n))
