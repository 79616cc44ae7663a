"""Runs of PyTorch's own runtime, traced by its profiler, in rounds; two rows share them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from fidelity_rows.bench import NUM_RANKS, Bench
from fidelity_rows.model_runs import CASES, LONG, Case
from fidelity_rows.torch_rank import SCHEDULES

LONG_CASES = tuple(case for case in CASES if case.ops == LONG)
TIMEOUT_S = 120
Traces = Mapping[str, tuple[Path, ...]]


@dataclass(frozen=True, slots=True)
class TorchRuns:
    """The runs of PyTorch's schedules: the traces of every round.

    Attributes:
        bench: Yardsticks and failures.
        rounds: For each round and case, the traces of both ranks under every schedule; failed runs are missing.
        folder: Folder of the traces; it exists as long as this object.
    """

    bench: Bench
    rounds: tuple[Mapping[Case, Traces], ...]
    folder: TemporaryDirectory[str]


@cache
def torch_runs(num_rounds: int) -> TorchRuns:
    """Run every case once in each round, under each schedule in turn."""
    bench, folder = Bench(), TemporaryDirectory(prefix="fidelity-")
    rounds = []
    for _ in bench.rounds(num_rounds):
        traces = {case: bench.run(f"PyTorch {case.model}", partial(_traces, case, folder.name)) for case in LONG_CASES}
        rounds.append({case: several for case, several in traces.items() if several})
    return TorchRuns(bench, tuple(rounds), folder)


def _traces(case: Case, inside: str) -> Traces:
    """Return the traces of every schedule, in a new folder inside `inside`."""
    folder = Path(mkdtemp(dir=inside))
    script = Path(__file__).with_name("torch_rank.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(folder), str(rank), case.model, str(case.microbatch_size)],
            stdout=subprocess.DEVNULL,  # of the profiler
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(NUM_RANKS)
    ]
    try:
        errors = [rank.communicate(timeout=TIMEOUT_S)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, error in zip(ranks, errors, strict=True):
        if rank.returncode:
            raise RuntimeError(error[-300:])
    return {name: tuple(sorted(folder.glob(f"{name}[0-9].json"))) for name in SCHEDULES}
