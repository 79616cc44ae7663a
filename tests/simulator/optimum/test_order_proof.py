"""A search in a process of its own: its news are kept, whatever becomes of it."""

import sys

import pytest

from pipesched.profiles.clusters import flat
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.builders import build
from pipesched.simulator import SimulationError
from pipesched.simulator.optimum import (
    OrderSearcher,
    counted_room,
    least_ticks,
    most_in_flight,
    objective_ticks,
    order_problem,
    orderable,
)
from pipesched.simulator.optimum.op_times import listed_times

pytestmark = pytest.mark.slow


@pytest.fixture
def known():
    """The order problem of a V, V-Half's starts, and what simple bounds say."""
    costs = StageCosts((StageCost(1.0, None, 1.0, 1.0),) * 8)
    lists = orderable(build("v_half", 4, 4), costs)
    problem = order_problem(lists, costs, flat(4), counted_room(lists, costs, most_in_flight(lists, costs)))
    return problem, listed_times(problem, lists), least_ticks(problem)


def prove_order(*known, **options):
    """Search in a process that is ended then."""
    with OrderSearcher() as searcher:
        return searcher.prove(*known, **options)


def searching(monkeypatch, code):
    """Let the process that is to search do something else."""
    monkeypatch.setattr("pipesched.simulator.optimum.order_proof.command", lambda *_: [sys.executable, "-c", code])


def test_a_search_in_a_process_proves_what_one_in_this_process_does(known):
    """29 chunk times in place of V-Half's 31."""
    told = []
    proof = prove_order(*known, seconds=60, num_workers=1, progress=lambda *news: told.append(news))
    assert (proof.ticks, proof.bound, proof.is_stopped) == (29, 29, False)
    assert objective_ticks(known[0], proof.starts) == 29
    assert told[-1][1:] == (29, 29)


def test_a_search_that_does_not_end_in_time_is_ended_and_what_it_told_is_kept(known, monkeypatch):
    code = "import json, time; print(json.dumps([31, 28, None, False]), flush=True); time.sleep(10000)"
    searching(monkeypatch, code)
    proof = prove_order(*known, seconds=0.2)
    assert (proof.ticks, proof.bound, proof.is_stopped) == (31, 28, False)


def test_a_search_that_ends_by_itself_is_said_to(known, monkeypatch):
    searching(monkeypatch, "raise SystemExit(9)")
    with pytest.raises(
        SimulationError, match="search: got a search process that ended with exit code 9, expected an order"
    ):
        prove_order(*known, seconds=60)


def test_a_search_that_loads_for_ever_is_ended(known, monkeypatch):
    monkeypatch.setattr("pipesched.simulator.optimum.order_proof._LOAD_S", 0.5)
    searching(monkeypatch, "import time; time.sleep(10000)")
    with pytest.raises(SimulationError, match=r"search: OR-tools is not loaded after 0\.5 s, expected a faster start"):
        prove_order(*known, seconds=60)
