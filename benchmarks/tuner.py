"""The quality of the tuner's choices: every (M, N) of a grid is run, and each evaluator's choice is looked up there.

    python benchmarks/tuner.py gpt --folder out/tuner                 # profile, run every setting, print the tables
    python benchmarks/tuner.py gpt --folder out/tuner --seconds 200   # a part of it; the next call continues

The folder keeps profiles and measurements. A measurement is repeated if other processes had more than a few per cent of
the cores. Rounds over all settings are repeated, and the median of each setting counts, because the speed of the
machine changes within minutes, and the best of twenty single runs would be the luckiest. Before each round the model is
profiled, because a choice is as good as its profile.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias, TypeVar

import pipesched
from pipesched.profiles.io import cluster_text, load_cluster, parse_record
from pipesched.profiles.processes import num_companions, num_cores
from pipesched.questions import AccountingChoice, EvaluatorChoice, MeasureSettings
from pipesched.simulator.analysis import to_markdown
from pipesched.simulator.search import Outcome, Setting
from pipesched.simulator.tuner import Problem, tuned
from pipesched.workflows.measuring import profile_links
from pipesched.workflows.tuning import Measurement, TuneResult, rank_correlation

Result = TypeVar("Result")
Row: TypeAlias = dict[str, str | int | float | None]
NUM_DEVICES = 2
MODELS = {  # model, batch, M
    "gpt": ("gpt:layers=6,width=128,heads=4,context=64", 16, (1, 2, 4, 8, 16)),
    "conv": ("conv:channels=32,blocks=4,image=16", 64, (2, 4, 8, 16, 32)),
    "lstm": ("lstm:layers=4,width=128,context=32", 32, (1, 2, 4, 8, 16)),
}
PIPELINES = (1, 2, 3, 4)
OTHERS, ATTEMPTS = 0.04, 3
"""Share of the cores that other processes may have; number of attempts of a measurement to get below it."""
WHO: tuple[tuple[str, EvaluatorChoice, AccountingChoice], ...] = (
    ("simulate", "simulate", "paper"),
    ("avgpipe, as printed", "avgpipe", "paper"),
    ("avgpipe, consistent", "avgpipe", "consistent"),
    ("max_num", "max_num", "paper"),
    ("max_size", "max_size", "paper"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One model, and the files of its profiles and measurements."""

    name: str
    folder: Path

    @property
    def settings(self) -> list[Setting]:
        return [tuned("avgpipe", NUM_DEVICES, m, n, 0) for n in PIPELINES for m in MODELS[self.name][2]]

    def tuned(
        self, profile: Path, evaluator: EvaluatorChoice = "simulate", accounting: AccountingChoice = "paper"
    ) -> TuneResult:
        """Return an evaluator's result for the grid with a profile."""
        _, batch_size, microbatches = MODELS[self.name]
        return pipesched.tune(
            pipesched.Setup(profile, self.links, partition="uniform"),
            batch_size=batch_size,
            microbatches=microbatches,
            pipelines=PIPELINES,
            advances=[0],
            evaluator=evaluator,
            accounting=accounting,
            num_workers=1,
        )

    @property
    def links(self) -> Path:
        return self.folder / f"{self.name}-links.json"

    @property
    def profiles(self) -> list[Path]:
        return sorted(self.folder.glob(f"{self.name}-profile-*.json"))

    def add(self, what: str, seconds: float, outcome: Outcome | None = None) -> None:
        """Save a result, and the time of its measurement [s]."""
        with (self.folder / f"{self.name}.jsonl").open("a") as file:
            file.write(json.dumps({"what": what, "took_s": seconds, "outcome": outcome and asdict(outcome)}) + "\n")

    def took_s(self, what: str) -> list[float]:
        return [row["took_s"] for row in self._rows() if row["what"] == what]

    def measured_s(self) -> dict[Setting, list[float]]:
        """Return the seconds of a batch, for each run of each setting."""
        seconds: dict[Setting, list[float]] = {}
        for row in self._rows():
            if row["outcome"]:
                outcome = parse_record(Outcome, json.dumps(row["outcome"]), self.name, "measure again")
                seconds.setdefault(outcome.setting, []).append(row["outcome"]["seconds"])
        return seconds

    def _rows(self) -> list[dict[str, Any]]:
        path = self.folder / f"{self.name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> int:
    arguments = _arguments()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    case, ends_s = Case(arguments.model, arguments.folder), time.monotonic() + arguments.seconds
    while todo := _next(case, arguments.iterations, arguments.rounds):
        if time.monotonic() > ends_s:
            print(f"{case.name}: not everything is measured yet; start it again", file=sys.stderr)
            return 3
        todo()
    report(case)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing further after so long")
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3, help="through the grid, each with a profile of its own")
    return parser.parse_args()


def _next(case: Case, iterations: int, num_rounds: int) -> Callable[[], None] | None:
    """Return the next measurement, or None if all are done."""
    if not case.links.exists():
        return partial(_measure_links, case)
    measured_s = case.measured_s()
    setting = min(case.settings, key=lambda setting: len(measured_s.get(setting, [])))  # the first of the fewest
    num_done = len(measured_s.get(setting, []))
    if num_done == num_rounds:
        return None
    return partial(_profile, case) if len(case.profiles) <= num_done else partial(_run, case, iterations, setting)


def _measure_links(case: Case) -> None:
    measured, seconds = undisturbed(lambda: profile_links(NUM_DEVICES), "links")
    case.links.write_text(cluster_text(measured.cluster, "the links"))
    case.add("links", seconds)


def _profile(case: Case) -> None:
    model, batch_size, microbatches = MODELS[case.name]
    sizes = sorted(batch_size // m for m in microbatches)
    companions = num_companions(NUM_DEVICES)
    measured, seconds = undisturbed(
        lambda: pipesched.profile(model, sizes, companions=companions, splits=False), "profile"
    )
    measured.save(case.folder / f"{case.name}-profile-{len(case.profiles) + 1}.json")
    case.add("profile", seconds)


def _run(case: Case, iterations: int, setting: Setting) -> None:
    profile, cluster = pipesched.load_profile(case.profiles[0]), load_cluster(case.links)
    measure = Measurement(
        Problem(profile, MODELS[case.name][1], cluster, "uniform"), MeasureSettings(iterations=iterations)
    )
    outcome, seconds = undisturbed(lambda: measure(setting), str(setting))
    case.add(str(setting), seconds, outcome)


def undisturbed(work: Callable[[], Result], what: str) -> tuple[Result, float]:
    """Return the result of `work` and its seconds, from an attempt with little load of other processes."""
    for attempt in range(1, ATTEMPTS + 1):
        start_s, before = time.monotonic(), _busy_s()
        result = work()
        seconds, after = time.monotonic() - start_s, _busy_s()
        others = (after[0] - before[0] - (after[1] - before[1])) / (seconds * num_cores())
        print(f"{what}: {seconds:.1f} s, others had {others:.1%} of the cores", file=sys.stderr, flush=True)
        if others < OTHERS or attempt == ATTEMPTS:
            break
    return result, seconds


def _busy_s() -> tuple[float, float]:
    """Return the seconds in which the cores were busy or taken away, and the processor time of our processes [s]."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    idle = {3, 4}  # of user nice system idle iowait irq softirq steal
    ticks = sum(int(field) for index, field in enumerate(fields) if index not in idle)
    per_s = os.sysconf("SC_CLK_TCK")
    return ticks / per_s, sum(map(_ticks_of_ours, Path("/proc").glob("[0-9]*/stat"))) / per_s


def _ticks_of_ours(path: Path) -> int:
    """Return the processor ticks of a process of our group and of its ended children; 0 for other processes."""
    try:
        fields = path.read_text().rpartition(")")[2].split()
    except OSError:
        return 0  # the process has ended, and counts with the parent that waited for it
    return sum(map(int, fields[11:15])) if int(fields[2]) == os.getpgrp() else 0


def report(case: Case) -> None:
    """Print the grid, and the choice of each evaluator."""
    runs_s = case.measured_s()
    measured_s = {setting: median(runs_s[setting]) for setting in case.settings}
    start_s = time.perf_counter()
    results = [case.tuned(path) for path in case.profiles]
    search_s = (time.perf_counter() - start_s) / len(results)
    predicted = [{outcome.setting: outcome for outcome in result.outcomes} for result in results]
    traversal_s = sum(case.took_s(str(setting))[0] for setting in case.settings)
    profile_s = median(case.took_s("profile")) + case.took_s("links")[-1]
    problem = results[0].problem
    print(f"## {problem.profile.model}, batches of {problem.batch_size}\n")
    print(to_markdown(_grid(case.settings, predicted, measured_s)))
    print(to_markdown([_choice(case, name, evaluator, accounting, measured_s) for name, evaluator, accounting in WHO]))
    spread = max(max(runs) / min(runs) - 1 for runs in runs_s.values())
    share, all_in = search_s / traversal_s, (search_s + profile_s) / traversal_s
    print(
        f"Traversal {traversal_s:.0f} s; search with simulate {search_s:.2f} s ({share:.2%} of it), "
        f"with the measurement of profile and links {search_s + profile_s:.1f} s ({all_in:.1%}). "
        f"Runs of one setting lie up to {spread:.0%} apart."
    )


def _grid(
    settings: Sequence[Setting],
    predicted: Sequence[Mapping[Setting, Outcome]],
    measured_s: Mapping[Setting, float],
) -> list[Row]:
    """Return a row for each M; in each cell the time per batch, predicted by the median profile and measured."""
    rows: dict[int, Row] = {}
    for setting in settings:
        row = rows.setdefault(setting.num_each, {"M": str(setting.num_each)})
        guess_s, real_s = median(_seconds(outcomes[setting]) for outcomes in predicted), measured_s[setting]
        cell = f"{guess_s * 1e3:.1f} / {real_s * 1e3:.1f} ms ({guess_s / real_s - 1:+.0%})"
        row[f"N={setting.num_pipelines}, predicted / measured"] = cell
    return list(rows.values())


def _choice(
    case: Case,
    name: str,
    evaluator: EvaluatorChoice,
    accounting: AccountingChoice,
    measured_s: Mapping[Setting, float],
) -> Row:
    """Return the choices of an evaluator, one for each profile."""
    chosen, correlations = [], []
    for path in case.profiles:
        outcomes = case.tuned(path, evaluator, accounting).outcomes
        chosen.append(outcomes[0].setting)
        correlation = rank_correlation(
            [_seconds(outcome) for outcome in outcomes], [measured_s[outcome.setting] for outcome in outcomes]
        )
        correlations.append("-" if correlation is None else f"{correlation:.2f}")
    best_s = min(measured_s.values())
    guesses = evaluator in ("max_num", "max_size")
    return {
        "evaluator": name,
        "chosen (M, N), by profile": ", ".join(f"({setting.num_each}, {setting.num_pipelines})" for setting in chosen),
        "measured": ", ".join(f"{measured_s[setting] * 1e3:.1f} ms" for setting in chosen),
        "regret": ", ".join(f"{measured_s[setting] / best_s - 1:.1%}" for setting in chosen),
        "rank correlation": "" if guesses else ", ".join(correlations),
    }


def _seconds(outcome: Outcome) -> float:
    assert outcome.seconds is not None, f"{outcome.setting}: {outcome.reason}"
    return outcome.seconds


if __name__ == "__main__":
    sys.exit(main())
