"""Published accuracies of schemes: differences between two schemes, by optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

WHOLE = "un-pipelined"

TABLE_IV: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "momentum": {
        WHOLE: (51.93, 67.64, 56.56),
        "pipedream": (43.99, 67.72, 56.88),
        "pipedream_2bw": (45.00, 67.47, 56.98),
        "spectrain": (50.14, 67.81, 57.13),
        "xpipe": (39.24, 67.22, 56.32),
        "pipeoptim": (49.23, 67.84, 57.37),
    },
    "adam": {
        WHOLE: (85.64, 21.22, 21.32),
        "pipedream": (85.52, 21.04, 21.44),
        "pipedream_2bw": (85.48, 21.03, 21.42),
        "xpipe": (86.57, 21.06, 21.55),
        "pipeoptim": (85.52, 21.29, 21.65),
    },
    "adamw": {
        WHOLE: (85.65, 67.05, 73.91),
        "pipedream": (84.82, 66.61, 74.58),
        "pipedream_2bw": (85.13, 66.66, 74.64),
        "xpipe": (86.20, 67.22, 75.09),
        "pipeoptim": (86.38, 67.91, 74.73),
    },
}
"""PipeOptim (arXiv:2312.00839), Table IV: maximum accuracy [%] of its three models for each optimizer, four stages each
(momentum: AlexNet, ResNet-101, Inception-V3; adam: Residual LSTM, and GNMT-8 and GNMT-16 in BLEU; adamw: Residual LSTM,
VGG-16, GoogleNet). Its GPipe has one micro-batch, and is the un-pipelined network."""


@dataclass(frozen=True, slots=True)
class Ordering:
    """Two schemes that a paper compares.

    Attributes:
        differences: Accuracy of the first scheme minus the second in the paper [points, or BLEU], for each model of the
            paper, by optimizer.
    """

    first: str
    second: str
    source: str
    differences: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def sign(self, optimizer: str) -> int:
        """Return 1 or -1 if the first scheme is ahead, or behind, with every model of the paper; otherwise 0."""
        differences = self.differences.get(optimizer, ())
        if not any(differences) or min(differences) < 0 < max(differences):
            return 0
        return 1 if max(differences) > 0 else -1


def _table_iv(first: str, second: str) -> Ordering:
    differences = {
        optimizer: tuple(round(a - b, 2) for a, b in zip(rows[first], rows[second], strict=True))
        for optimizer, rows in TABLE_IV.items()
        if first in rows and second in rows
    }
    return Ordering(first, second, "PipeOptim, Table IV", differences)


ORDERINGS = (
    _table_iv("pipeoptim", "pipedream"),
    _table_iv("pipeoptim", "pipedream_2bw"),
    _table_iv("pipeoptim", "spectrain"),
    _table_iv("pipeoptim", "xpipe"),
    _table_iv("pipeoptim", WHOLE),
    _table_iv("spectrain", "pipedream"),
    _table_iv("spectrain", "pipedream_2bw"),
    _table_iv(WHOLE, "pipedream"),
    Ordering("pipeoptim", "vanilla_1f1b", "PipeOptim, section V-E", {"adamw": (1.3,)}),
    Ordering(
        "wpipe",
        "pipedream_2bw",
        "WPipe, Table 2",
        {"momentum": (-0.04, 0.0, 0.02, 0.03, -0.18, 0.07), "adam": (0.05, 0.21, 0.07, -0.04)},
    ),
    Ordering(WHOLE, "stale_weights", "stale weights, section 6.2", {"momentum": (8.5, 12.0)}),
    Ordering("hybrid", "stale_weights", "stale weights, section 6.4"),
)
