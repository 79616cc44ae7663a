"""The result of ``tune`` for people: the settings in tables, and below them the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pipesched.cli.errors import in_flags
from pipesched.cli.terminal import num_bytes, percent, print_result, print_table, seconds

if TYPE_CHECKING:
    from pipesched.simulator.tuner import Setting, SettingOutcome
    from pipesched.workflows.tuning import SettingRace, TuneResult, Verdict


def print_settings(
    result: TuneResult,
    top: int,
    commands: Callable[[Setting], dict[str, str]],
    notes: Sequence[str],
) -> None:
    """Print the answer with the first `top` candidates, then other settings that fit, then rejected settings."""
    num_fitting = len(result.fitting)
    candidates, others, rejected = result.candidates, result.others, result.outcomes[num_fitting:]
    if candidates:
        title = f"{len(candidates)} of {num_fitting} settings that fit train as plain training does"
        caption = [*_answer(result, commands), *_left_out(candidates, top), *notes]
        title = title if others else f"{num_fitting} settings fit"
        print_table(title, _rows(result, candidates[:top]), "\n".join(caption))
    if others:
        title = f"{len(others)} settings that fit have elastic averaging, which is another training"
        caption = [*_averaged(result, commands), *_left_out(others, top), *([] if candidates else notes)]
        print_table(title, _rows(result, others[:top]), "\n".join(caption))
    if rejected:
        more = "" if len(rejected) <= top else f"; {len(rejected) - top} more are left out (--top, --out)"
        print_table(f"{len(rejected)} settings are rejected{more}", _rejected(rejected[:top]))


def page_of_settings(result: TuneResult, commands: Callable[[Setting], dict[str, str]], notes: Sequence[str]) -> str:
    """Return the page of all settings, with the lines that are printed below their tables."""
    fitting = [*result.candidates, *result.others]
    outcomes = [*fitting, *result.outcomes[len(fitting) :]]
    rows = _rows(result, outcomes)
    if len(fitting) < len(outcomes):
        from pipesched.simulator.analysis import readable_reason

        rows = [
            row | {"rejected": in_flags(readable_reason(outcome.reason))}
            for row, outcome in zip(rows, outcomes, strict=True)
        ]
    raced = (
        [] if result.race is None else [*result.race.table().lines(()), *_typed(commands, result.race.leader.outcome)]
    )
    lines = [*_answer(result, commands), *raced, *_averaged(result, commands), *notes]
    return result.page(rows, "\n".join(lines if fitting else [*notes, "nothing fits"]))


def _answer(result: TuneResult, commands: Callable[[Setting], dict[str, str]]) -> list[str]:
    """Return the lines on the first candidate, with its command lines; after a race, they stand below the race."""
    if not result.candidates:
        return []
    best = result.candidates[0]
    return [_first(result, best), *([] if result.race else _typed(commands, best))]


def _averaged(result: TuneResult, commands: Callable[[Setting], dict[str, str]]) -> list[str]:
    """Return the lines on the best setting with another training, if there are such settings."""
    if not result.others:
        return []
    if result.averaged is None:
        return [f"none with elastic averaging comes before the one {_verb(result)}"]
    best = result.others[0]
    told = f"with elastic averaging {result.evaluator} chooses {_told(result, best)}; -n makes it the answer"
    return [told, *_typed(commands, best)]


def _first(result: TuneResult, best: SettingOutcome) -> str:
    line = f"{_verb(result)} by {result.evaluator}: {_told(result, best)}; training: {best.setting.training}"
    line += "; the race below chooses" if result.race else ""
    if result.advanced is not None:
        line += f"; advance={result.advanced.setting.advance} is the least that takes the time of AFAB"
    return line


def _verb(result: TuneResult) -> str:
    """Return the verb for the first setting, which need not be the answer if there was a race."""
    return "ranked first" if result.race else "chosen"


def _told(result: TuneResult, outcome: SettingOutcome) -> str:
    told, gain = f"{outcome.setting}, {seconds(outcome.seconds or 0.0)} per batch", result.gain(outcome)
    if result.plain is None or gain is None:
        return told
    if result.plain.setting == outcome.setting:
        return f"{told}, plain 1F1B at its best"
    return f"{told}, {gain:.3g} x as fast as plain 1F1B at its best ({result.plain.setting})"


def _typed(commands: Callable[[Setting], dict[str, str]], outcome: SettingOutcome) -> list[str]:
    return [f"    {line}" for line in commands(outcome.setting).values()]


def _left_out(outcomes: Sequence[SettingOutcome], top: int) -> list[str]:
    return [f"{len(outcomes) - top} that come after these are left out (--top, --out)"] if len(outcomes) > top else []


def _rows(result: TuneResult, outcomes: Sequence[SettingOutcome]) -> list[dict[str, str]]:
    from pipesched.simulator.analysis import readable_pace

    rows = []
    for number, outcome in enumerate(outcomes, 1):
        time_s, gain, pace = outcome.seconds or 0.0, result.gain(outcome), result.pace_of(outcome)
        rows.append(
            {
                "": str(number),
                **_named(outcome),
                "time per batch": "-" if outcome.seconds is None else seconds(time_s),
                "memory": num_bytes(outcome.held_bytes or None),
                "over plain 1F1B": "-" if gain is None else f"{gain:.3f} x",
                "samples/s": f"{result.problem.batch_size / time_s:.4g}" if time_s else "-",
                "steady / micro-batch": readable_pace(pace),
                "steady bubble": "-" if pace is None or pace.bubble_fraction is None else percent(pace.bubble_fraction),
                "training": outcome.setting.training.value,
            }
        )
    return _telling(rows)


def _rejected(outcomes: Sequence[SettingOutcome]) -> list[dict[str, str]]:
    from pipesched.simulator.analysis import readable_reason

    rows = [
        {
            **_named(outcome),
            "time per batch": "-" if outcome.seconds is None else seconds(outcome.seconds),
            "memory": num_bytes(outcome.held_bytes or None),
            "why": in_flags(readable_reason(outcome.reason).partition(" from ")[0]),  # when, at which op: --out
            "training": outcome.setting.training.value,
        }
        for outcome in outcomes
    ]
    return _telling(_folded(rows))


def _folded(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows, with settings that cannot be predicted for one reason merged into a row."""
    groups: dict[str, list[dict[str, str]]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(row["why"] if row["time per batch"] == "-" else str(number), []).append(row)
    return [
        {name: ", ".join(dict.fromkeys(row[name] for row in alike)) for name in alike[0]} for alike in groups.values()
    ]


def _telling(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows without columns that have only usual values."""
    usual = {"N": "1", "advance": "-", "chunks": "-", "recompute": "no"}
    usual |= {"steady / micro-batch": "-", "steady bubble": "-"}
    dull = {name for name, value in usual.items() if all(row.get(name, value) == value for row in rows)}
    return [{name: cell for name, cell in row.items() if name not in dull} for row in rows]


def _named(outcome: SettingOutcome) -> dict[str, str]:
    setting = outcome.setting
    return {
        "schedule": setting.name,
        "M per pipeline": str(setting.num_microbatches),
        "N": str(setting.num_pipelines),
        "advance": str(setting.parameters.get("advance", "-")),
        "chunks": "-" if setting.num_chunks is None else str(setting.num_chunks),
        "recompute": "yes" if setting.recomputes else "no",
    }


def print_verdict(verdict: Verdict) -> None:
    """Print predictions beside measurements, and the verdict on the choice, which is the first."""
    print_result(verdict.table(), verdict.notes)


def print_race(race: SettingRace, commands: Callable[[Setting], dict[str, str]]) -> None:
    """Print a row per contender, the winner, and the lines that run it."""
    print_result(race.table(), _typed(commands, race.leader.outcome))


def result_to_dict(result: TuneResult, commands: Callable[[Setting], dict[str, str]]) -> dict[str, Any]:
    """Return plain data, with the command lines of the answer."""
    best, averaged = result.chosen, result.averaged
    return {
        "evaluator": result.evaluator,
        "chosen": None if best is None else result.row_of(best),
        "training": None if best is None else best.setting.training.value,
        "commands": None if best is None else commands(best.setting),
        "plain_1f1b": None if result.plain is None else result.row_of(result.plain),
        "gain_over_plain_1f1b": None if best is None else result.gain(best),
        "smallest_advance_as_fast_as_afab": None if result.advanced is None else result.advanced.setting.advance,
        "with_elastic_averaging": None
        if averaged is None
        else {
            "chosen": result.row_of(averaged),
            "commands": commands(averaged.setting),
            "gain_over_plain_1f1b": result.gain(averaged),
        },
        "settings": result.to_rows(),
        **({} if result.race is None else {"race": result.race.to_dict()}),
    }
