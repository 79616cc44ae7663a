"""Fig. 14: the statistical efficiency of elastic averaging, from the page of its benchmark."""

from __future__ import annotations

import re
from pathlib import Path

from paper_rows.figure import Outcome, Verdict

_PAGE = Path(__file__).parents[2] / "results" / "averaging.md"
_ROW = re.compile(r"^\| (plain, B|N = \d, \w+) \| \d+ \|(.*)\|$", re.MULTILINE)
_SHARE = re.compile(r"([\d.]+)% \+- ([\d.]+)%")


def repeat_statistics() -> Outcome:
    """Compare accuracies of N pipelines with plain training on as many samples."""
    gaps = {}
    for part in re.split(r"^# ", _PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        data = part.splitlines()[0].rsplit(": ", 1)[-1]
        rows = {name: _accuracies(cells) for name, cells in _ROW.findall(part)}
        plain = rows.pop("plain, B")
        gaps[data] = [
            (averaged - accuracy, max(spread, other_spread))
            for results in rows.values()
            for (averaged, spread), (accuracy, other_spread) in zip(results, plain, strict=True)
        ]
    are_alike = {data: all(gap >= -spread for gap, spread in of) for data, of in gaps.items()}
    spans = [
        f"{data} {min(gap for gap, _ in of):+.1f} to {max(gap for gap, _ in of):+.1f}" for data, of in gaps.items()
    ]
    verdict = Verdict.AGREES if all(are_alike.values()) else Verdict.DIFFERS
    return Outcome(
        "as many epochs to the target as plain training, for all three models",
        f"points of accuracy at equal samples, N = 2, 4: {'; '.join(spans)}",
        verdict,
        "Small models stand in for the paper's: `--data digits` and `--data text`. It agrees if no accuracy is below "
        "plain training's by more than the larger spread of their seeds. Digits, trained to their end, agree. The text "
        "model is far from its end, where the number of updates one after the other decides, and N pipelines make an "
        "N-th of them with the learning rate of one.",
        [
            f"* {data}: {'as plain training' if is_alike else 'below plain training'}"
            for data, is_alike in are_alike.items()
        ],
        "python benchmarks/averaging.py --data digits --seeds 3",
    )


def _accuracies(cells: str) -> list[tuple[float, float]]:
    """Return mean and spread of each accuracy of a row [percentage points]."""
    return [(float(mean), float(spread)) for mean, spread in _SHARE.findall(cells)]
