"""Accuracy of the approaches: Figs 3, 4, 5 and 7, Table IV; read from the page of benchmarks/convergence.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from published_results import ORDERINGS, Ordering
from report import parts_of

from paper_rows.figure import Outcome, Verdict

_PAGE = Path(__file__).parents[2] / "results" / "convergence.md"
_COMMAND = "python benchmarks/convergence.py --data digits-4"
_PART, _PAIRS = "# How well every scheme learns: digits, four stages", "Pairs of the papers, by the best accuracy"
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
    optimizer: str
    published: int
    sign: int
    text: str


@cache
def pairs() -> tuple[Pair, ...]:
    """Return the pairs of PipeOptim's Table IV and section V-E, from the page; none if the page has no pairs."""
    _, _, section = parts_of(_PAGE.read_text()).get(_PART, "").partition(_PAIRS)
    head, *rows = list(_rows(section)) or [[]]
    optimizers = [cell.removesuffix(": paper") for cell in head if cell.endswith(": paper")]
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


def _pair(ordering: Ordering, optimizer: str, gain: str) -> Pair:
    text = gain.replace("*", "")
    sign = next(sign for word, sign in _SIGNS.items() if text.endswith(word))
    return Pair(ordering.first, ordering.second, optimizer, ordering.sign(optimizer), sign, text)


def _outcome(published: str, chosen: Sequence[Pair]) -> Outcome:
    judged = [pair for pair in chosen if pair.published]
    if not judged:
        return _without_pairs(published)
    counts = Counter(pair.sign * pair.published for pair in judged)
    verdict = _verdict(counts)
    opposite = ", ".join(
        f"{pair.first} and {pair.second} with {pair.optimizer} ({pair.text.split()[0]})"
        for pair in judged
        if pair.sign * pair.published < 0
    )
    return Outcome(
        published,
        f"{counts[1]} of {len(judged)} pairs as in the paper, {counts[0]} undecided, {counts[-1]} opposite",
        verdict,
        "Pairs whose models all agree in the paper, by maximum accuracy on digits, four stages (convergence.md). "
        "Agrees if most have the paper's sign and none the opposite; the shape if some have and none the opposite. "
        "Signs come from paired seeds, tested exactly." + (f" Opposite: {opposite}." if opposite else ""),
        command=_COMMAND,
    )


def _without_pairs(published: str) -> Outcome:
    reason = f"The page of results has no pairs: `{_COMMAND} --out benchmarks/results/convergence.md` writes them."
    return Outcome(published, "-", Verdict.NOT_RUN, reason, command=_COMMAND)


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
    if not chosen:
        return _without_pairs("+0.67 on average, up to +1.3")
    verdict = _verdict(Counter(pair.sign for pair in chosen))
    return Outcome(
        "+0.67 on average, up to +1.3",
        ", ".join(f"{pair.optimizer} {pair.text}" for pair in chosen),
        verdict,
        "Points of maximum accuracy on digits, four stages (convergence.md); agrees if most are ahead and none behind, "
        "the shape if some are ahead and none behind.",
        command=_COMMAND,
    )
