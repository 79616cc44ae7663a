"""Asynchronous schedules: the weights that each op reads, and the versions that are kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import PredictionRule
from pipesched.schedules.builders import CATALOGUE
from pipesched.schedules.builders.naive import naive
from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.builders.pipedream import pipedream, pipedream_2bw
from pipesched.schedules.builders.stale_weights import hybrid, stale_weights, vanilla_1f1b
from pipesched.schedules.builders.weight_prediction import pipeoptim, spectrain, xpipe
from pipesched.schedules.builders.wpipe import wpipe
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute, Send, Step
from pipesched.schedules.weights import live_versions, staleness, uses
from pipesched.simulator.theory import staleness_degree
from tests.properties import examples
from tests.schedules.asynchronous_rules import agrees, newest, ordinary, reads_of
from tests.schedules.builder_rules import MICROBATCHES, RANKS, letters, most_in_flight


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
    assert wpipe(4, 8) == wpipe(4, 8, 4)
    assert pipedream_2bw(4, 8) == pipedream_2bw(4, 8, 4)
    assert sum(isinstance(op, Step) for op in pipedream_2bw(4, 8).ops[0]) == 2


@examples(25)
@given(periods())
def test_the_second_group_reads_its_newest_weights_and_the_first_those_before(counts):
    """W(t+1) = W(t) - lr grad f(W(t-1)) for group 0, W(t+1) = W(t) - lr grad f(W(t)) for group 1."""
    p, accumulate, number = counts
    expected = {}
    for t in range(number):
        for i in range(t * accumulate, (t + 1) * accumulate):
            for k in range(p):
                expected |= {(letter, k, i): (max(0, t - 1), 0) for letter in "FB"}
                expected |= {(letter, p + k, i): (t, 0) for letter in "FB"}
    schedule = wpipe(p, accumulate * number, accumulate)
    assert reads_of(schedule) == expected
    assert agrees(schedule)


@pytest.mark.parametrize("p", range(1, 9))
def test_delay_and_live_versions_of_both_groups_are_those_of_the_paper(p):
    stages = staleness(wpipe(p, 4 * p)).stages
    assert [stage.forward.staleness for stage in stages] == [1] * p + [0] * p
    assert [stage.backward.staleness for stage in stages] == [1] * p + [0] * p
    assert [stage.live_versions for stage in stages] == [2] * p + [1] * p


@pytest.mark.parametrize("p", range(1, 9))
def test_rank_k_has_2_m_minus_k_microbatches_in_flight_where_a_period_is_as_long_as_there_are_ranks(p):
    assert most_in_flight(wpipe(p, 4 * p)) == [2 * p - k for k in range(p)]
    assert staleness(wpipe(p, 4 * p)).in_flight == tuple(2 * p - k for k in range(p))


@pytest.mark.parametrize("p", [2, 4])
def test_longer_periods_hold_m_of_the_first_group_and_of_the_second_what_1f1b_does(p):
    """The paper counts m - k for group 1 at any m; 1F1B needs only p - k."""
    for accumulate in (p + 1, 3 * p):
        schedule = wpipe(p, 4 * accumulate, accumulate)
        assert most_in_flight(schedule) == [accumulate + p - k for k in range(p)]
        assert [stage.in_flight for stage in staleness(schedule).stages[p:]] == [p - k for k in range(p)]


@pytest.mark.parametrize("p", range(2, 5))
def test_a_microbatch_makes_2_times_2_n_minus_1_transfers(p):
    m = 3 * p
    sends = sum(isinstance(op, Send) for row in lower(wpipe(p, m)).ops for op in row)
    assert sends == m * 2 * (2 * p - 1)


@examples(25)
@given(RANKS, MICROBATCHES)
def test_vanilla_1f1b_always_reads_the_newest_weights(p, m):
    assert reads_of(vanilla_1f1b(p, m)) == newest(p, m)


@examples(25)
@given(RANKS, MICROBATCHES)
def test_stale_weights_are_the_newest_of_which_one_version_is_held(p, m):
    schedule = stale_weights(p, m)
    assert reads_of(schedule) == newest(p, m, slack=2)
    assert set(live_versions(schedule).values()) == {1}


@pytest.mark.parametrize("num_register_pairs", range(5))
def test_the_degree_of_staleness_is_that_of_the_paper(num_register_pairs):
    """arXiv:1912.12675, section 4.1: forward stage j of K + 1, from 1, uses weights 2 (K - j + 1) cycles old."""
    stages = staleness(stale_weights(num_register_pairs + 1, 40)).stages
    expected = [staleness_degree(num_register_pairs, j) for j in range(1, num_register_pairs + 2)]
    assert expected[-2:] in ([2, 0], [0])
    assert [stage.forward.staleness for stage in stages] == expected
    assert [stage.backward.staleness for stage in stages] == [0] * len(stages)


@pytest.mark.parametrize("weights", [(1.0,), (3.0, 5.0), (10.0, 20.0, 30.0), (1, 0, 2, 7, 4)])
def test_the_share_of_stale_weights_is_that_before_the_last_pair_of_registers(weights):
    summary = staleness(stale_weights(len(weights), 30))
    assert summary.stale_share(weights) == pytest.approx(sum(weights[:-1]) / sum(weights))


@examples(25)
@given(RANKS, MICROBATCHES, st.data())
def test_hybrid_is_pipelined_first_and_one_at_a_time_after_the_drain(p, m, data):
    pipelined = data.draw(st.integers(0, m))
    schedule = hybrid(p, m, pipelined)
    expected = (newest(p, pipelined, slack=2) if pipelined else {}) | {
        place: weights for place, weights in ordinary(p, m).items() if place[2] >= pipelined
    }
    assert reads_of(schedule) == expected
    for rank, row in enumerate(schedule.ops):
        computes = [op for op in row if isinstance(op, Compute)]
        assert letters(tuple(computes[2 * pipelined :])).split() == [
            f"{letter}{i}" for i in range(pipelined, m) for letter in "FB"
        ]
        first = stale_weights(p, pipelined).ops[rank] if pipelined else ()
        assert row[: len(first)] == first


def test_hybrid_without_pipelining_is_naive_and_with_nothing_else_is_stale_weights():
    assert [letters(row) for row in hybrid(3, 5, 0).ops] == [letters(row) for row in naive(3, 5).ops]
    assert hybrid(3, 5, 5).ops == stale_weights(3, 5).ops
    assert hybrid(3, 5) == hybrid(3, 5, 3)


@pytest.mark.parametrize("builder", [vanilla_1f1b, spectrain, xpipe, pipeoptim])
@examples(25)
@given(p=RANKS, m=MICROBATCHES)
def test_it_runs_in_pipedreams_order_and_holds_no_old_version(builder, p, m):
    schedule = builder(p, m)
    assert [letters(row) for row in schedule.ops] == [letters(row) for row in pipedream(p, m).ops]
    assert set(live_versions(schedule).values()) == {1}


@examples(25)
@given(RANKS, MICROBATCHES)
def test_pipeoptim_looks_ahead_of_the_newest_weights_for_the_version_that_the_backward_finds(p, m):
    expected = newest(p, m)
    for k in range(p):
        for i in range(m):
            at_forward, at_backward = expected["F", k, i][0], expected["B", k, i][0]
            if at_forward > 0:
                expected["F", k, i] = (at_forward, at_backward - at_forward)
            else:  # still warming up: as far as in the steady state
                expected["F", k, i] = (0, p - 1 - k)
    assert reads_of(pipeoptim(p, m)) == expected


@pytest.mark.parametrize("builder", [spectrain, xpipe])
@examples(25)
@given(p=RANKS, m=MICROBATCHES)
def test_spectrain_and_xpipe_aim_at_the_moment_when_the_microbatch_is_back_at_the_first_stage(builder, p, m):
    """Worked out on a clock that gives F and B one tick each: a stage steps every second tick."""
    expected = newest(p, m)
    for k in range(p):
        ticks_from_b_to_the_end = k  # one backward on each of the k stages before
        ahead_of_b = ticks_from_b_to_the_end // 2
        ticks_from_f_to_b = 2 * (p - 1 - k)
        ahead_of_f = ahead_of_b + ticks_from_f_to_b // 2
        for i in range(m):
            expected["F", k, i] = (expected["F", k, i][0], ahead_of_f)
            expected["B", k, i] = (expected["B", k, i][0], ahead_of_b)
    assert reads_of(builder(p, m)) == expected


def test_the_fifth_minibatch_on_four_stages_is_that_of_pipeoptims_figure_2():
    """PipeOptim, Fig. 2 and section III: predicted from W2, W3, W4, W5 by 3, 2, 1, 0 steps; all backwards read W5."""
    reads = reads_of(pipeoptim(4, 10))
    assert [(reads["F", k, 4][0] + 1, reads["F", k, 4][1]) for k in range(4)] == [(2, 3), (3, 2), (4, 1), (5, 0)]
    assert [(reads["B", k, 4][0] + 1, reads["B", k, 4][1]) for k in range(4)] == [(5, 0)] * 4


def test_the_published_code_of_pipeoptim_looks_one_step_further_on_every_stage():
    """s = D - rank in optimizer.py, where the paper's Eq. 4 has D - rank - 1."""
    reads, papers = reads_of(pipeoptim(4, 10, extra=1)), reads_of(pipeoptim(4, 10))
    assert [reads["F", k, 4][1] for k in range(4)] == [4, 3, 2, 1]
    assert all(reads["F", k, i][0] == papers["F", k, i][0] for k in range(4) for i in range(10))
    assert all(reads["B", k, i] == papers["B", k, i] for k in range(4) for i in range(10))


def test_an_entry_has_a_rule_exactly_if_its_ops_look_ahead():
    for entry in CATALOGUE.values():
        looks_ahead = any(ahead for _, ahead in reads_of(entry.build(4, 8)).values())
        assert (entry.traits.prediction is not None) == looks_ahead
    rules = {name: CATALOGUE[name].traits.prediction for name in ("spectrain", "xpipe", "pipeoptim")}
    assert rules == {
        "spectrain": PredictionRule.MOMENTUM,
        "xpipe": PredictionRule.ADAM,
        "pipeoptim": PredictionRule.OPTIMIZER,
    }
