"""What is said of several rounds: medians, the machine's drift, and verdicts only where it held still."""

from dataclasses import replace
from io import BytesIO

import pytest

import pipesched
from pipesched.profiles.costs import uniform
from pipesched.schedules.builders import build
from pipesched.simulator.analysis import compare_timelines
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.views import gantt_figure
from pipesched.workflows.timelines.replaying import Explanation, explain_error
from pipesched.workflows.verifying import MachineDrift, RoundsVerification, ScheduleRounds, VerifiedSchedule
from tests.hand_runs import run_by_hand

SCHEDULE = build("1f1b", num_ranks=2, num_microbatches=4)
STEADY = (1.0,) * 8


def verified(factor: float, delay_s: float = 0.1) -> VerifiedSchedule:
    """A round whose works took `factor` times as long as the profile says."""
    measured, predicted = run_by_hand(SCHEDULE, 0.0, delay_s, factor), simulate_lists(SCHEDULE, uniform(2, 1.0, 2.0))
    explanation = explain_error(measured, predicted, than="in the profile")
    return VerifiedSchedule(predicted, measured, compare_timelines(predicted, measured), explanation, 1.0, 1.0, 0.0)


def of_factors(*factors: float) -> ScheduleRounds:
    return ScheduleRounds(tuple(map(verified, factors)))


def test_a_machine_that_gets_slower_at_a_steady_pace_has_not_drifted_between_profile_and_run():
    assert MachineDrift(tuple(1.0 + 0.1 * step for step in range(8))).of_rounds == pytest.approx((0.0, 0.0, 0.0))


def test_a_machine_that_is_slower_in_the_runs_has():
    # profiles 1, 1.25, 1.25, 1 and runs 1.25, 1, 1.25 between them, each the mean of the looks before and after it
    drift = MachineDrift((1.0, 1.0, 1.5, 1.0, 1.0, 1.5, 1.0, 1.0))
    assert drift.of_rounds == pytest.approx(
        (1.25 / (0.5 * (1.0 + 1.25)) - 1, 1.0 / (0.5 * (1.25 + 1.25)) - 1, 0.111), abs=1e-3
    )


def test_the_parts_are_medians_over_the_rounds():
    several = of_factors(1.0, 1.1, 1.3)
    errors = sorted(round_.makespan_error for round_ in several.rounds)
    assert several.error.median == errors[1]
    assert several.middle.makespan_error == errors[1]
    assert several.part("rest").median == pytest.approx(0.0, abs=1e-12)
    shares = several.middle.explanation.shares()
    assert several.part("costs", "hand_over", "rest").median == pytest.approx(errors[1])
    assert several.model.median < 0.0
    assert shares["hand_over"] == pytest.approx(several.part("hand_over").median)


@pytest.mark.slow
def test_the_picture_is_of_the_round_of_median_error():
    several = of_factors(1.0, 1.3, 1.1)
    shown = RoundsVerification((several,), MachineDrift(STEADY)).plot()

    def pixels(figure):
        data = BytesIO()
        figure.savefig(data, format="png", dpi=50)
        return data.getvalue()

    first, last, middle = (gantt_figure([verified.predicted, verified.measured]) for verified in several.rounds)
    assert pixels(shown) == pixels(middle)
    assert pixels(shown) not in (pixels(first), pixels(last))


def test_a_steady_machine_and_rounds_that_agree_have_a_verdict():
    verification = RoundsVerification((of_factors(1.02, 1.02, 1.03),), MachineDrift(STEADY))
    said = verification.verdict(verification.schedules[0])
    assert said.endswith("% (-5.4% to -4.5%) with the seconds of the profile")
    assert "no verdict" not in said


def test_a_machine_that_drifts_has_none_but_the_model_is_judged():
    drifted = MachineDrift((1.0, 1.0, 1.4, 1.0, 1.0, 1.4, 1.0, 1.0))
    verification = RoundsVerification((of_factors(1.02, 1.02, 1.03),), drifted)
    said = verification.verdict(verification.schedules[0])
    assert "no verdict on the profile, as the machine drifted" in said
    assert "with the op seconds of the runs; no verdict" in said
    table = verification.table()
    assert said in table.caption
    assert [row[""] for row in table.rows] == ["1f1b error", "1f1b costs", "1f1b hand-over", "1f1b rest"]
    assert verification.to_dict()["schedules"][0]["verdict"] == said


def test_rounds_that_differ_have_none():
    verification = RoundsVerification((of_factors(1.0, 1.2, 1.5),), MachineDrift(STEADY))
    assert "no verdict on the profile, as the interval of the rounds, " in verification.verdict(
        verification.schedules[0]
    )


def test_an_error_that_cannot_be_split_has_no_parts():
    unsplit = replace(verified(1.0), explanation=Explanation("no", None))
    several = ScheduleRounds((unsplit, verified(1.1)))
    assert several.model is None
    assert several.to_dict()["costs"] is None


def test_one_round_is_none():
    with pytest.raises(pipesched.ArgumentError, match="rounds: got 1"):
        pipesched.verify_rounds("mlp", [pipesched.build("gpipe", 2, 4)], 1)
