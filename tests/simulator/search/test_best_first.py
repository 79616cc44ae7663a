"""Candidates by bounds: the ranking of an exhaustive search, and few evaluations."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.simulator.search import BestFirst, BoundedCandidate


def queue_of(costs, evaluated):
    """Candidates by name under (bound, cost); a cost of None: it cannot be taken."""

    def refine(bounded):
        evaluated.append(bounded.candidate)
        cost = costs[bounded.candidate][1]
        return None if cost is None else replace(bounded, cost=cost, outcome=f"{bounded.candidate} {cost}")

    return BestFirst((BoundedCandidate(bound, n, name) for n, (name, (bound, _)) in enumerate(costs.items())), refine)


def test_what_cannot_be_the_best_is_never_evaluated():
    evaluated = []
    queue = queue_of({"a": (5, 9), "b": (3, 6), "c": (4, None), "d": (7, 8)}, evaluated)
    ranked = queue.ranked()
    assert next(ranked) == "b 6"
    assert evaluated == ["b", "c", "a"]
    assert next(ranked) == "d 8"
    assert list(ranked) == ["a 9"]


@given(st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 9)), max_size=12))
def test_the_ranking_is_that_of_all_costs(pairs):
    costs = {number: (bound, None if more is None else bound + more) for number, (bound, more) in enumerate(pairs)}
    ranked = list(queue_of(costs, []).ranked())
    taken = sorted((cost, number) for number, (_, cost) in costs.items() if cost is not None)
    assert ranked == [f"{number} {cost}" for cost, number in taken]


def test_what_is_first_is_taken_only_with_its_outcome():
    queue = queue_of({"a": (1, 2), "b": (3, 4)}, [])
    assert queue.take() is None
    queue.advance()
    assert queue.take() == "a 2"
    assert [waiting.candidate for waiting in queue] == ["b"]


def test_a_step_that_is_stopped_loses_no_candidate():
    def stop(bounded):
        raise KeyboardInterrupt

    queue = BestFirst([BoundedCandidate(1, 0, "a")], stop)
    with pytest.raises(KeyboardInterrupt):
        queue.advance()
    assert len(queue) == 1
