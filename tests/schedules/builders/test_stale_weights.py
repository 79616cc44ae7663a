import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules.builders.naive import naive
from pipesched.schedules.builders.pipedream import pipedream
from pipesched.schedules.builders.stale_weights import hybrid, stale_weights, vanilla_1f1b
from pipesched.schedules.ops import Compute
from pipesched.schedules.weights import live_versions, staleness
from pipesched.simulator.theory import staleness_degree
from tests.properties import examples
from tests.schedules.asynchronous_rules import newest, ordinary, reads_of
from tests.schedules.builder_rules import MICROBATCHES, RANKS, letters


@examples(25)
@given(RANKS, MICROBATCHES)
def test_vanilla_1f1b_is_pipedream_that_always_reads_the_newest_weights(p, m):
    schedule = vanilla_1f1b(p, m)
    assert [letters(row) for row in schedule.ops] == [letters(row) for row in pipedream(p, m).ops]
    assert reads_of(schedule) == newest(p, m)
    assert set(live_versions(schedule).values()) == {1}


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
