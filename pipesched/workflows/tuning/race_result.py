"""The result of a race of settings: the winner or leader, its margin, and the certainty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipesched.simulator.analysis import readable_change, readable_s
from pipesched.simulator.fidelity import MedianInterval, median_interval
from pipesched.simulator.search import Lag
from pipesched.simulator.tuner import SettingOutcome
from pipesched.workflows import Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class RacedSetting:
    """A contender of a race, and its runs.

    Attributes:
        outcome: The setting's outcome, as the evaluator predicts it.
        samples_s: Seconds of a batch, of every run.
        lag: Excess of the contender's time over the leader's; None for the leader, and for a setting that cannot be
            run.
        may_be_fastest: Whether no other contender is proven to be faster.
        refusal: Why the contender cannot be run, or None if it can.
    """

    outcome: SettingOutcome
    samples_s: tuple[float, ...]
    lag: Lag | None
    may_be_fastest: bool
    refusal: str | None = None

    @property
    def measured(self) -> MedianInterval | None:
        """Seconds of a batch: the median of its runs, or None without a run."""
        return median_interval(self.samples_s) if self.samples_s else None


@dataclass(frozen=True, slots=True, repr=False)
class SettingRace:
    """A finished race, or one that its budget ended.

    Attributes:
        contenders: The contenders, the fastest by prediction first.
        leader_index: Place of the leader among the contenders.
        num_rounds: Number of rounds; in each, every active contender runs once, in turn.
        budget_s: Budget in seconds.
        spent_s: Spent seconds.
        yardstick_s: Seconds of a fixed kernel before the first slice, and after each.
    """

    contenders: tuple[RacedSetting, ...]
    leader_index: int
    num_rounds: int
    budget_s: float
    spent_s: float
    yardstick_s: tuple[float, ...]

    def __repr__(self) -> str:
        return f"SettingRace({self.sentence!r})"

    @property
    def leader(self) -> RacedSetting:
        """The winner, or the leader if there is no clear winner."""
        return self.contenders[self.leader_index]

    @property
    def is_clear(self) -> bool:
        """Whether all others are shown slower."""
        return sum(contender.may_be_fastest for contender in self.contenders) == 1

    @property
    def runner_up(self) -> RacedSetting | None:
        """The next contender: the nearest to the leader among possible winners, or among all; None without others."""
        others = [contender for contender in self.contenders if contender.lag is not None]
        return min(others, key=lambda other: (not other.may_be_fastest, _lag_of(other).mean), default=None)

    @property
    def num_runs(self) -> int:
        """The number of runs of all contenders."""
        return sum(len(contender.samples_s) for contender in self.contenders)

    def state(self, contender: RacedSetting) -> str:
        """Return one word for a contender."""
        if contender.refusal is not None:
            return "out"
        if contender is self.leader:
            return "won" if self.is_clear else "leads"
        return "open" if contender.may_be_fastest else "slower"

    @property
    def sentence(self) -> str:
        """The winner, its margin, and the certainty, for people."""
        name, runner_up = str(self.leader.outcome.setting), self.runner_up
        if runner_up is None:
            return f"{name} is the only setting that can be run: there was nobody to race"
        lag, other = _lag_of(runner_up), str(runner_up.outcome.setting)
        if self.is_clear:
            return f"{name} won: the next, {other}, takes {_lag_text(lag)} longer"
        num_open = sum(contender.may_be_fastest for contender in self.contenders) - 1
        more = f", nor from {num_open - 1} more" if num_open > 1 else ""
        return (
            f"not clear: {name} leads, but is not told apart from {other}, which takes {_lag_text(lag)} longer{more}; "
            "the budget is spent"
        )

    @property
    def effort(self) -> str:
        """The number of runs, and the steadiness of the machine, for people."""
        least, most = min(self.yardstick_s), max(self.yardstick_s)
        return (
            f"rounds: {self.num_rounds}; runs: {self.num_runs}; {self.spent_s:.1f} of {self.budget_s:g} s; machine: a "
            f"fixed kernel took {readable_s(least)} to {readable_s(most)} meanwhile"
        )

    def plot(self) -> Figure:
        """Draw the excess of each runnable contender's time over the leader, with its interval."""
        from pipesched.simulator.views import lag_figure

        lags = {str(contender.outcome.setting): contender.lag for contender in self.contenders if not contender.refusal}
        return lag_figure(lags, self.sentence)

    def table(self) -> Table:
        """Return a row per contender; below, the winner."""
        rows = tuple(
            {
                "setting": str(contender.outcome.setting),
                "predicted": readable_s(contender.outcome.seconds or 0.0),
                "measured": "-" if contender.measured is None else readable_s(contender.measured.median),
                "±": _half_width(contender.measured),
                "runs": str(len(contender.samples_s)),
                "state": self.state(contender),
            }
            for contender in self.contenders
        )
        meaning = (
            "measured: median of the runs, one a round; ±: how far its 95 % interval reaches, by bootstrap\n"
            "who is slower: mean of ratios of the same rounds, t-intervals that hold together with 95 %"
        )
        refusals = [
            f"{contender.outcome.setting} is out: {contender.refusal}"
            for contender in self.contenders
            if contender.refusal
        ]
        return Table("Race of settings", rows, "\n".join([meaning, self.effort, *refusals, self.sentence]))

    def to_rows(self) -> list[dict[str, Any]]:
        """Return plain data, a row per contender: as predicted, as measured, and its state."""
        return [
            {
                **contender.outcome.to_row(),
                "predicted_s": contender.outcome.seconds,
                "measured_s": None if contender.measured is None else contender.measured.to_dict(),
                "lag": None if contender.lag is None else contender.lag.to_dict(),
                "rounds": len(contender.samples_s),
                "state": self.state(contender),
                "refusal": contender.refusal,
                "samples_s": list(contender.samples_s),
            }
            for contender in self.contenders
        ]

    def to_frame(self) -> pd.DataFrame:
        """Return a row per contender; its median, its lag, and the ends of their intervals are columns."""
        import pandas as pd

        frame = pd.json_normalize(self.to_rows(), sep="_")
        return frame.drop(columns=["measured_s", "lag"], errors="ignore")  # of contenders without one

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched tune --budget S --json`` prints it."""
        return {
            "is_clear": self.is_clear,
            "leader": self.leader.outcome.to_row(),
            "sentence": self.sentence,
            "contenders": self.to_rows(),
            "num_rounds": self.num_rounds,
            "num_runs": self.num_runs,
            "budget_s": self.budget_s,
            "spent_s": self.spent_s,
            "yardstick_s": list(self.yardstick_s),
        }

    def _repr_html_(self) -> str:
        return self.table().to_html()


def _lag_of(contender: RacedSetting) -> Lag:
    assert contender.lag is not None, "the leader has none"
    return contender.lag


def _lag_text(lag: Lag) -> str:
    if lag.to_dict()["high"] is None:
        return f"{readable_change(lag.mean)} (one run says no more)"
    return f"{readable_change(lag.mean)} ({readable_change(lag.low)} to {readable_change(lag.high)})"


def _half_width(interval: MedianInterval | None) -> str:
    if interval is None or interval.low == interval.high:
        return "-"
    return f"{max(interval.high / interval.median - 1, 1 - interval.low / interval.median):.1%}"
