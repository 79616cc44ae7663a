"""Candidates by bounds: the ranking of an exhaustive search, and few evaluations."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.simulator.search import BestFirst, BoundedSetting, evaluate_in_turn


def queue_of(costs, top=99):
    """Candidates by name under (bound, cost); a cost of None: it cannot be taken."""
    return BestFirst((BoundedSetting(bound, n, name) for n, (name, (bound, _)) in enumerate(costs.items())), top)


def judge_of(costs):
    def judge(bounded):
        cost = costs[bounded.setting][1]
        return replace(bounded, cost=math.inf if cost is None else cost, outcome=f"{bounded.setting} {cost}")

    return judge


def several_at_once(workers):
    """A runner that has so many under way, of which the last that was begun is the first to end."""

    def run(judge, take):
        running = []
        while True:
            while len(running) < workers and (items := take()):
                running.append(items)
            if not running:
                return
            yield from map(judge, running.pop())

    return run


def names(refined):
    return [bounded.setting for bounded in refined]


def test_what_cannot_be_the_best_is_never_evaluated():
    costs = {"a": (5, 9), "b": (3, 6), "c": (4, None), "d": (7, 8)}
    queue = queue_of(costs, top=1)
    assert names(queue.refine(judge_of(costs), evaluate_in_turn)) == ["b", "c", "a"]
    assert queue.ranked == ("b 6",)
    assert queue.is_settled
    assert list(queue.open_bounds) == [7]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 9)), max_size=12),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_the_ranking_is_that_of_all_costs_and_the_same_for_any_number_of_workers(pairs, top, workers):
    costs = {number: (bound, None if more is None else bound + more) for number, (bound, more) in enumerate(pairs)}
    by_one, by_several = queue_of(costs, top), queue_of(costs, top)
    evaluated = names(by_one.refine(judge_of(costs), evaluate_in_turn))
    assert set(evaluated) <= set(names(by_several.refine(judge_of(costs), several_at_once(workers))))
    taken = sorted((cost, number) for number, (_, cost) in costs.items() if cost is not None)
    assert by_one.ranked == by_several.ranked == tuple(f"{number} {cost}" for cost, number in taken[:top])
    assert names(by_one.refined) == evaluated
    assert sorted(by_several.refined) == sorted(by_one.refined)
    assert by_one.is_settled
    assert by_several.is_settled


def test_a_bound_may_rise_several_times():
    def judge(bounded):
        if bounded.num_refined < 3:
            return replace(bounded, cost=bounded.cost + 1, num_refined=bounded.num_refined + 1)
        return replace(bounded, outcome=bounded.setting)

    queue = BestFirst([BoundedSetting(1, 0, "a"), BoundedSetting(3, 1, "b")], 1)
    assert names(queue.refine(judge, evaluate_in_turn)) == ["a", "a", "a", "b", "a"]
    assert queue.ranked == ("a",)


def test_a_search_that_is_stopped_loses_no_candidate():
    def stop(bounded):
        raise KeyboardInterrupt

    queue = BestFirst([BoundedSetting(1, 0, "a"), BoundedSetting(2, 1, "b")], 1)
    with pytest.raises(KeyboardInterrupt):
        list(queue.refine(stop, evaluate_in_turn))
    assert sorted(queue.open_bounds) == [1, 2]
    assert not queue.is_settled


def test_when_it_is_late_nothing_else_is_begun():
    costs = {"a": (1, 5), "b": (2, 3), "c": (4, 4)}
    queue = queue_of(costs)
    late = iter([False, False, True])
    assert names(queue.refine(judge_of(costs), evaluate_in_turn, lambda: next(late))) == ["a", "b"]
    assert queue.ranked == ("b 3", "a 5")
    assert not queue.is_settled
