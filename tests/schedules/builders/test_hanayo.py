import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders.hanayo import hanayo
from tests.properties import examples
from tests.schedules.builder_rules import (
    assert_complete,
    assert_one_line,
    assert_ordered,
    assert_sound,
    finish_times,
    most_in_flight,
)


@examples(40)
@given(p=st.integers(1, 6), m=st.integers(1, 13), waves=st.integers(1, 3))
def test_it_is_sound_for_any_number_of_microbatches_and_holds_at_most_p_of_them(p, m, waves):
    schedule = hanayo(p, m, waves)
    assert_sound(schedule, 2 * waves * p, m)
    assert max(most_in_flight(schedule)) == 2 * waves * min(m, p)


def test_the_stages_go_down_the_ranks_and_up_again_wave_by_wave():
    route = hanayo(3, 1, waves=2).routes()
    assert [route[stage, 0] for stage in range(12)] == [0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0]


@pytest.mark.parametrize("waves", [1, 2, 4])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 7, 8, 16])
def test_with_equal_times_the_bubble_is_2_p_minus_2_chunks_however_many_rounds(p, waves):
    for rounds in (1, 2, 3):
        m = p * rounds
        schedule = hanayo(p, m, waves)
        assert_complete(schedule)
        assert_ordered(schedule)
        assert max(finish_times(schedule).values()) == 4 * waves * m + 2 * (p - 1)


def greedy_makespan(p: int, m: int, waves: int) -> int:
    """A slot per op, at most p micro-batches let in: each rank takes a backward that is ready, else a forward."""
    num_stages = 2 * waves * p
    home = [[*range(p), *range(p - 1, -1, -1)][stage % (2 * p)] for stage in range(num_stages)]
    at = dict.fromkeys(range(m), 0)  # 0 to 2 num_stages: how many of its ops a micro-batch has behind it
    slot = 0
    while any(done < 2 * num_stages for done in at.values()):
        let_in = [i for i in at if at[i] < 2 * num_stages][:p]
        for rank in range(p):
            here = [i for i in let_in if home[min(at[i], 2 * num_stages - 1 - at[i])] == rank]
            if here:
                chosen = min(here, key=lambda i: (at[i] < num_stages, i))
                let_in.remove(chosen)
                at[chosen] += 1
        slot += 1
    return slot


@pytest.mark.parametrize(("p", "waves"), [(1, 2), (2, 1), (2, 2), (3, 2), (4, 1), (4, 2), (6, 1), (8, 2)])
def test_a_greedy_rank_that_prefers_backwards_takes_as_long(p, waves):
    for rounds in (1, 2, 4):
        m = p * rounds
        assert greedy_makespan(p, m, waves) == max(finish_times(hanayo(p, m, waves)).values())


def test_bad_counts_are_named_in_one_line():
    with pytest.raises(ScheduleError) as error:
        hanayo(0, 0, 0)
    assert_one_line(str(error.value), "num_ranks is 0", "num_microbatches is 0", "waves is 0")
