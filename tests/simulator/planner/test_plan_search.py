import math
import random
from dataclasses import replace
from multiprocessing import active_children
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.cli.terminal import print_results
from pipesched.schedules.columns import machine_code
from pipesched.simulator import USUAL_NETWORK, NetworkOptions
from pipesched.simulator.planner import plan_search, search_plans
from pipesched.simulator.planner.bound import Bounds
from pipesched.simulator.planner.plan_judge import PlanJudge
from pipesched.simulator.planner.request import candidates
from pipesched.workflows.planning import PlanSearch
from tests.properties import examples
from tests.simulator.planner.instances import random_request

ALL = ("gpipe", "1f1b", "interleaved", "zb_h1", "chimera", "pipedream", "pipedream_2bw", "wpipe", "1f1b_rr")
SLACK = 1 + 1e-9


def predicted(request, chosen=lambda plans: plans):
    """Predict every candidate in full, or those that are chosen."""
    cuts = request.cuts()
    predictions = []
    for candidate in chosen(list(candidates(request, cuts))):
        costs = cuts.costs_of(candidate)
        predictions.append((candidate, costs, PlanJudge(request).weigh(candidate)))
    return predictions


@pytest.mark.slow
@examples(4)
@given(seed=st.integers(0, 10**6))
def test_the_ranking_is_that_of_an_exhaustive_search_but_for_faster_cuts(seed):
    request = random_request(random.Random(seed))
    outcomes = [outcome for _, _, outcome in predicted(request) if outcome.fits]
    fits = sorted((outcome.throughput for outcome in outcomes), reverse=True)
    ranking = search_plans(request, top=5)
    assert ranking.is_complete
    throughputs, known = [plan.throughput for plan in ranking.ranked], {plan for _, plan in ranking.considered}
    assert throughputs == sorted(throughputs, reverse=True)
    best = {}  # of the cuts of a candidate, of which one is left
    for outcome in outcomes:
        uncut = replace(outcome.setting, partition=())
        best[uncut] = max(outcome.throughput, best.get(uncut, 0.0))
    of_candidates = sorted(best.values(), reverse=True)
    assert all(own >= its * (1 - 1e-12) for own, its in zip(throughputs, of_candidates, strict=False))
    as_considered = [plan.throughput for plan in ranking.ranked if plan.setting in known]
    assert all(any(own == pytest.approx(its, rel=1e-12) for its in fits[:5]) for own in as_considered)
    assert bool(throughputs) == bool(fits)
    assert ranking.headroom == (pytest.approx(0, abs=1e-9) if fits else math.inf)


def limited(memory_bytes):
    request = random_request(random.Random(7))
    devices = tuple(replace(device, memory_bytes=memory_bytes) for device in request.cluster.devices)
    return replace(request, cluster=replace(request.cluster, devices=devices))


@pytest.mark.slow
def test_in_several_processes_the_same_is_ranked_and_rejected():
    request = limited(400)
    here = search_plans(request, top=3)
    assert search_plans(request, top=3, workers=2) == here
    assert here.ranked
    assert here.rejected


@pytest.mark.slow
def test_a_search_in_several_processes_that_is_interrupted_gives_the_best_so_far():
    def stop(progress):
        if progress.best:
            raise KeyboardInterrupt

    before, request = active_children(), limited(None)
    ranking = search_plans(request, workers=2, tick=stop)
    assert not ranking.is_complete
    assert ranking.ranked
    best = search_plans(request, top=1).ranked[0].throughput
    assert ranking.ranked[0].throughput * (1 + ranking.headroom) >= best * (1 - 1e-9)
    assert active_children() == before


def test_the_limit_of_time_does_not_count_compiling(monkeypatch):
    request = limited(10**15)
    stopped = search_plans(request, top=3, time_limit_s=0)
    monkeypatch.setattr(machine_code, "compiling_s", lambda: 2 * monotonic())  # as if it took more than all the time
    assert len(stopped.ranked) == 1
    assert not stopped.is_complete
    assert search_plans(request, top=3, time_limit_s=0) == search_plans(request, top=3)


def test_of_an_interrupted_search_nothing_is_told_that_takes_longer_than_an_answer_may(monkeypatch, capsys):
    def stop(progress):
        if progress.best:
            raise KeyboardInterrupt

    monkeypatch.setattr(plan_search, "_QUICK_OPS", 0)
    request = limited(None)
    ranking = search_plans(request, tick=stop)
    assert [plan.parts for plan in ranking.ranked] == [None] * len(ranking.ranked) != []
    assert request.plan_of(ranking.ranked[0]).predicted.communication_fraction is None
    print_results(PlanSearch(request, ranking).tables())
    out = capsys.readouterr().out
    assert "stopped" in out
    assert "bubble" not in out


@examples(12)
@given(seed=st.integers(0, 10**6))
def test_no_bound_is_above_what_it_bounds(seed):
    chance = random.Random(seed)
    network = chance.choice([USUAL_NETWORK, NetworkOptions("eager"), NetworkOptions("rendezvous", "blocking", 7, 0.5)])
    request = random_request(chance, schedules=ALL, network=network)
    bounds = Bounds(request.cluster)
    for candidate, costs, outcome in predicted(request, lambda all_of: chance.sample(all_of, min(8, len(all_of)))):
        if outcome.seconds is None:
            continue
        least = bounds.of(candidate, costs)
        assert least.seconds <= outcome.seconds * SLACK, candidate
        assert max(least.peak_bytes.values()) <= outcome.held_bytes, candidate
        assert least.over_memory is None or not outcome.fits
