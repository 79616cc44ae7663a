"""Race the best settings of the tuner on this machine: run them in turn, in growing slices, until one is clear."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from pipesched.profiles.processes import num_cores
from pipesched.simulator.search import Race
from pipesched.simulator.tuner import Setting, SettingOutcome
from pipesched.workflows import ArgumentError
from pipesched.workflows.tuning.race_result import RacedSetting, SettingRace
from pipesched.workflows.tuning.setting_runs import Measurement
from pipesched.workflows.tuning.setting_verdict import to_verify
from pipesched.workflows.tuning.tune_result import TuneResult

CONTENDERS = 4
"""Default number of settings in a race, beside plain 1F1B."""


def contenders_of(result: TuneResult, count: int = CONTENDERS) -> tuple[SettingOutcome, ...]:
    """Return the first `count` candidates and plain 1F1B; of candidates that differ only in advance, the first."""
    first: dict[Setting, SettingOutcome] = {}
    for outcome in result.candidates:
        first.setdefault(replace(outcome.setting, advance=None), outcome)
    return to_verify(tuple(first.values()), result.plain, count)


def raced(
    result: TuneResult,
    measurement: Measurement,
    budget_s: float,
    count: int = CONTENDERS,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> TuneResult:
    """Return `result` with a race of its best candidates, or unchanged if nothing fits.

    Args:
        result: Result of the search.
        measurement: Runs a setting.
        budget_s: Seconds of the race.
        count: Number of candidates, beside plain 1F1B.
        progress: Receives the spent fraction of the budget.

    Raises:
        ArgumentError: One round is predicted to take more than the budget.
        RankFailed: A rank failed, died or hung.
    """
    from pipesched.profiles.measuring import yardstick_s

    contenders = contenders_of(result, count)
    if not contenders:
        return result
    kind = result.problem.profile.provenance.kind
    num_busy = min(len(result.problem.cluster.devices), num_cores())
    race = race_settings(contenders, measurement, budget_s, lambda: yardstick_s(num_busy, kind), progress)
    return replace(result, race=race)


def race_settings(
    contenders: Sequence[SettingOutcome],
    measurement: Measurement,
    budget_s: float,
    look: Callable[[], float],
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    clock: Callable[[], float] = time.perf_counter,
) -> SettingRace:
    """Run `contenders` in turn until the fastest is clear of all others, or no further round fits into the budget.

    One run beforehand starts and loads the processes; it counts neither as a run nor in seconds. The first round is
    always completed.

    Args:
        contenders: Settings that fit, the fastest by prediction first.
        measurement: Runs one setting.
        budget_s: Seconds.
        look: Measures the seconds of a fixed kernel, before the first slice and after each.
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
    yardsticks_s = [look()]
    while not runner.race.is_over:
        is_spent = runner.run_slice()
        runner.race.look()
        yardsticks_s.append(look())
        if is_spent:
            break
    return runner.result(tuple(yardsticks_s))


def require_one_round(contenders: Sequence[SettingOutcome], measurement: Measurement, budget_s: float) -> None:
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
            f"{needed_s:.3g} s, expected enough for several; try `budget_s={10 * needed_s:.2g}`, or fewer iterations"
        )


class _Racing:
    """A race in progress: the runs of each contender, their durations, and the rest of the budget."""

    def __init__(
        self,
        contenders: Sequence[SettingOutcome],
        measurement: Measurement,
        progress: Callable[[float], None],
        budget_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.race = Race(len(contenders))
        self._contenders = contenders
        self._measurement = measurement
        self._progress = progress
        self._budget_s = budget_s
        self._clock = clock
        self._begun_s = clock()
        self._walls_s: list[list[float]] = [[] for _ in contenders]
        self._samples_s: list[list[float]] = [[] for _ in contenders]
        self._refusals: dict[int, str] = {}

    @property
    def spent_s(self) -> float:
        return self._clock() - self._begun_s

    def run_slice(self) -> bool:
        """Run one slice, with all rounds that fit into the budget; return whether the budget is spent."""
        for _ in range(self.race.slice_rounds):
            running = [contender for contender in self.race.running if contender not in self._refusals]
            if self.race.num_rounds and self.spent_s + sum(map(self._wall_s, running)) > self._budget_s:
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
        begun_s = self._clock()
        outcome = self._measurement(self._contenders[contender].setting)
        self._walls_s[contender].append(self._clock() - begun_s)
        self._progress(min(1.0, self.spent_s / self._budget_s))
        if outcome.seconds is None or not outcome.fits:
            self._refusals[contender] = outcome.reason or "nothing was measured"
            if len(self._refusals) == len(self._contenders):
                raise ArgumentError(f"none of {len(self._contenders)} settings can be run; the last: {outcome.reason}")
            self.race.withdraw(contender)
            return None
        self._samples_s[contender].append(outcome.seconds)
        return outcome.seconds

    def result(self, yardstick_s: tuple[float, ...]) -> SettingRace:
        race = self.race
        leader, *_ = race.staying
        raced = tuple(
            RacedSetting(
                outcome,
                tuple(self._samples_s[index]),
                None if index == leader or index in self._refusals else race.lag(index, leader),
                may_be_fastest=index in race.staying,
                refusal=self._refusals.get(index),
            )
            for index, outcome in enumerate(self._contenders)
        )
        return SettingRace(raced, leader, race.num_rounds, self._budget_s, self.spent_s, yardstick_s)
