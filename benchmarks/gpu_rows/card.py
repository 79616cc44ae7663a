"""The card of a benchmark: the device, and the remaining time."""

from __future__ import annotations

import gc
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import torch
from report import error_line

from pipesched.profiles import DeviceKind
from pipesched.profiles.measuring import device_name

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Card:
    """The device of a benchmark.

    Attributes:
        kind: ``cuda``, or ``cpu`` in a dry run.
        ends_s: No case begins after this moment of the monotonic clock [s].
    """

    kind: DeviceKind
    ends_s: float

    @property
    def device(self) -> torch.device:
        """The device of all ranks."""
        return torch.device("cuda", 0) if self.kind == "cuda" else torch.device("cpu")

    @property
    def is_dry(self) -> bool:
        """Whether the run is a rehearsal on a CPU, with tiny models."""
        return self.kind == "cpu"

    @property
    def left_s(self) -> float:
        """Time left [s]."""
        return self.ends_s - time.monotonic()

    @property
    def has_green_contexts(self) -> bool:
        """Whether runs can give each rank processors of its own."""
        return self.kind == "cuda"

    def pick(self, real: T, dry: T) -> T:
        """Return the value for a GPU, or the tiny one of a dry run."""
        return dry if self.is_dry else real

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self.device)

    def rows(self, cases: Iterable[T], row: Callable[[T], str], case_s: float) -> Iterator[str]:
        """Yield a table's row for each case; a case that fails, or has no time left, has the reason in its row.

        Args:
            cases: The cases; the text of a case is the first cell of a row without figures.
            row: Measures a case and returns its row.
            case_s: Approximate time of a case on a GPU [s].
        """
        for case in cases:
            if self.left_s < self.pick(case_s, case_s / 10):
                yield f"| {case} | skipped: {max(0.0, self.left_s):.0f} s left |"
                continue
            try:
                yield row(case)
            except Exception as error:  # noqa: BLE001 -- whatever ends one case must not end the others
                yield f"| {case} | failed: {error_line(error)} |"
            free_memory()


def free_memory() -> None:
    """Free the cached memory of earlier measurements."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def file_of(card: Card, root: Path) -> Path:
    """Return the page of this device: a dry run's is not committed."""
    if card.is_dry:
        return root / "build" / "gpu-dry-run.md"
    name = re.sub(r"[^a-z0-9]+", "-", device_name(card.device).lower()).strip("-")
    return root / "benchmarks" / "results" / f"gpu-{name.removeprefix('nvidia-')}.md"


def provenance(card: Card, command: str) -> Iterator[str]:
    """Yield the provenance of the numbers: command, date, commit, device, driver and versions.

    Args:
        card: The device.
        command: The command, without ``python benchmarks/``.
    """
    yield f"`python benchmarks/{command}`, {datetime.now(UTC):%Y-%m-%d}, commit {_commit()},"
    yield f"{device_name(card.device)}, driver {_driver(card)}, CUDA {torch.version.cuda or 'none'},"
    yield f"torch {torch.__version__}, Python {platform.python_version()}, load before {os.getloadavg()[0]:.2f}."


def _commit() -> str:
    root = Path(__file__).parents[2]
    return _output("git", "-C", str(root), "describe", "--always", "--dirty") or "unknown"


def _driver(card: Card) -> str:
    if card.is_dry:
        return "none"
    lines = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
    return lines[0] if lines else "unknown"


def _output(program: str, *arguments: str) -> str:
    """Return the output of a program; empty if the program is missing or fails."""
    path = shutil.which(program)
    if path is None:
        return ""
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    return "" if done.returncode else done.stdout.strip()
