"""Settings that are run beside what was predicted of them."""

from dataclasses import replace

import pytest

import pipesched
from pipesched.simulator.search import Outcome
from pipesched.simulator.tuner import tuned
from pipesched.workflows.tuning import TuneResult, rank_correlation, run_settings, verified_settings
from tests.simulator.tuner.problems import problem


def outcomes(*seconds):
    """Settings of rising M, predicted to take so long and to hold a byte a second."""
    return tuple(Outcome(tuned("avgpipe", 3, m, 1, 0), s, int(s)) for m, s in zip((1, 2, 4, 8), seconds, strict=False))


def test_a_verdict_has_seconds_and_bytes_of_every_setting_in_the_order_of_the_runs():
    ran, fractions = [], []

    def measurement(setting, tick):
        ran.append(setting.num_microbatches)
        tick(1.0)
        return Outcome(setting, {1: 6.0, 2: 4.0}[setting.num_microbatches], 10 * setting.num_microbatches)

    verdict = verified_settings(outcomes(3.0, 5.0), measurement, fractions.append)

    assert ran == [1, 2]
    assert fractions == [0.5, 1.0]
    frame = verdict.to_frame()
    assert list(frame.predicted_s) == [3.0, 5.0]
    assert list(frame.measured_s) == [6.0, 4.0]
    assert list(frame.predicted_bytes) == [3, 5]
    assert list(frame.measured_bytes) == [10, 20]
    assert verdict.regret == pytest.approx(0.5)
    assert [row["off"] for row in verdict.table().rows] == ["-50.0%", "+25.0%"]
    assert "2 settings were run" in verdict._repr_html_()


def test_a_setting_that_cannot_be_run_is_refused_with_the_reason():
    with pytest.raises(
        pipesched.ArgumentError, match=r"settings: got .* that can be run: too few layers; leave it out"
    ):
        verified_settings(outcomes(1.0), lambda setting, tick: Outcome(setting, reason="too few layers"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"count": 0}, "count: got 0, expected at least 1"),
        ({"settings": [tuned("avgpipe", 3, 16, 2, 0)]}, "settings: got avgpipe M=16 N=2 advance=0, expected settings"),
        ({"settings": "avgpipe"}, "settings: got 'avgpipe', expected a list"),
        ({"settings": [["avgpipe"]]}, "settings: got list"),
        ({"progress": 3}, "progress: got 3, expected a function"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_run(arguments, said):
    result = TuneResult(problem(), "simulate", outcomes(1.0, 2.0), None, averages=False)
    with pytest.raises(pipesched.ArgumentError) as raised:
        run_settings(result, **arguments)
    assert str(raised.value).startswith(said)


def test_a_result_is_what_tune_returns_and_something_in_it_fits():
    with pytest.raises(pipesched.ArgumentError, match=r"^result: got 3, expected what `tune` returns"):
        run_settings(3)
    nothing = tuple(replace(outcome, reason="over memory") for outcome in outcomes(1.0))
    with pytest.raises(pipesched.ArgumentError, match=r"^result: got no setting that fits"):
        run_settings(TuneResult(problem(), "simulate", nothing, None, averages=False))


@pytest.mark.parametrize(
    ("predicted", "measured", "expected"),
    [
        ([1, 2, 3], [10, 20, 40], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),  # 1 - 6 * (1 + 1 + 1 + 1) / (5 * 24)
        ([1, 1, 2], [1, 2, 3], 3**0.5 / 2),  # equal ones share a rank: 0.5, 0.5, 2 against 0, 1, 2
        ([1], [2], None),
        ([1, 1], [1, 2], None),
    ],
)
def test_the_rank_correlation_is_spearmans(predicted, measured, expected):
    correlation = rank_correlation(predicted, measured)
    assert correlation == (None if expected is None else pytest.approx(expected))
