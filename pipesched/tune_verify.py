"""``pipesched tune --verify K``: run the best settings and say how good the choice was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipesched.errors import InputError
from pipesched.output import percent, print_table, progress, seconds

if TYPE_CHECKING:
    from pipesched.jobs import RunOptions
    from simulator.tuner.evaluate import Problem
    from simulator.tuner.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Verified:
    """One setting that was run; the seconds are a batch's.

    Attributes:
        predicted_s: As the evaluator said.
        measured_s: Of the median iteration.
    """

    outcome: Outcome
    predicted_s: float
    measured_s: float


def require_model(problem: Problem) -> None:
    """Refuse, before anything is searched, a profile whose model cannot be run.

    Raises:
        InputError: It has other layers than the profile.
        ProfileError: There is no such model.
    """
    from profiles.models.resolve import resolve_model

    model = resolve_model(problem.profile.model)
    if len(model.layers) != len(problem.profile.layers):
        raise InputError(
            f"--verify: got a profile of {problem.profile.model} with {len(problem.profile.layers)} layers, expected "
            f"the {len(model.layers)} of that model; profile it again"
        )


def run_best(problem: Problem, outcomes: Sequence[Outcome], count: int, options: RunOptions) -> list[Verified]:
    """Run the first `count` settings that the executor can run here: those of one pipeline.

    Raises:
        RankFailed: A rank failed, died or hung.
    """
    from executor.launcher import launch
    from profiles.partition import parse_partition
    from profiles.profile import layer_seconds

    can_run = [outcome for outcome in outcomes if outcome.fits and outcome.setting.num_pipelines == 1][:count]
    found = []
    for outcome in can_run:
        size = problem.batch_size // outcome.setting.num_microbatches
        schedule = outcome.setting.build(len(problem.cluster.devices))
        bounds = parse_partition(problem.partition, layer_seconds(problem.profile, size), schedule.num_stages)
        job = options.job(schedule, model=problem.profile.model, bounds=bounds, microbatch_size=size)
        with progress(f"running {outcome.setting}") as tick:
            measured = launch(job, tick)
        found.append(Verified(outcome, outcome.seconds or 0.0, measured.timeline.makespan_s))
    return found


def to_dict(verified: Sequence[Verified]) -> dict[str, Any]:
    """Return plain data."""
    regret, correlation = _verdict(verified)
    return {
        "settings": [
            {**each.outcome.to_row(), "predicted_s": each.predicted_s, "measured_s": each.measured_s}
            for each in verified
        ],
        "regret": regret,
        "rank_correlation": correlation,
    }


def print_verified(verified: Sequence[Verified], chosen: Outcome) -> None:
    """Print predicted beside measured, and what that says of the choice."""
    if not verified:
        print("--verify: no setting of one pipeline fits; several are not run yet")
        return
    rows = [
        {
            "setting": str(each.outcome.setting),
            "predicted": seconds(each.predicted_s),
            "measured": seconds(each.measured_s),
            "off": f"{each.predicted_s / each.measured_s - 1:+.1%}",
        }
        for each in verified
    ]
    regret, correlation = _verdict(verified)
    what = "the chosen one" if verified[0].outcome == chosen else "the best of one pipeline (several are not run yet)"
    caption = f"regret of {what}: {percent(regret)} over the best that was run"
    caption += "" if correlation is None else f"; rank correlation of prediction and measurement {correlation:.3f}"
    print_table(f"{len(verified)} settings were run", rows, caption)


def _verdict(verified: Sequence[Verified]) -> tuple[float | None, float | None]:
    from simulator.tuner.verdict import rank_correlation, regret

    if not verified:
        return None, None
    measured_s = [each.measured_s for each in verified]
    return regret(measured_s), rank_correlation([each.predicted_s for each in verified], measured_s)
