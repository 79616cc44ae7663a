"""A race of the best settings of the tuner on this machine: they run in turn, in growing slices, until one is clear."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pipesched.questions import OnShare, unheard
from pipesched.simulator.analysis import readable_change, readable_s
from pipesched.simulator.fidelity import MedianInterval
from pipesched.simulator.search import Lag, Outcome, Race, Setting
from pipesched.simulator.tuner import tuned_row
from pipesched.workflows import ArgumentError, Result, Table
from pipesched.workflows.tuning.setting_runs import Measurement, RunSetting

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

LinesOf: TypeAlias = Callable[[Setting], Sequence[str]]
"""Returns the lines that run a setting, which stand below the answer."""
CONTENDERS = 4
"""Default number of settings in a race, beside plain 1F1B."""


@dataclass(frozen=True, slots=True, repr=False)
class SettingRace(Result):
    """A finished race, or one that its budget ended.

    Attributes:
        contenders: The contenders, the fastest by prediction first.
        leader_index: Place of the leader among the contenders.
        num_rounds: Number of rounds; in each, every active contender runs once, in turn.
        budget_s: Budget in seconds.
        spent_s: Spent seconds.
        yardstick_s: Seconds of a fixed kernel before the first slice, and after each.
    """

    contenders: tuple[RunSetting, ...]
    leader_index: int
    num_rounds: int
    budget_s: float
    spent_s: float
    yardstick_s: tuple[float, ...]

    def __repr__(self) -> str:
        return f"SettingRace({self.sentence!r})"

    @property
    def leader(self) -> RunSetting:
        """The winner, or the leader if there is no clear winner."""
        return self.contenders[self.leader_index]

    @property
    def is_clear(self) -> bool:
        """Whether the runs show that all others are slower."""
        return sum(contender.may_be_fastest for contender in self.contenders) == 1

    @property
    def runner_up(self) -> RunSetting | None:
        """The next contender: the nearest to the leader among possible winners, or among all; None without others."""
        others = [contender for contender in self.contenders if contender.lag is not None]
        return min(others, key=lambda other: (not other.may_be_fastest, _lag_of(other).mean), default=None)

    @property
    def num_runs(self) -> int:
        """The number of runs of all contenders."""
        return sum(len(contender.samples_s) for contender in self.contenders)

    def state(self, contender: RunSetting) -> str:
        """Return the state of a contender: ``out``, ``won``, ``leads``, ``open`` or ``slower``."""
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
            return f"{name} is the only setting that can be run: no other setting to race"
        lag, other = _lag_of(runner_up), str(runner_up.outcome.setting)
        if self.is_clear:
            return f"{name} won: the next, {other}, takes {_lag_text(lag)} longer"
        num_open = sum(contender.may_be_fastest for contender in self.contenders) - 1
        more = f", or from {num_open - 1} more" if num_open > 1 else ""
        return (
            f"no clear winner: {name} leads, but cannot be told apart from {other}, which takes {_lag_text(lag)} "
            f"longer{more}; the budget is spent"
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

    def table(self, lines_of: LinesOf = lambda setting: ()) -> Table:  # noqa: ARG005
        """Return a row per contender; below, the winner, and the lines that run it."""
        rows = tuple(
            {
                "setting": str(contender.outcome.setting),
                "predicted": readable_s(contender.predicted_s),
                "measured": "-" if contender.measured is None else readable_s(contender.measured.median),
                "±": _half_width(contender.measured),
                "runs": str(len(contender.samples_s)),
                "state": self.state(contender),
            }
            for contender in self.contenders
        )
        meaning = (
            "measured: median of the runs, one per round; ±: half-width of its 95 % interval, by bootstrap\nslower: "
            "mean ratio to the leader in the same round; its t-intervals hold for all settings together with 95 %"
        )
        refusals = [
            f"{contender.outcome.setting} is out: {contender.refusal}"
            for contender in self.contenders
            if contender.refusal
        ]
        lines = [meaning, self.effort, *refusals, self.sentence, *lines_of(self.leader.outcome.setting)]
        return Table("Race of settings", rows, "\n".join(lines))

    def to_rows(self) -> list[dict[str, Any]]:
        """Return plain data, a row per contender: as predicted, as measured, and its state."""
        return [
            {
                **tuned_row(contender.outcome),
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
            "leader": tuned_row(self.leader.outcome),
            "sentence": self.sentence,
            "contenders": self.to_rows(),
            "num_rounds": self.num_rounds,
            "num_runs": self.num_runs,
            "budget_s": self.budget_s,
            "spent_s": self.spent_s,
            "yardstick_s": list(self.yardstick_s),
        }


def _lag_of(contender: RunSetting) -> Lag:
    assert contender.lag is not None, "the leader has none"
    return contender.lag


def _lag_text(lag: Lag) -> str:
    if lag.to_dict()["high"] is None:
        return f"{readable_change(lag.mean)} (one run: no interval)"
    return f"{readable_change(lag.mean)} ({readable_change(lag.low)} to {readable_change(lag.high)})"


def _half_width(interval: MedianInterval | None) -> str:
    if interval is None or interval.low == interval.high:
        return "-"
    return f"{max(interval.high / interval.median - 1, 1 - interval.low / interval.median):.1%}"


def to_run(outcomes: Sequence[Outcome], plain: Outcome | None, count: int) -> tuple[Outcome, ...]:
    """Return the first `count` of `outcomes`, which fit, and plain 1F1B for comparison."""
    best = list(outcomes[:count])
    return (*best, plain) if best and plain is not None and plain not in best else tuple(best)


def contenders_of(candidates: Sequence[Outcome], plain: Outcome | None, count: int = CONTENDERS) -> tuple[Outcome, ...]:
    """Return the first `count` candidates and plain 1F1B; of candidates that differ only in advance, the first."""
    first: dict[Setting, Outcome] = {}
    for outcome in candidates:
        any_advance = outcome.setting
        if any_advance.advance is not None:
            any_advance = any_advance.in_pipelines(any_advance.num_pipelines, 0)
        first.setdefault(any_advance, outcome)
    return to_run(tuple(first.values()), plain, count)


def race_settings(
    contenders: Sequence[Outcome],
    measurement: Measurement,
    budget_s: float,
    progress: OnShare = unheard,
    clock: Callable[[], float] = time.perf_counter,
) -> SettingRace:
    """Run `contenders` in turn until the fastest is clear of all others, or no further round fits into the budget.

    One run beforehand starts and loads the processes; it counts neither as a run nor in seconds. The first round is
    always completed.

    Args:
        contenders: Settings that fit, the fastest by prediction first.
        measurement: Runs one setting, and a fixed kernel before the first slice and after each.
        budget_s: Seconds.
        progress: Receives the spent fraction of the budget.
        clock: Returns the present moment [s].

    Raises:
        ArgumentError: One round is predicted to take more than the budget, or none of the settings can be run.
        RankFailed: A rank failed, died or hung.
    """
    require_one_round(contenders, measurement, budget_s)
    if len(contenders) > 1:
        measurement(contenders[0].setting)
    runner = _Racing(contenders, measurement, progress, budget_s, clock)
    yardsticks_s = [measurement.look()]
    while not runner.race.is_over:
        is_spent = runner.run_slice()
        runner.race.look()
        yardsticks_s.append(measurement.look())
        if is_spent:
            break
    return runner.result(tuple(yardsticks_s))


def require_one_round(contenders: Sequence[Outcome], measurement: Measurement, budget_s: float) -> None:
    """Refuse, before any run, a budget that one round is predicted to exceed.

    Raises:
        ArgumentError: The budget is too small.
    """
    needed_s = sum(
        (outcome.seconds or 0.0) * outcome.setting.num_pipelines * measurement.num_iterations(outcome.setting)
        for outcome in contenders
    )
    if len(contenders) > 1 and needed_s > budget_s:
        raise ArgumentError(
            f"budget_s: got {budget_s:g} s, but one round of {len(contenders)} settings is predicted to take "
            f"{needed_s:.3g} s, expected enough for several rounds; try `budget_s={10 * needed_s:.2g}`, or fewer "
            "iterations"
        )


@dataclass
class _Racing:
    """A race in progress: the runs of each contender, their durations, and the rest of the budget."""

    contenders: Sequence[Outcome]
    measurement: Measurement
    progress: Callable[[float], None]
    budget_s: float
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self.race = Race(len(self.contenders))
        self._begun_s = self.clock()
        self._walls_s: list[list[float]] = [[] for _ in self.contenders]
        self._runs: list[list[Outcome]] = [[] for _ in self.contenders]
        self._refusals: dict[int, str] = {}

    @property
    def spent_s(self) -> float:
        return self.clock() - self._begun_s

    def run_slice(self) -> bool:
        """Run one slice, with all rounds that fit into the budget; return whether the budget is spent."""
        for _ in range(self.race.slice_rounds):
            running = [contender for contender in self.race.running if contender not in self._refusals]
            if self.race.num_rounds and self.spent_s + sum(map(self._wall_s, running)) > self.budget_s:
                return True
            # to and fro, so that a steady drift within a round cancels too
            ordered = running if self.race.num_rounds % 2 == 0 else running[::-1]
            seconds = {contender: self._run(contender) for contender in ordered}
            self.race.add({contender: taken for contender, taken in seconds.items() if taken is not None})
            if self.race.is_over:
                break
        return False

    def _wall_s(self, contender: int) -> float:
        walls_s = self._walls_s[contender]
        return sum(walls_s) / len(walls_s)

    def _run(self, contender: int) -> float | None:
        """Return the seconds of a batch, or None for a setting that cannot be run, which is then out of the race."""
        begun_s = self.clock()
        outcome = self.measurement(self.contenders[contender].setting)
        self._walls_s[contender].append(self.clock() - begun_s)
        self.progress(min(1.0, self.spent_s / self.budget_s))
        if outcome.seconds is None or not outcome.fits:
            self._refusals[contender] = outcome.reason or "nothing was measured"
            if len(self._refusals) == len(self.contenders):
                raise ArgumentError(
                    f"none of {len(self.contenders)} settings can be run; the reason of the last: {outcome.reason}"
                )
            self.race.withdraw(contender)
            return None
        self._runs[contender].append(outcome)
        return outcome.seconds

    def result(self, yardstick_s: tuple[float, ...]) -> SettingRace:
        race = self.race
        leader, *_ = race.staying
        raced = tuple(
            RunSetting(
                outcome,
                tuple(self._runs[index]),
                None if index == leader or index in self._refusals else race.lag(index, leader),
                may_be_fastest=index in race.staying,
                refusal=self._refusals.get(index),
            )
            for index, outcome in enumerate(self.contenders)
        )
        return SettingRace(raced, leader, race.num_rounds, self.budget_s, self.spent_s, yardstick_s)
