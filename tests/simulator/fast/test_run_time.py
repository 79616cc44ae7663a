"""The time of a long run, from short ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules.ops import Phase, computes
from pipesched.schedules.transforms import ScheduleSpec, training_run
from pipesched.simulator import USUAL_NETWORK, Inexact, Scenario, SimulationError
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import run_time
from tests.properties import examples

P, M = 4, 6


def predicted(name, num_steps, costs, cluster=None, num_ranks=P, **parameters):
    run = training_run(name, num_ranks, M, num_steps, **parameters)
    return time_of(run, num_steps, costs, flat(num_ranks) if cluster is None else cluster)


def time_of(run, num_steps, costs, cluster, network=USUAL_NETWORK):
    def scenario_of(steps):
        return Scenario(run.lists(steps), costs, cluster, network)

    return run_time(scenario_of, num_steps, run.microbatches_per_step)


def test_gpipe_takes_its_batch_time_at_every_step():
    duration = predicted("gpipe", 1000, uniform(P, 1.0, 2.0))
    assert duration.makespan_s == pytest.approx(1000 * (M + P - 1) * 3)
    assert duration.period_s == pytest.approx((M + P - 1) * 3)
    assert duration.steps_per_s == pytest.approx(1 / ((M + P - 1) * 3))


def test_pipedream_fills_once_and_drains_once():
    duration = predicted("pipedream", 1000, uniform(P, 1.0, 2.0))
    assert duration.period_s == pytest.approx(3)
    assert duration.makespan_s == pytest.approx(1000 * 3 + (P - 1) * 3)
    assert duration.at_s(0) == pytest.approx(P)
    assert duration.at_s(999) == pytest.approx(P + 999 * 3)


def test_wpipe_takes_longer_than_its_work_by_what_fills_and_drains_it():
    duration = predicted("wpipe", 1000, uniform(2 * P, 0.5, 1.0))
    assert duration.makespan_s == pytest.approx(1000 * M * 3 + (P - 1) * 1.5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpipe", "interleaved", "zb_h1", "pipedream_2bw", "wpipe", "chimera"])
def test_a_long_run_takes_as_long_as_simulated_whole(name):
    run = training_run(name, P, 4, 90)
    lists = run.lists(90)
    costs = StageCosts(
        tuple(StageCost(1 + 0.3 * (s % 3), None, 0.9, 1.1 - 0.2 * (s % 2), step_s=0.4) for s in range(lists.num_stages))
    )
    cluster = flat(P, Link(latency_s=0.1))
    duration = time_of(run, 90, costs, cluster)
    whole = simulate_lists(lists.held(), costs, cluster)
    assert len(duration.known_s) < 90
    assert duration.makespan_s == pytest.approx(whole.makespan_s, rel=1e-3)
    last = max(
        span.end_s
        for span in whole.spans
        for part in computes(span.op)
        if part.phase is Phase.FORWARD and part.stage == lists.num_stages - 1
    )
    assert duration.at_s(89) == pytest.approx(last, rel=1e-3)


def test_a_run_that_changes_its_pace_is_simulated_whole():
    duration = predicted("hybrid", 200, uniform(P, 1.0, 2.0))
    # half of the steps a period each behind the fill and drain, half of them alone in the pipeline
    assert duration.makespan_s == pytest.approx((100 + P - 1) * 3 + 100 * P * 3, rel=0.02)
    assert len(duration.known_s) == 200


def test_the_half_of_hybrid_that_is_known_first_is_not_taken_for_the_whole():
    short = predicted("hybrid", 100, uniform(P, 1.0, 2.0), pipelined=90)
    long = predicted("hybrid", 1000, uniform(P, 1.0, 2.0), pipelined=90)
    assert long.makespan_s - short.makespan_s == pytest.approx(900 * P * 3)


def test_a_run_that_changes_its_pace_and_is_too_long_is_refused():
    answer = predicted("hybrid", 10**6, uniform(P, 1.0, 2.0))
    assert isinstance(answer, Inexact)
    assert "expected at most 50000, for a simulation of all steps" in answer.reason


@examples(10)
@given(st.sampled_from(["gpipe", "pipedream", "pipedream_2bw"]), st.integers(1, 80))
def test_losses_are_known_in_order_and_before_the_end(name, num_steps):
    duration = predicted(name, num_steps, uniform(3, 1.0, 1.5), num_ranks=3)
    times_s = [duration.at_s(step) for step in range(num_steps)]
    assert times_s == sorted(times_s)
    assert times_s[-1] < duration.makespan_s
    with pytest.raises(SimulationError, match="run: got step"):
        duration.at_s(num_steps)


def test_a_run_of_several_pipelines_is_refused():
    run = training_run("gpipe", 2, 2, 40)
    answer = run_time(lambda steps: Scenario(run.lists(steps), uniform(2, 1.0, 2.0), flat(2), num_pipelines=2), 40, 2)
    assert isinstance(answer, Inexact)
    assert "got a run of 2 pipelines, expected one" in answer.reason


def test_a_run_of_pipelines_that_drift_takes_their_steady_time_for_each_step_but_the_first():
    """Two pipelines of 8 micro-batches on 4 devices: 660 ms begun together, 16 x 33.2 ms in the long run."""
    spec = ScheduleSpec(name="avgpipe", num_ranks=4, num_microbatches=16, parameters={"pipelines": 2, "advance": 1})
    run, costs = spec.run(50), uniform(4, 0.01, 0.02)
    time = run_time(lambda steps: Scenario(run.lists(steps), costs, flat(4)), 50, run.microbatches_per_step)
    assert time.period_s == pytest.approx(16 * 0.0332, rel=0.01)
    assert time.makespan_s == pytest.approx(0.66 + 49 * time.period_s)
    assert time.at_s(49) == pytest.approx(time.at_s(0) + 49 * time.period_s)
