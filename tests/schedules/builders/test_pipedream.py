import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.builders.pipedream import pipedream, pipedream_2bw
from pipesched.schedules.ops import Step
from pipesched.schedules.weights.versions import is_consistent, live_versions, uses
from tests.properties import examples
from tests.schedules.asynchronous_rules import assert_runs, newest, ordinary, reads_of
from tests.schedules.builder_rules import MICROBATCHES, RANKS, assert_one_line, letters, most_in_flight


@st.composite
def periods(draw, most_ranks: int = 6):
    """(p, accumulate, number of periods) that can be built."""
    p = draw(st.integers(1, most_ranks))
    return p, draw(st.integers(p, p + 3)), draw(st.integers(1, 4))


@examples(40)
@given(RANKS, MICROBATCHES)
def test_it_runs_in_the_order_of_1f1b(p, m):
    schedule = pipedream(p, m)
    assert_runs(schedule, p, m)
    assert [letters(row) for row in schedule.ops] == [letters(row) for row in one_f_one_b(p, m).ops]
    assert most_in_flight(schedule) == [min(m, p - k) for k in range(p)]


@examples(40)
@given(RANKS, MICROBATCHES)
def test_a_forward_reads_the_newest_weights_and_its_backward_the_same_again(p, m):
    schedule, expected = pipedream(p, m), newest(p, m)
    assert is_consistent(schedule)
    for (_, k, i), weights in reads_of(schedule).items():
        assert weights == expected["F", k, i]


@pytest.mark.parametrize("p", range(1, 9))
def test_stage_k_of_p_holds_p_minus_k_versions_once_the_run_is_long_enough(p):
    for m in (2 * p - 1, 2 * p, 5 * p):
        assert live_versions(pipedream(p, m)) == {(k, k): p - k for k in range(p)}


@examples(40)
@given(RANKS, MICROBATCHES)
def test_what_is_live_is_the_newest_version_and_those_of_the_microbatches_in_flight(p, m):
    for (rank, _), most in live_versions(pipedream(p, m)).items():
        ahead = p - 1 - rank
        in_flight = [range(step, min(step + ahead + 1, m)) for step in range(m)]  # after so many Steps, when fullest
        assert most == max(len({step, *(max(0, i - ahead) for i in row)}) for step, row in enumerate(in_flight))


def test_the_fifth_minibatch_on_four_stages_reads_forwards_as_in_pipeoptims_figure_1():
    """PipeOptim, Fig. 1-2, counts from 1: W2, W3, W4, W5. Weight stashing reads the same again in its backwards."""
    reads = reads_of(pipedream(4, 8))
    for letter in "FB":
        assert [reads[letter, k, 4][0] + 1 for k in range(4)] == [2, 3, 4, 5]


def test_one_rank_is_plain_training():
    assert [str(op) for op in pipedream(1, 2).ops[0]] == ["0F0", "0B0", "0STEP", "0F1@1", "0B1@1", "0STEP"]


@examples(40)
@given(periods())
def test_double_buffering_steps_once_a_period_in_the_order_of_1f1b(counts):
    p, accumulate, number = counts
    m = accumulate * number
    schedule = pipedream_2bw(p, m, accumulate)
    assert_runs(schedule, p, m, accumulate)
    assert [letters(row) for row in schedule.ops] == [letters(row) for row in one_f_one_b(p, m).ops]


@examples(40)
@given(periods())
def test_every_stage_reads_the_version_before_the_last_in_all_of_a_period(counts):
    p, accumulate, number = counts
    expected = {}
    for b in range(number):
        version = b if p == 1 else max(0, b - 1)
        for i in range(b * accumulate, (b + 1) * accumulate):
            expected |= {(letter, k, i): (version, 0) for letter in "FB" for k in range(p)}
    schedule = pipedream_2bw(p, accumulate * number, accumulate)
    assert reads_of(schedule) == expected
    staleness = {use.staleness for row in schedule.ops for use in uses(row, in_order=True)}
    assert staleness == ({0} if p == 1 or number == 1 else {0, 1})


@pytest.mark.parametrize("p", range(2, 9))
def test_double_buffering_holds_two_versions_on_every_stage(p):
    assert set(live_versions(pipedream_2bw(p, 3 * p, p)).values()) == {2}
    assert set(live_versions(pipedream_2bw(p, 4 * (p + 2), p + 2)).values()) == {2}


def test_one_rank_double_buffered_is_ordinary_training_that_accumulates():
    assert reads_of(pipedream_2bw(1, 12, 3)) == ordinary(1, 12, accumulate=3)
    assert pipedream_2bw(1, 5).ops == pipedream(1, 5).ops


def test_without_a_count_a_period_is_as_long_as_there_are_ranks():
    assert pipedream_2bw(4, 8) == pipedream_2bw(4, 8, 4)
    assert sum(isinstance(op, Step) for op in pipedream_2bw(4, 8).ops[0]) == 2


@pytest.mark.parametrize(
    ("counts", "parts"),
    [
        ((4, 12, 3), ("accumulate 3 on 4 ranks", "at least 4 micro-batches per Step", "try accumulate=4")),
        ((4, 10, 4), ("10 micro-batches", "multiple of the 4 per Step", "try 8 or 12")),
        ((4, 2, None), ("2 micro-batches", "multiple of the 4 per Step", "try 4")),
        ((4, 8, 0), ("accumulate is 0",)),
        ((4, 8, 4.0), ("accumulate is 4.0",)),
        ((0, 0, None), ("num_ranks is 0", "num_microbatches is 0")),
    ],
)
def test_a_period_that_cannot_be_is_refused_with_the_reason(counts, parts):
    with pytest.raises(ScheduleError) as error:
        pipedream_2bw(*counts)
    assert_one_line(str(error.value), *parts)
