"""Settings that were run beside their predictions, and the quality of the choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import StatisticsError, correlation
from typing import TYPE_CHECKING, Annotated, Any

from pipesched.executor import Repetitions, RunSettings
from pipesched.questions import OnShare, unheard
from pipesched.schedules import Yardstick
from pipesched.schedules.common import MAX_NUMBER, Description
from pipesched.simulator.analysis import readable_change, readable_s, readable_share
from pipesched.simulator.search import Outcome, Setting
from pipesched.simulator.tuner import tuned_row
from pipesched.workflows import (
    ArgumentError,
    Result,
    Table,
    asks,
    other_speed,
    require_kind,
    require_names,
    shares_of_steps,
)
from pipesched.workflows.tuning.setting_race import to_run
from pipesched.workflows.tuning.setting_runs import Measurement, RunSetting, measure_settings, require_same_layers
from pipesched.workflows.tuning.tune_result import TuneResult

if TYPE_CHECKING:
    import pandas as pd

_FEWEST_RANKED = 4
"""Fewest settings for a rank correlation: of two it is 1 or -1 anyway, of three every third time."""


@dataclass(frozen=True, slots=True, repr=False)
class Verdict(Result):
    """The quality of a choice, from settings that were run.

    Attributes:
        verified: Settings that were run, the choice first.
        profiled: Speed of the machine during the profile, or None if unknown.
    """

    verified: tuple[RunSetting, ...]
    profiled: Yardstick | None = None

    @property
    def notes(self) -> list[str]:
        """Cautions about the seconds, a line each."""
        return other_speed(self.profiled, Yardstick.mean(run.runs[0].yardstick for run in self.verified))

    @property
    def regret(self) -> float | None:
        """The slowdown of the choice against the best run, relative, or None without runs."""
        seconds = [run.measured_s for run in self.verified]
        return seconds[0] / min(seconds) - 1 if seconds else None

    @property
    def is_ranked(self) -> bool:
        """Whether there are enough settings to compare their ranks."""
        return len(self.verified) >= _FEWEST_RANKED

    @property
    def rank_correlation(self) -> float | None:
        """The rank correlation of prediction and measurement; None if there are too few settings."""
        if not self.is_ranked:
            return None
        return rank_correlation([run.predicted_s for run in self.verified], [run.measured_s for run in self.verified])

    @property
    def gain(self) -> float | None:
        """The speedup of the choice over plain 1F1B, as a factor, or None if plain 1F1B was not run."""
        plain_s = [run.measured_s for run in self.verified if run.outcome.setting.is_plain]
        return min(plain_s) / self.verified[0].measured_s if plain_s else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "settings": [
                {**tuned_row(run.outcome), "predicted_s": run.predicted_s, "measured_s": run.measured_s}
                for run in self.verified
            ],
            "regret": self.regret,
            "rank_correlation": self.rank_correlation,
            "gain_over_plain_1f1b": self.gain,
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a row per setting: seconds of a batch and bytes of a device, predicted and measured."""
        import pandas as pd

        return pd.DataFrame(
            {
                "setting": str(run.outcome.setting),
                "training": run.outcome.setting.training.value,
                "predicted_s": run.predicted_s,
                "measured_s": run.measured_s,
                "predicted_bytes": run.outcome.held_bytes,
                "measured_bytes": run.runs[0].held_bytes,
            }
            for run in self.verified
        )

    def table(self) -> Table:
        """Return a row per setting, formatted for people."""
        rows = tuple(
            {
                "setting": str(run.outcome.setting),
                "training": run.outcome.setting.training.value,
                "predicted": readable_s(run.predicted_s),
                "measured": readable_s(run.measured_s),
                "off": readable_change(run.predicted_s / run.measured_s - 1),
            }
            for run in self.verified
        )
        caption = f"regret of the chosen setting: {readable_share(self.regret)} over the best that was run"
        if not self.is_ranked:
            caption += "; too few settings verified to rank"
        elif self.rank_correlation is not None:
            caption += f"; rank correlation of prediction and measurement {self.rank_correlation:.3f}"
        if self.gain is not None:
            caption += f"; measured, it is {self.gain:.3g} x as fast as plain 1F1B"
        return Table(f"{len(self.verified)} settings were run", rows, caption)

    def __repr__(self) -> str:
        return f"Verdict({', '.join(f'{run.outcome.setting}: {readable_s(run.measured_s)}' for run in self.verified)})"


@dataclass(frozen=True)
class RunSettingsQuestion(Repetitions):
    """The question of `run_settings`; its fields are the arguments of that function."""

    result: TuneResult
    count: Annotated[int, Description("Number of the best settings to run.", least=1, most=MAX_NUMBER)] = 3
    settings: Sequence[Setting] = ()
    run_settings: RunSettings = field(default=RunSettings(), kw_only=True)
    progress: OnShare = field(default=unheard, kw_only=True)


@asks(RunSettingsQuestion)
def run_settings(question: RunSettingsQuestion) -> Verdict:
    """Run the best settings of a search here, and plain 1F1B, and compare them with their predictions.

    Runs of several pipelines have 20 more iterations of warm-up, in which the pipelines drift apart.

    Args:
        result: Result of `tune`, of a model that this machine can make.
        settings: Further settings of the result to run.
        run_settings: Settings of the runs.

    Raises:
        ArgumentError: Nothing fits, a setting is not in the result, or the model has other layers than its profile.
        ProfileError: The model does not exist.
        RankFailed: A rank failed, died or hung.
    """
    result = question.result
    require_kind("result", result, TuneResult, "what `tune` returns")
    known = {outcome.setting: outcome for outcome in result.fitting}
    settings = require_names("settings", question.settings)
    for setting in settings:
        require_kind("settings", setting, Setting, "settings of the result; try result.chosen.setting")
        if setting not in known:
            raise ArgumentError(
                f"settings: got {setting}, expected settings of the result that fit; try result.chosen.setting"
            )
    require_kind("run_settings", question.run_settings, RunSettings, "RunSettings")
    best = to_run(result.candidates, result.plain, question.count)
    if not best:
        raise ArgumentError("result: got no setting that fits, expected at least one; try more devices")
    require_same_layers(result.problem.profile)
    chosen = dict.fromkeys([*best, *(known[setting] for setting in settings)])
    measurement = Measurement(result.problem, measure_settings(question.run_settings, question))
    profiled = result.problem.profile.provenance.yardstick
    return verified_settings(tuple(chosen), measurement, question.progress, profiled=profiled)


def verified_settings(
    outcomes: Sequence[Outcome],
    measurement: Measurement,
    progress: OnShare = unheard,
    *,
    profiled: Yardstick | None = None,
) -> Verdict:
    """Run settings, one after the other.

    Args:
        outcomes: Their predictions.
        measurement: Runs one.
        progress: Receives the finished share of the settings.
        profiled: Speed of the machine during the profile, or None if unknown.

    Raises:
        ArgumentError: A setting cannot be run.
        RankFailed: A rank failed, died or hung.
    """
    verified = []
    for outcome, tick in zip(outcomes, shares_of_steps(progress, len(outcomes)), strict=True):
        measured = measurement(outcome.setting, tick)
        if measured.seconds is None:
            raise ArgumentError(
                f"settings: got {outcome.setting}, expected settings that can be run: {measured.reason}; leave it out"
            )
        verified.append(RunSetting(outcome, (measured,)))
    return Verdict(tuple(verified), profiled)


def rank_correlation(predicted_s: Sequence[float], measured_s: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, -1 to 1, or None for fewer than two settings or all equal."""
    from scipy.stats import rankdata  # type: ignore[import-untyped]  # it has no types

    try:
        return correlation(rankdata(predicted_s).tolist(), rankdata(measured_s).tolist())
    except StatisticsError:
        return None
