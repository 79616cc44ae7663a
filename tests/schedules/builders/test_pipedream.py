import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.builders.pipedream import pipedream, pipedream_2bw
from pipesched.schedules.ops import Step
from pipesched.schedules.weights.versions import live_versions, uses
from tests.properties import examples
from tests.schedules.asynchronous_rules import agrees, newest, ordinary, reads_of
from tests.schedules.builder_rules import MICROBATCHES, RANKS, letters


@st.composite
def periods(draw, most_ranks: int = 6):
    """(p, accumulate, number of periods) that can be built."""
    p = draw(st.integers(1, most_ranks))
    return p, draw(st.integers(p, p + 3)), draw(st.integers(1, 4))


@examples(25)
@given(RANKS, MICROBATCHES)
def test_it_runs_in_the_order_of_1f1b(p, m):
    order = [letters(row) for row in one_f_one_b(p, m).ops]
    assert [letters(row) for row in pipedream(p, m).ops] == order
    if m % p == 0:
        assert [letters(row) for row in pipedream_2bw(p, m).ops] == order


@examples(25)
@given(RANKS, MICROBATCHES)
def test_a_forward_reads_the_newest_weights_and_its_backward_the_same_again(p, m):
    schedule, expected = pipedream(p, m), newest(p, m)
    assert agrees(schedule)
    for (_, k, i), weights in reads_of(schedule).items():
        assert weights == expected["F", k, i]


@pytest.mark.parametrize("p", range(1, 9))
def test_stage_k_of_p_holds_p_minus_k_versions_once_the_run_is_long_enough(p):
    for m in (2 * p - 1, 2 * p, 5 * p):
        assert live_versions(pipedream(p, m)) == {(k, k): p - k for k in range(p)}


@examples(25)
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


@examples(25)
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
    for accumulate in (p, p + 2):
        assert set(live_versions(pipedream_2bw(p, 4 * accumulate, accumulate)).values()) == {2}


def test_one_rank_double_buffered_is_ordinary_training_that_accumulates():
    assert reads_of(pipedream_2bw(1, 12, 3)) == ordinary(1, 12, accumulate=3)
    assert pipedream_2bw(1, 5).ops == pipedream(1, 5).ops


def test_without_a_count_a_period_is_as_long_as_there_are_ranks():
    assert pipedream_2bw(4, 8) == pipedream_2bw(4, 8, 4)
    assert sum(isinstance(op, Step) for op in pipedream_2bw(4, 8).ops[0]) == 2
