"""R1: damaged files of every format, and damaged command lines."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fault_rows.attempt import Attempt, attempt
from fault_rows.damage import damaged_bytes, damaged_json, damaged_line
from fault_rows.row import Row, Section
from fault_rows.specimens import Specimen, specimens
from fault_rows.workers import worked_off

SHARE_OF_JSON = 0.6
"""Share of the damaged copies of a JSON file that stay valid JSON."""
LINES_PER_FILE = 0.4
"""Number of damaged command lines for each damaged file."""
SHOWN = 12
"""Number of failures that are printed."""
SEED = 1
NUM_WORKERS = 2


def lines(num_files: int) -> Section:
    """Yield the section on `num_files` files, and on fewer command lines."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kinds = specimens(folder)
        per_kind, num_lines = num_files // len(kinds), round(num_files * LINES_PER_FILE)

        def tried(index: int) -> dict[str, Any]:
            chance = random.Random(f"{SEED} {index}")
            kind = kinds[index // per_kind] if index < per_kind * len(kinds) else None
            return asdict(_of_line(kinds, folder, chance) if kind is None else _of_file(kind, folder, chance))

        results = [Attempt(**result) for result in worked_off(tried, per_kind * len(kinds) + num_lines, NUM_WORKERS)]
        attempts = {kind.name: results[i * per_kind : (i + 1) * per_kind] for i, kind in enumerate(kinds)}
        attempts["command lines"] = results[per_kind * len(kinds) :]
    yield "| damaged | tries | refused (2) | read (0) | verdict (1) | not there (4) | slowest | most memory | wrong |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for what, tries in attempts.items():
        yield _table_row(what, tries)
    everything = [tried for tries in attempts.values() for tried in tries]
    yield _table_row("**all**", everything)
    yield ""
    wrong = [tried for tried in everything if tried.misbehaviour()]
    yield f"As promised: {len(everything) - len(wrong)} of {len(everything)}."
    for result in wrong[:SHOWN]:
        yield f"- {result.misbehaviour()}: `{' '.join(result.arguments)[:200]!a}`, {result.errors[-300:]!a}"
    return not wrong


def _of_file(kind: Specimen, folder: Path, chance: random.Random) -> Attempt:
    with _copied(folder) as copy:
        path = copy / kind.name
        whole = path.read_bytes()
        is_json_kept = kind.is_json and chance.random() < SHARE_OF_JSON
        path.write_bytes(damaged_json(whole, chance) if is_json_kept else damaged_bytes(whole, chance))
        kind.then(copy)
        return attempt(chance.choice(kind.readers), copy, kind.run)


def _of_line(kinds: Sequence[Specimen], folder: Path, chance: random.Random) -> Attempt:
    good = [reader for kind in kinds if kind.run is None for reader in kind.readers]
    words = sorted({word for line in good for word in line})
    with _copied(folder) as copy:
        return attempt(damaged_line(chance.choice(good), words, chance), copy)


@contextmanager
def _copied(folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield shutil.copytree(folder, Path(name) / "work")


def _table_row(what: str, tries: Sequence[Attempt]) -> str:
    codes = Counter(tried.exit_code for tried in tries)
    cells = [
        what,
        len(tries),
        *(codes[code] for code in (2, 0, 1, 4)),
        f"{max((tried.seconds for tried in tries), default=0):.1f} s",
        f"{max((tried.peak_bytes for tried in tries), default=0) / 2**20:.0f} MiB",
        sum(bool(tried.misbehaviour()) for tried in tries),
    ]
    return f"| {' | '.join(map(str, cells))} |"


ROW = Row(
    title="R1: damaged files and command lines",
    goal="exit 2 or as documented, one line, no traceback, at most 5 s and 1 GiB, nothing written: all of them",
    count=5000,
    lines=lines,
)
