"""The part of the page for one paper: a table of its tables and figures, and the numbers behind each row."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import fill

from report import provenance

from paper_rows.figure import Figure, Outcome, Paper, Verdict

_WIDTH = 118


@dataclass(frozen=True, slots=True)
class Repetition:
    """A figure with its outcome.

    Attributes:
        figure: The figure.
        outcome: The result.
        command: The command that repeats it.
        seconds: Time of the repetition [s].
    """

    figure: Figure
    outcome: Outcome
    command: str
    seconds: float


def repeat(paper: Paper, figures: Sequence[Figure]) -> Iterator[Repetition]:
    """Repeat the experiments of a paper, one after the other."""
    for figure in figures:
        begun_s = time.perf_counter()
        outcome = figure.repeat()
        command = outcome.command or f"python benchmarks/papers.py --paper {paper.key} --figure {figure.key}"
        yield Repetition(figure, outcome, command, time.perf_counter() - begun_s)


def part(paper: Paper, repetitions: Sequence[Repetition], load: float) -> Iterator[str]:
    """Yield the part of the page for a paper, line by line.

    Args:
        paper: The paper.
        repetitions: Its figures with their outcomes.
        load: Load of the machine before the run [processes].
    """
    counts = Counter(repetition.outcome.verdict for repetition in repetitions)
    yield f"# {paper.title}"
    yield ""
    seconds = sum(repetition.seconds for repetition in repetitions)
    yield from provenance(f"papers.py --paper {paper.key}", load, f"{seconds:.0f} s")
    yield ""
    yield fill(paper.setting, _WIDTH)
    yield ""
    yield fill(", ".join(f"{verdict}: {counts[verdict]}" for verdict in Verdict if counts[verdict]) + ".", _WIDTH)
    yield ""
    yield "| | claim | paper | here | verdict |"
    yield "|---|---|---|---|---|"
    for repetition in repetitions:
        outcome = repetition.outcome
        cells = (repetition.figure.name, repetition.figure.claim, outcome.published, outcome.result, outcome.verdict)
        yield f"| {' | '.join(cells)} |"
    yield ""
    for repetition in repetitions:
        if repetition.outcome.reason:
            sentence = f"* {repetition.figure.name}: {repetition.outcome.reason}"
            yield fill(sentence, _WIDTH, subsequent_indent="  ")
    for repetition in repetitions:
        if repetition.outcome.details:
            yield ""
            yield f"## {paper.key}: {repetition.figure.name}"
            yield ""
            yield f"`{repetition.command}`, {repetition.seconds:.1f} s"
            yield ""
            yield from repetition.outcome.details
