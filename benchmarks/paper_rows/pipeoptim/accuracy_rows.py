"""Accuracy of the approaches: Figs 3, 4, 5 and 7, Table IV; read from the page of benchmarks/convergence.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from convergence import SETTINGS, score
from paired_statistics import interval
from published_results import ORDERINGS, WHOLE, Ordering
from report import parts_of

from paper_rows.figure import Outcome, Verdict
from paper_rows.two_at_once import two_at_once
from pipesched.profiles import OPTIMIZER_MOMENTS, OptimizerName

_PAGE = Path(__file__).parents[2] / "results" / "convergence.md"
_COMMAND = "python benchmarks/convergence.py --data digits-4"
_PART, _PAIRS = "# How well every scheme learns: digits, four stages", "Pairs of the papers, by the best accuracy"
_LONGER, _SEEDS, _SCANS = 4, 12, 1500
"""Multiple of the page's steps for a pair that comes out opposite; seeds; scans of an epoch."""
_EPOCHS = {"momentum": "70", "adam": "8 to 50", "adamw": "50 to 120"}
"""Epochs of the paper's models by optimizer."""
_SIGNS = {"ahead": 1, "undecided": 0, "behind": -1}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two schemes in the paper and here, with one optimizer.

    Attributes:
        published: 1 or -1 if the first is ahead, or behind, with every model of the paper; 0 if the models differ.
        sign: The same here, by the test of paired seeds; 0 if it is undecided.
        text: The gain here, as on the page.
    """

    first: str
    second: str
    optimizer: OptimizerName
    published: int
    sign: int
    text: str


@cache
def pairs() -> tuple[Pair, ...]:
    """Return the pairs of PipeOptim's Table IV and section V-E, from the page."""
    _, _, section = parts_of(_PAGE.read_text())[_PART].partition(_PAIRS)
    head, *rows = _rows(section)
    optimizers = [name for cell in head for name in OPTIMIZER_MOMENTS if cell == f"{name}: paper"]
    cells = {(row[0], row[1]): row[4::2] for row in rows}
    return tuple(
        _pair(ordering, optimizer, gain)
        for ordering in ORDERINGS
        if ordering.source.startswith("PipeOptim")
        for optimizer, gain in zip(optimizers, cells.get((ordering.first, ordering.second), ()), strict=False)
    )


def _rows(section: str) -> Iterator[list[str]]:
    """Yield the cells of the head and of each row of a section's table."""
    for line in section.splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def _pair(ordering: Ordering, optimizer: OptimizerName, gain: str) -> Pair:
    text = gain.replace("*", "")
    sign = next(sign for word, sign in _SIGNS.items() if text.endswith(word))
    return Pair(ordering.first, ordering.second, optimizer, ordering.sign(optimizer), sign, text)


def _outcome(published: str, chosen: Sequence[Pair]) -> Outcome:
    judged = [pair for pair in chosen if pair.published]
    counts = Counter(pair.sign * pair.published for pair in judged)
    opposite = [_trained_longer(pair) for pair in judged if pair.sign * pair.published < 0]
    unjudged = [
        f" Not judged, as the paper's models differ: {pair.first} and {pair.second} with {pair.optimizer}, {pair.text}."
        for pair in chosen
        if pair.second == WHOLE and pair.sign and not pair.published
    ]
    verdict = _verdict(counts)
    if unjudged and verdict is Verdict.AGREES:
        verdict = Verdict.SHAPE
    return Outcome(
        published,
        f"{counts[1]} of {len(judged)} pairs as in the paper, {counts[0]} undecided, {counts[-1]} opposite",
        verdict,
        "Pairs whose models all agree in the paper, by maximum accuracy on digits, four stages (convergence.md). "
        "Agrees if most have the paper's sign and none the opposite; the shape if some have and none the opposite, or "
        "if a pair with GPipe is decided here whose models differ in the paper. "
        "Signs come from paired seeds, tested exactly." + "".join(unjudged + opposite),
        command=_COMMAND,
    )


def longest(run: tuple[str, OptimizerName]) -> list[float]:
    """Return the maximum accuracy of each seed after more steps than on the page [%]."""
    setting = SETTINGS["digits-4"]
    longer = replace(setting, steps=_LONGER * setting.steps)
    return [float(percent) for percent in score(longer, *run, _SEEDS).maximum]


@cache
def _trained_longer(pair: Pair) -> str:
    """Return a sentence on a pair with the opposite sign, and on its difference after more steps."""
    setting, schemes = SETTINGS["digits-4"], (pair.first, pair.second)
    first, second = map(np.array, two_at_once(longest, [(scheme, pair.optimizer) for scheme in schemes]))
    low, high = interval((first - second).tolist())
    epochs = setting.steps * setting.batch_size / _SCANS
    return (
        f" Opposite: {pair.first} and {pair.second} with {pair.optimizer} ({pair.text.split()[0]}). The page's "
        f"{setting.steps} steps are {epochs:.0f} epochs, the paper has {_EPOCHS[pair.optimizer]}: after "
        f"{_LONGER * setting.steps} steps the difference is {(first - second).mean():+.2f} [{low:+.2f}, {high:+.2f}]."
    )


def _verdict(signs: Counter[int]) -> Verdict:
    """Return the verdict on counts of pairs: of the paper's sign (1), undecided (0), of the opposite (-1)."""
    if signs[-1] or not signs[1]:
        return Verdict.DIFFERS
    return Verdict.AGREES if signs[1] > signs[0] else Verdict.SHAPE


def _curves(optimizer: str, published: str) -> Outcome:
    return _outcome(published, [pair for pair in _table_iv() if pair.optimizer == optimizer])


def _table_iv() -> list[Pair]:
    return [pair for pair in pairs() if pair.second != "vanilla_1f1b"]


def fig_3() -> Outcome:
    return _curves("momentum", "PipeOptim near GPipe, +1.95 over PipeDream, +1.66 over 2BW")


def fig_4() -> Outcome:
    return _curves("adamw", "PipeOptim first: +0.80 over GPipe, +1.0 over PipeDream, +0.86 over 2BW")


def fig_5() -> Outcome:
    return _curves("adam", "LSTM: XPipe first; GNMT: PipeOptim first")


def table_iv() -> Outcome:
    made = _outcome("PipeOptim's accuracy does not depend on the optimizer", _table_iv())
    rows = [
        f"| {pair.first} | {pair.second} | {pair.optimizer} | {'+' if pair.published > 0 else '-'} | {pair.text} |"
        for pair in _table_iv()
        if pair.published
    ]
    head = ["| first | second | optimizer | paper | here, points |", "|---|---|---|---|---|"]
    return Outcome(made.published, made.result, made.verdict, made.reason, [*head, *rows], _COMMAND)


def fig_7() -> Outcome:
    chosen = [pair for pair in pairs() if pair.second == "vanilla_1f1b"]
    verdict = _verdict(Counter(pair.sign for pair in chosen))
    return Outcome(
        "+0.67 on average, up to +1.3",
        ", ".join(f"{pair.optimizer} {pair.text}" for pair in chosen),
        verdict,
        "Points of maximum accuracy on digits, four stages (convergence.md); agrees if most are ahead and none behind, "
        "the shape if some are ahead and none behind.",
        command=_COMMAND,
    )
