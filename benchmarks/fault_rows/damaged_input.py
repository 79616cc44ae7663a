"""R1: damaged files of every format, and damaged command lines."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from fault_rows.attempt import Attempt, attempt
from fault_rows.damage import damaged_bytes, damaged_json, damaged_line
from fault_rows.row import Row
from fault_rows.specimens import Specimen, specimens

SHARE_OF_JSON = 0.6
"""So many of a JSON file's copies stay JSON, and mean something else."""
LINES_PER_FILE = 0.4
"""Damaged command lines for every damaged file."""
SHOWN = 12
"""Failures that are printed."""
SEED = 1


def lines(num_files: int) -> Iterator[str]:
    """Yield the section: so many files, and fewer command lines."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kinds = specimens(folder)
        chance = random.Random(SEED)
        attempts = {kind.name: list(_of_files(kind, folder, num_files // len(kinds), chance)) for kind in kinds}
        attempts["command lines"] = list(_of_lines(kinds, folder, round(num_files * LINES_PER_FILE), chance))
    yield "| damaged | tries | refused (2) | read (0) | verdict (1) | not there (4) | slowest | most memory | wrong |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for what, tries in attempts.items():
        yield _table_row(what, tries)
    everything = [tried for tries in attempts.values() for tried in tries]
    yield _table_row("**all**", everything)
    yield ""
    wrong = [tried for tried in everything if tried.misbehaviour()]
    yield f"As promised: {len(everything) - len(wrong)} of {len(everything)}."
    for tried in wrong[:SHOWN]:
        yield f"- {tried.misbehaviour()}: `{' '.join(tried.arguments)[:200]!a}`, {tried.errors[-300:]!a}"


def _of_files(kind: Specimen, folder: Path, count: int, chance: random.Random) -> Iterator[Attempt]:
    path = folder / kind.name
    whole = path.read_bytes()
    for _ in range(count):
        is_json_kept = kind.is_json and chance.random() < SHARE_OF_JSON
        path.write_bytes(damaged_json(whole, chance) if is_json_kept else damaged_bytes(whole, chance))
        yield _tidied(chance.choice(kind.readers), folder, kind)
    path.write_bytes(whole)


def _of_lines(kinds: Sequence[Specimen], folder: Path, count: int, chance: random.Random) -> Iterator[Attempt]:
    good = [reader for kind in kinds if kind.run is None for reader in kind.readers]
    words = sorted({word for line in good for word in line})
    for _ in range(count):
        yield _tidied(damaged_line(chance.choice(good), words, chance), folder)


def _tidied(arguments: Sequence[str], folder: Path, kind: Specimen | None = None) -> Attempt:
    """Try a command in a copy of the folder, so that nothing is left of it."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "work"
        shutil.copytree(folder, copy)
        return attempt(arguments, copy, kind.run if kind else None)


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
