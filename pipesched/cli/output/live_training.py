"""Live training: a table on the terminal that follows the losses of a run."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipesched.cli.terminal import as_text, progress_lines
from pipesched.profiles import processes
from pipesched.simulator.analysis import readable_share

if TYPE_CHECKING:
    from rich.table import Table

    from pipesched.executor.training import Scores

_SHOWN = 20
"""Steps in each shown average."""


@dataclass(slots=True)
class _Row:
    """One run, up to its present step."""

    step: int = 0
    began_s: float = 0.0
    now_s: float = 0.0
    last: deque[Scores] = field(default_factory=lambda: deque(maxlen=_SHOWN))

    def cells(self, num_steps: int) -> list[str]:
        if not self.last:
            return [f"0/{num_steps}", "", "", ""]
        loss = sum(scores.loss for scores in self.last) / len(self.last)
        known = [scores.accuracy for scores in self.last if scores.accuracy is not None]
        accuracy = readable_share(sum(known) / len(known)) if known else ""
        passed_s = self.now_s - self.began_s
        pace = f"{(self.step - 1) / passed_s:.1f}" if self.step > 1 and passed_s > 0 else ""
        return [f"{self.step}/{num_steps}", f"{loss:.4f}", accuracy, pace]


@contextmanager
def live(names: Sequence[str], num_steps: int) -> Iterator[Callable[[str, int, Scores], None]]:
    """Show a row per run on a terminal; yield the function that receives the run, the step and its scores.

    Prints of a model go to stderr.
    """
    if not sys.stderr.isatty():
        with processes.prints_to_stderr(), progress_lines("training") as tick:
            yield lambda name, step, scores: tick((names.index(name) + step / num_steps) / len(names))  # noqa: ARG005
        return
    from rich.console import Console
    from rich.live import Live

    rows = {name: _Row() for name in names}

    def tell(name: str, step: int, scores: Scores) -> None:
        row, now_s = rows[name], time.monotonic()
        row.began_s = row.began_s or now_s
        row.step, row.now_s = step + 1, now_s
        row.last.append(scores)

    console = Console(stderr=True)
    shown = Live(get_renderable=lambda: _table(rows, num_steps), console=console, transient=True, refresh_per_second=4)
    with processes.prints_to_stderr(), shown:
        yield tell


def _table(rows: dict[str, _Row], num_steps: int) -> Table:
    from rich.table import Table

    table = Table()
    for index, title in enumerate(("schedule", "step", "loss", "accuracy", "steps/s")):
        table.add_column(title, justify="right" if index else "left")
    for name, row in rows.items():
        table.add_row(as_text(name), *row.cells(num_steps))
    return table
