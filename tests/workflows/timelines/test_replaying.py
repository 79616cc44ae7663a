"""`pipesched.replay`, and the split of emulated runs, whose ops take what they are told."""

import pytest

import pipesched
from pipesched.schedules.builders import build
from tests.hand_runs import run_by_hand

SCHEDULE = build("1f1b", num_ranks=2, num_microbatches=4)
RUN = run_by_hand(SCHEDULE, 0.05, 0.2, 1.5)


def test_a_run_alone_and_with_costs():
    alone = pipesched.replay(RUN)
    assert alone.predicted is None
    assert alone.first.source == "works alone"
    predicted = pipesched.replay(RUN, pipesched.uniform(2, 1.0, 2.0))
    assert predicted.first is predicted.predicted
    assert predicted.split.makespan.costs_s == pytest.approx(-0.5 * 15.0)
    assert predicted.split.makespan.hand_over_s == pytest.approx(alone.split.makespan.hand_over_s)
    assert list(predicted.to_frame()["quantity"][:3]) == ["makespan_s", "busy_s", "idle_s"]
    assert predicted.plot().axes
    assert "hand-over" in predicted._repr_html_()
    assert predicted.explanation.sentence in repr(predicted)


def test_costs_of_fewer_stages_are_refused():
    with pytest.raises(pipesched.ArgumentError, match="got 1 stages, expected 2"):
        pipesched.replay(RUN, pipesched.uniform(1, 1.0, 2.0))


def test_a_prediction_is_refused():
    with pytest.raises(
        pipesched.SimulationError, match="got a Timeline that was predicted, expected a measured Timeline"
    ):
        pipesched.replay(pipesched.simulate(SCHEDULE, pipesched.uniform(2, 1.0, 2.0)).timeline)


@pytest.mark.distributed
def test_an_emulated_run_whose_ops_take_half_as_long_again_has_its_error_in_costs():
    told, slower = pipesched.uniform(2, 0.02, 0.04), pipesched.uniform(2, 0.03, 0.06)
    run = pipesched.run(SCHEDULE, slower, iterations=3)
    makespan = pipesched.replay(run.timeline, told).split.makespan
    assert makespan.costs_s + makespan.hand_over_s + makespan.rest_s == pytest.approx(makespan.error_s, abs=1e-12)
    # the ops slept 0.45 s of the makespan, and whatever they overslept is theirs too
    assert makespan.costs_s <= -0.15 + 1e-3
    assert abs(makespan.hand_over_s + makespan.rest_s) < 0.15
