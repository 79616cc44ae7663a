"""Algorithm 1 of AvgPipe on clocks that are wound by hand, and by the simulator."""

import pytest

from pipesched.executor.training import AdvancePolicy
from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.builders import build
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import memory, peak_memory

SEVEN = StageCosts((StageCost(1.0, 1.0, saved_bytes=10),) * 2)
"""Figure 7 of the paper: two stages, forward, backward and transfer of a second each."""


def run(policy, batch, most_trials=20):
    """Judge until it stays; `batch` returns (seconds, bytes) of an advance. Return the advances that were tried."""
    tried = []
    while not policy.is_settled:
        assert len(tried) < most_trials
        tried.append(policy.advance)
        seconds, num_bytes = batch(policy.advance)
        policy.judge([seconds] * 5, num_bytes)
    return tried


def simulated(advance, transfer_s=1.0):
    schedule = build("1f1b_afp", 2, 8, advance=advance)
    timeline = simulate_lists(schedule, SEVEN, flat(2, Link(transfer_s)))
    peaks = peak_memory(memory(timeline, SEVEN, schedule))
    return timeline.makespan_s, max(peak.total_bytes for peak in peaks.values())


def test_it_stops_where_figure_7_does():
    policy = AdvancePolicy(most=7)
    assert [simulated(advance)[0] for advance in range(3)] == [26.0, 20.0, 20.0]
    assert run(policy, simulated) == [0, 1, 2]
    assert (policy.advance, [trial.seconds for trial in policy.trials]) == (1, [26.0, 20.0, 20.0])


def test_with_free_links_it_stays_1f1b():
    policy = AdvancePolicy(most=7)
    assert run(policy, lambda advance: simulated(advance, 0.0)) == [0, 1]
    assert policy.advance == 0


@pytest.mark.parametrize(("limit", "tried", "chosen"), [(1000, range(8), 7), (135, range(4), 3), (99, [0], 0)])
def test_it_goes_no_further_than_memory_allows(limit, tried, chosen):
    """100 bytes, and 10 more for each advance; always faster."""
    policy = AdvancePolicy(most=7, limit_bytes=limit)
    assert run(policy, lambda advance: (10.0 - advance, 100 + 10 * advance)) == list(tried)
    assert policy.advance == chosen


def test_what_turns_out_to_be_too_much_is_taken_back():
    policy = AdvancePolicy(most=7, limit_bytes=150)
    assert run(policy, lambda advance: (10.0 - advance, [100, 110, 200][advance])) == [0, 1, 2]
    assert policy.advance == 1


def test_a_slow_batch_among_fast_ones_changes_nothing():
    policy = AdvancePolicy(most=3)
    policy.judge([10.0, 10.0, 50.0, 10.0, 10.1])
    policy.judge([9.0, 9.1, 9.0, 40.0, 9.0])
    assert (policy.advance, policy.is_settled) == (2, False)
    policy.judge([8.95, 8.95, 8.95, 8.0, 8.95])
    assert (policy.advance, policy.is_settled) == (1, True), "half a per cent is noise"


def test_where_nothing_can_be_ahead_there_is_nothing_to_try():
    policy = AdvancePolicy(most=0)
    assert (policy.advance, policy.is_settled, policy.trials) == (0, True, [])
