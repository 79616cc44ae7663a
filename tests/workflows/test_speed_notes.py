"""Where profile and run were at different speeds, every result that has both says so."""

from dataclasses import replace

import pytest

import pipesched
from pipesched.executor.runs import Measured
from pipesched.profiles.costs import median_profile
from pipesched.profiles.io import Plan, Predicted
from pipesched.questions import ScheduleCounts
from pipesched.schedules import Yardstick
from pipesched.schedules.transforms import ScheduleSpec
from pipesched.simulator.search import Outcome, Setting
from pipesched.workflows.arguments import read_schedule_argument
from pipesched.workflows.measuring import profile_from_runs, result_of
from pipesched.workflows.tuning import verified_settings
from tests.profiles.hand_profiles import layer, measurement, profile, split

BEFORE, SLOW = Yardstick("cpu", 2, 1.0), Yardstick("cpu", 2, 1.5)
SAID = "50% slower in the run than in the profile, by the time of a fixed kernel"
COUNTS = {"num_ranks": 2, "num_microbatches": 4}


def timed(yardstick):
    """Return a profile of four layers that was measured on a machine of that speed."""
    layers = profile(*[layer(measurement(split=split()))] * 4)
    return replace(layers, provenance=replace(layers.provenance, yardstick=yardstick))


PROFILE = timed(BEFORE)
PREDICTED = pipesched.simulate(pipesched.build("1f1b", **COUNTS), PROFILE).timeline
RUN = replace(PREDICTED, source="measured", yardstick=SLOW)


def results():
    """Yield a result of each kind, of a profile and of a run of so many seconds."""
    source = read_schedule_argument("1f1b", ScheduleCounts(**COUNTS))
    measured = Measured(RUN, (RUN.makespan_s,), ())
    yield "run", result_of(source, measured, PROFILE)
    spec = ScheduleSpec(name="1f1b", num_ranks=2, num_microbatches=4)
    plan = Plan(model="mlp", schedule_spec=spec, partition=(2, 2), microbatch_size=1, batch_size=4, compression=None,
                predicted=Predicted(1.0, 4.0, (1.0, 1.0), 0.1), yardstick=BEFORE)  # fmt: skip
    yield "plan", result_of(read_schedule_argument(plan), measured)
    yield "compare", pipesched.compare_runs(PREDICTED, RUN)
    yield "what_if", pipesched.what_if(RUN, profile=PROFILE, schedule="gpipe", draws=1)
    yield "profile_from_runs", profile_from_runs(RUN, PROFILE)
    yield "costs_from_runs", pipesched.costs_from_runs(RUN, profile=PROFILE)
    setting = Outcome(Setting("1f1b", 2, 4), 1.0, 1)
    yield "tune", verified_settings([setting], lambda *_: replace(setting, yardstick=SLOW), profiled=BEFORE)


@pytest.mark.parametrize("name", ["run", "plan", "compare", "what_if", "profile_from_runs", "costs_from_runs", "tune"])
def test_a_result_of_a_profile_and_a_slower_run_says_so(name):
    assert SAID in dict(results())[name].notes[0]


def test_two_runs_are_told_apart_by_their_names():
    compared = pipesched.compare_runs(replace(RUN, yardstick=BEFORE), RUN)
    assert "50% slower in run 2 than in run 1" in compared.notes[0]


def test_costs_from_runs_and_profiles_fitted_to_them_are_of_the_speed_of_the_runs():
    assert profile_from_runs(RUN, PROFILE).profile.provenance.yardstick == SLOW
    costs = pipesched.costs_from_runs([RUN, replace(RUN, yardstick=BEFORE)]).costs
    assert costs.yardstick == Yardstick("cpu", 2, 1.25)
    assert pipesched.simulate(pipesched.build("1f1b", **COUNTS), costs).timeline.yardstick == costs.yardstick
    assert median_profile(PROFILE, timed(SLOW)).provenance.yardstick == Yardstick("cpu", 2, 1.25)


def test_a_plan_keeps_the_speed_of_its_profile():
    best = pipesched.plan(PROFILE, batch_size=8, num_devices=2, schedules=["1f1b"]).plan
    assert best.yardstick == BEFORE
