"""AvgPipe's memory equation beside what the processes really hold."""

import pytest

from pipesched.profiles.clusters import flat
from pipesched.profiles.measuring import ProfilerSettings, profile_model
from pipesched.profiles.models import resolve_model
from pipesched.questions import MeasureSettings
from pipesched.simulator.tuner import Accounting, predict_setting, tuned
from pipesched.simulator.tuner.setting_evaluation import evaluate_setting, measure
from pipesched.simulator.tuner.tuning_problem import Problem
from pipesched.workflows.tuning import Measurement

MODEL = "gpt:layers=4,width=256,heads=4,context=64"


@pytest.fixture(scope="module")
def problem():
    settings = ProfilerSettings(microbatch_sizes=[2, 4], repeats=1, warmup=1)
    profile = profile_model(resolve_model(MODEL), settings)
    return Problem(profile, 16, flat(2), "uniform")


def held_bytes(problem, setting):
    return Measurement(problem, MeasureSettings(iterations=1, warmup=0), drift=0)(setting).held_bytes


@pytest.mark.distributed
@pytest.mark.slow
def test_a_setting_that_was_not_profiled_holds_what_the_equation_says(problem):
    """Eq. 8, from M = 8 and N = 1 to M = 4 and N = 2, within 5 % of what malloc says."""
    num_pipelines = 2
    setting = tuned("avgpipe", 2, 4, num_pipelines, 0)
    held = held_bytes(problem, setting)
    profile = measure(problem, tuned("avgpipe", 2, 8, 1, 0))
    predicted_bytes = {how: predict_setting(profile, 4, num_pipelines, how).held_bytes for how in Accounting}
    assert evaluate_setting(problem, setting).held_bytes == pytest.approx(held, rel=0.05)
    assert predicted_bytes[Accounting.CONSISTENT] == pytest.approx(held, rel=0.05)
    # as printed it has the reference model of the profile, n'/n times: from one pipeline that is none
    assert predicted_bytes[Accounting.PAPER] < 0.9 * held
    reference_bytes = max(device.reference_bytes for device in profile.devices)
    assert predicted_bytes[Accounting.PAPER] + 3 * reference_bytes == pytest.approx(held, rel=0.05)
