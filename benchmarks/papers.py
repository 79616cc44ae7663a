"""Repeat the tables and figures of the five papers, and write them beside the papers' numbers.

    python benchmarks/papers.py [--paper wpipe] [--figure fig9] [--out benchmarks/results/papers.md]

`make papers` repeats all of them. Each paper is a part of the page, which is written as soon as the part is done; a run
of one figure prints its part only.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from textwrap import fill

from paper_rows import avgpipe, pipedream, pipeoptim, stale_weights, wpipe
from paper_rows.page import part, repeat
from report import arguments_of, show

PAPERS = {module.PAPER.key: module.PAPER for module in (pipedream, wpipe, pipeoptim, avgpipe, stale_weights)}


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--paper", choices=[*PAPERS], help="one paper; otherwise all")
    parser.add_argument("--figure", help="one table or figure of the paper, as in fig9 or tableIV")
    arguments = parser.parse_args()
    papers = [PAPERS[arguments.paper]] if arguments.paper else [*PAPERS.values()]
    if arguments.figure:
        show(_one(parser, arguments), arguments.out)
        return
    if arguments.out:
        show(_head(), arguments.out)
    for paper in papers:
        load = os.getloadavg()[0]
        show(part(paper, [*repeat(paper, paper.figures)], load), arguments.out)


def _one(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the part of one figure; end with exit code 2 if the paper has no such figure."""
    if not arguments.paper:
        parser.error("--figure: expected --paper too; say which paper has the figure")
    if arguments.out:
        parser.error("--out: a page has whole papers; leave out --figure")
    paper = PAPERS[arguments.paper]
    figures = [figure for figure in paper.figures if figure.key.lower() == arguments.figure.lower()]
    if not figures:
        parser.error(f"--figure: got {arguments.figure}, expected one of {', '.join(f.key for f in paper.figures)}")
    return part(paper, [*repeat(paper, figures)], os.getloadavg()[0])


def _head() -> Iterator[str]:
    yield "# The five papers, repeated"
    yield ""
    yield fill(
        "`make papers` writes this page. A row is a table or figure of a paper: its claim, the paper's numbers, ours, "
        "and a verdict computed from both. A number agrees within the tolerance of its row, or if it lies in our range "
        "over assumptions that the paper does not state. The shape agrees if numbers differ but have the paper's "
        "order; a row with another rule states it. Rules were written after first results were known, and some were "
        "made stricter since. Below each table stand the reasons for differences, and the numbers behind the rows. "
        "`python benchmarks/papers.py --paper wpipe --figure fig9` repeats one row: its name without spaces and points "
        "is the figure.",
        118,
    )


if __name__ == "__main__":
    main()
