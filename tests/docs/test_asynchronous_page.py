"""The comparison on the page of asynchronous training has the figures of the results page."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def rows(page, begin, end):
    """Return the cells of the rows between two texts of a page, by the scheme of the first cell."""
    part = page[page.index(begin) : page.index(end)]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line[:1] == "|"]
    return {row[0].strip("[").split("`")[1 if "`" in row[0] else 0]: row for row in cells}


def test_losses_and_accuracies_are_those_of_twelve_seeds():
    own = rows((ROOT / "docs/asynchronous.md").read_text(), "| scheme |", "![SGD with momentum]")
    convergence = (ROOT / "benchmarks/results/convergence.md").read_text()
    measured = rows(convergence[convergence.index("digits, eight stages") :], "| scheme |", "Pairs of the papers")
    schemes = own.keys() - {"scheme", "---", "1f1b_rr"}
    assert len(schemes) == 10
    for scheme in schemes:
        for cell, three in zip(own[scheme][5:], (measured[scheme][2], measured[scheme][4]), strict=True):
            _, accuracy, loss = three.split("; ")
            assert cell == f"{loss}, {accuracy} %"
