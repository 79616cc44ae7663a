"""``pipesched tune --verify K``: run the best settings and say how good the choice was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipesched.cli.output.terminal import percent, print_table, progress_bar, seconds

if TYPE_CHECKING:
    from pipesched.cli.flows.tune_measure import Measurement
    from pipesched.simulator.tuner import SettingOutcome


_FEWEST_RANKED = 4
"""Settings whose ranks can be compared: of two the correlation is 1 or -1 anyway, of three every third time."""


@dataclass(frozen=True, slots=True)
class Verified:
    """One setting that was run; the seconds are a batch's.

    Attributes:
        predicted_s: As the evaluator said.
        measured_s: Of the median iteration.
    """

    outcome: SettingOutcome
    predicted_s: float
    measured_s: float


def run_best(
    outcomes: Sequence[SettingOutcome], plain: SettingOutcome | None, count: int, measurement: Measurement
) -> list[Verified]:
    """Run the first `count` of `outcomes`, which fit, and plain 1F1B, which they are to beat.

    Raises:
        RankFailed: A rank failed, died or hung.
    """
    best = list(outcomes[:count])
    if best and plain is not None and plain not in best:
        best.append(plain)
    found = []
    for number, outcome in enumerate(best, 1):
        with progress_bar(f"running {outcome.setting}, {number} of {len(best)}") as tick:
            measured = measurement(outcome.setting, tick)
        found.append(Verified(outcome, outcome.seconds or 0.0, measured.seconds or 0.0))
    return found


def verdict_to_dict(verified: Sequence[Verified]) -> dict[str, Any]:
    """Return plain data."""
    regret, correlation = _verdict(verified)
    return {
        "settings": [
            {**each.outcome.to_row(), "predicted_s": each.predicted_s, "measured_s": each.measured_s}
            for each in verified
        ],
        "regret": regret,
        "rank_correlation": correlation,
        "gain_over_plain_1f1b": _gain(verified),
    }


def print_verified(verified: Sequence[Verified]) -> None:
    """Print predicted beside measured, and what that says of the choice, which is the first."""
    rows = [
        {
            "setting": str(each.outcome.setting),
            "training": each.outcome.setting.training.value,
            "predicted": seconds(each.predicted_s),
            "measured": seconds(each.measured_s),
            "off": f"{each.predicted_s / each.measured_s - 1:+.1%}",
        }
        for each in verified
    ]
    regret, correlation = _verdict(verified)
    caption = f"regret of the chosen one: {percent(regret)} over the best that was run"
    if len(verified) < _FEWEST_RANKED:
        caption += "; too few settings verified to rank"
    elif correlation is not None:
        caption += f"; rank correlation of prediction and measurement {correlation:.3f}"
    gain = _gain(verified)
    caption += "" if gain is None else f"; measured, it is {gain:.3g} x as fast as plain 1F1B"
    print_table(f"{len(verified)} settings were run", rows, caption)


def _gain(verified: Sequence[Verified]) -> float | None:
    """Return how many times as fast as plain 1F1B the first was; None if that was not run."""
    plain_s = [each.measured_s for each in verified if each.outcome.setting.is_plain]
    return min(plain_s) / verified[0].measured_s if plain_s else None


def _verdict(verified: Sequence[Verified]) -> tuple[float | None, float | None]:
    """Return the regret, and the rank correlation; None for what nothing can be said of."""
    from pipesched.simulator.tuner import rank_correlation, regret

    if not verified:
        return None, None
    measured_s = [each.measured_s for each in verified]
    if len(verified) < _FEWEST_RANKED:
        return regret(measured_s), None
    return regret(measured_s), rank_correlation([each.predicted_s for each in verified], measured_s)
