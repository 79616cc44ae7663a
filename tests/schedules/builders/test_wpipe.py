import pytest
from hypothesis import given

from pipesched.schedules.builders.wpipe import wpipe
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Send
from pipesched.schedules.weights import staleness
from tests.properties import examples
from tests.schedules.asynchronous_rules import agrees, reads_of
from tests.schedules.builder_rules import most_in_flight
from tests.schedules.builders.test_pipedream import periods


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


def test_without_a_count_a_period_is_as_long_as_there_are_ranks():
    assert wpipe(4, 8) == wpipe(4, 8, 4)
