"""A table or a figure of a paper, and the outcome of its repeated experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial


class Verdict(StrEnum):
    """How a result stands to the paper's."""

    AGREES = "agrees"
    SHAPE = "shape agrees"
    DIFFERS = "differs"
    NOT_RUN = "cannot be run here"
    DRAWING = "a drawing"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a repeated experiment.

    Attributes:
        published: The paper's numbers, in a few words.
        result: The numbers of the repetition with their spread, in a few words.
        verdict: Computed from the numbers.
        reason: Why the results differ, or why the experiment cannot be run here; else a remark, or nothing.
        details: Lines of Markdown: the table behind the row.
        command: The command that repeats the experiment, if it is not the one of `papers.py`.
    """

    published: str
    result: str
    verdict: Verdict
    reason: str = ""
    details: Sequence[str] = ()
    command: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A table or a figure of a paper.

    Attributes:
        name: As in the paper: "Fig. 9" or "Table IV".
        claim: The paper's claim, in one sentence.
        repeat: Repeats the experiment.
    """

    name: str
    claim: str
    repeat: Callable[[], Outcome]

    @property
    def key(self) -> str:
        """The name on the command line: "fig9" or "tableIV"."""
        return self.name.replace(".", "").replace(" ", "").replace("Fig", "fig").replace("Table", "table")


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper with all of its tables and figures.

    Attributes:
        key: The name on the command line.
        title: Title, venue and year.
        setting: Sentences on models, machines and assumptions that several figures share.
        figures: In the order of the paper.
    """

    key: str
    title: str
    setting: str
    figures: tuple[Figure, ...]


def not_run(name: str, claim: str, published: str, reason: str) -> Figure:
    """Return a figure whose experiment cannot be repeated here."""
    return Figure(name, claim, partial(Outcome, published, "-", Verdict.NOT_RUN, reason))


def drawing(name: str, claim: str, remark: str) -> Figure:
    """Return a figure that shows no result; the remark names the part of pipesched that does the same."""
    return Figure(name, claim, partial(Outcome, "-", "-", Verdict.DRAWING, remark))


def verdict_of(results: Sequence[float], published: Sequence[float], within: float) -> Verdict:
    """Return how a series of results stands to the paper's numbers.

    They agree if each result is within `within` of the paper's number, as a share of it. The shape agrees if results
    have the paper's order: of two numbers that differ by more than `within` in the paper, the same one is larger.
    Numbers of which no two differ so have no shape.

    Args:
        results: Numbers of the repetition.
        published: Numbers of the paper, in the same order.
        within: The tolerance, stated in the row.
    """
    pairs = [*zip(results, published, strict=True)]
    if all(abs(result - number) <= within * abs(number) for result, number in pairs):
        return Verdict.AGREES
    are_ordered = [
        result > other_result
        for result, number in pairs
        for other_result, other_number in pairs
        if number > other_number + within * abs(other_number)
    ]
    return Verdict.SHAPE if are_ordered and all(are_ordered) else Verdict.DIFFERS


def range_verdict(least: float, most: float, published: float) -> Verdict:
    """Return whether the paper's number is within the range of results over the assumptions that it does not state."""
    return Verdict.AGREES if least <= published <= most else Verdict.DIFFERS
