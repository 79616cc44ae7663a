"""From a space and a method to the settings found, ranked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesched.cli.errors import InputError, NotThereError
from pipesched.cli.output.terminal import progress_bar

if TYPE_CHECKING:
    from pipesched.cli.flows.tune_measure import Measurement
    from pipesched.cli.options.tune_options import ProblemOptions
    from pipesched.simulator.tuner import Evaluator, Judge, Problem, Runner, Setting, SettingOutcome


@dataclass(frozen=True, slots=True)
class Method:
    """Who evaluates settings, and where; the attributes are the command's options."""

    evaluator: str
    accounting: str
    workers: int | None
    ray: str | None
    resume: Path | None

    def require_possible(self, problem: ProblemOptions) -> None:
        """Refuse options that contradict each other.

        Raises:
            InputError: They do.
        """
        if self.resume is not None and self.evaluator == "avgpipe":
            raise InputError("--resume: got it with --evaluator avgpipe, whose equations take no time; leave it out")
        if self.resume is not None and not problem.is_file:
            raise InputError(
                f"--resume: got it with {problem.model}, which would be profiled anew, expected the same profile as "
                "before; try pipesched profile --out first"
            )
        for option, given in (("--workers", self.workers), ("--ray", self.ray)):
            if given is not None and self.evaluator == "measure":
                raise InputError(f"{option}: got it with --evaluator measure, which runs one setting after the other")
        if self.workers is not None and self.ray is not None:
            raise InputError("--ray: got --workers too, expected one of them: a cluster has its own; leave one out")


@dataclass(frozen=True, slots=True)
class TuneResult:
    """All settings, ranked by the evaluator.

    Attributes:
        outcomes: The one that the evaluator ranks first at the front, the rejected last.
        plain: 1F1B at its best M; None if it does not fit.
        averages: Whether the answer may be a setting that is averaged elastically.
        advanced: The answer with the smallest advance that takes AFAB's time, by our model; None if none does.
    """

    evaluator: str
    outcomes: tuple[SettingOutcome, ...]
    plain: SettingOutcome | None
    averages: bool
    advanced: SettingOutcome | None = None

    @property
    def fitting(self) -> tuple[SettingOutcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.fits)

    @property
    def candidates(self) -> tuple[SettingOutcome, ...]:
        """Those that fit, without another training than the plain one unless it is asked for, or nothing else fits."""
        plainly = tuple(outcome for outcome in self.fitting if outcome.setting.training == "plain")
        return self.fitting if self.averages or not plainly else plainly

    @property
    def others(self) -> tuple[SettingOutcome, ...]:
        """Those that fit and are no candidates."""
        if len(self.candidates) == len(self.fitting):
            return ()
        return tuple(outcome for outcome in self.fitting if outcome.setting.training != "plain")

    @property
    def chosen(self) -> SettingOutcome | None:
        """The answer; None if nothing fits."""
        return next(iter(self.candidates), None)

    @property
    def averaged(self) -> SettingOutcome | None:
        """What is ranked before the answer, with another training that nobody has asked for; None if nothing is."""
        first = next(iter(self.fitting), None)
        return None if first is self.chosen else first

    def gain(self, outcome: SettingOutcome) -> float | None:
        """Return how many times as fast as plain 1F1B a setting is."""
        if self.plain is None or self.plain.seconds is None or not outcome.seconds:
            return None
        return self.plain.seconds / outcome.seconds

    def to_dict(self, rows: list[dict[str, Any]], commands: Callable[[Setting], dict[str, str]]) -> dict[str, Any]:
        best, averaged = self.chosen, self.averaged
        return {
            "evaluator": self.evaluator,
            "chosen": None if best is None else best.to_row(),
            "training": None if best is None else best.setting.training.value,
            "commands": None if best is None else commands(best.setting),
            "plain_1f1b": None if self.plain is None else self.plain.to_row(),
            "gain_over_plain_1f1b": None if best is None else self.gain(best),
            "smallest_advance_as_fast_as_afab": None if self.advanced is None else self.advanced.setting.advance,
            "with_elastic_averaging": None
            if averaged is None
            else {
                "chosen": averaged.to_row(),
                "commands": commands(averaged.setting),
                "gain_over_plain_1f1b": self.gain(averaged),
            },
            "settings": rows,
        }


def search_all(
    problem: Problem,
    settings: Sequence[Setting],
    method: Method,
    measurement: Measurement | None,
    *,
    averages: bool,
) -> TuneResult:
    """Evaluate `settings`, with `measurement` if the method is to run them.

    Args:
        averages: Whether the answer may be a setting that is averaged elastically.

    Raises:
        InputError: None of them can be.
        SimulationError: Ray is asked for and not installed.
        RankFailed: With ``measure``, if a rank failed, died or hung.
    """
    from pipesched.simulator.tuner import Accounting, Evaluator, Journal, best_plain, ranked, search_settings

    who = Evaluator(method.evaluator)
    measures = who is Evaluator.MEASURE
    how = repr(measurement.options) if measures and measurement is not None else "simulate"
    with progress_bar(f"{'running' if measures else 'tuning over'} {len(settings)} settings") as tick:
        outcomes = search_settings(
            problem,
            settings,
            who,
            accounting=Accounting(method.accounting),
            workers=_workers(method, len(settings)),
            tick=tick,
            judge=measurement if measures else None,
            runner=_in_turn if measures else _runner(method),
            journal=None if method.resume is None else Journal(method.resume, problem, how),
        )
    if all(outcome.seconds is None for outcome in outcomes):
        raise InputError(f"none of {len(outcomes)} settings can be; the first: {outcomes[0].reason}")
    found = TuneResult(method.evaluator, ranked(outcomes, who), best_plain(outcomes), averages)
    return found if measures else replace(found, advanced=_advanced(problem, found, who))


def _workers(method: Method, num_settings: int) -> int:
    from pipesched.profiles.processes import num_cores

    few = num_settings < 100 or method.evaluator == "avgpipe"  # then starting processes takes longer than the work
    return 1 if few and method.workers is None else method.workers or num_cores()


def _runner(method: Method) -> Runner | None:
    if method.ray is None:
        return None
    from pipesched.simulator import SimulationError
    from pipesched.simulator.tuner import on_ray

    try:
        return on_ray(method.ray)
    except SimulationError as error:
        raise NotThereError(str(error)) from error


def _in_turn(judge: Judge, settings: Sequence[Setting]) -> Iterator[SettingOutcome]:
    """One after the other, and nothing beside it; settings of one size follow each other."""
    return map(judge, settings)


def _advanced(problem: Problem, found: TuneResult, who: Evaluator) -> SettingOutcome | None:
    from pipesched.simulator.tuner import Evaluator, evaluate_setting, smallest_advance

    if found.chosen is None or found.chosen.setting.advance is None:
        return None
    known = {} if who is Evaluator.AVGPIPE else {outcome.setting: outcome for outcome in found.outcomes}
    return smallest_advance(
        lambda setting: known.get(setting) or evaluate_setting(problem, setting), found.chosen.setting
    )
