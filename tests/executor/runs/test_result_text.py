"""What processes tell each other of a run is all that came out of it."""

import math

import pytest

from pipesched.executor.runs import Measured
from pipesched.executor.runs.result_text import result_from_text, result_to_text
from pipesched.executor.training import AdvanceTrials, LaunchTimes, ScoreTable, Trained, Trial
from pipesched.executor.training.loss_history import Diverged
from pipesched.schedules.builders import build
from tests.hand_timelines import play

STEPS = ScoreTable((0.1, math.nan, math.inf, 1 / 3))
TRIALS = AdvanceTrials(1, (Trial(0, 0.1, None), Trial(1, 0.2, 3)))


@pytest.mark.parametrize(
    "result",
    [
        Trained(STEPS, Diverged(1, math.inf), None),
        Trained(STEPS, None, STEPS[0], TRIALS, {2: STEPS[1]}, is_paused=True, failures=("rank 1 failed",)),
        Trained(STEPS, None, None, launching=LaunchTimes(0.1, 0.2, 3, 2)),
        Measured(play(build("1f1b", 2, 3)), (0.1, 0.2), (2.5,)),
    ],
    ids=["diverged", "trained", "on streams", "measured"],
)
def test_a_result_that_was_told_is_the_one_that_was_had(result):
    assert result_from_text(result_to_text(result)) == result


def test_a_result_in_which_nothing_is_a_number_is_told_too():
    (step,) = result_from_text(result_to_text(Trained(ScoreTable((math.nan, math.nan)), None, None))).steps
    assert math.isnan(step.loss)
    (loss,) = result_from_text(result_to_text(Measured(play(build("1f1b", 2, 3)), (0.1,), (math.nan,)))).losses
    assert math.isnan(loss)
