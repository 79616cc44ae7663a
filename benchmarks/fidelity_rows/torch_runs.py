"""Runs of PyTorch's own runtime, traced by its profiler, in rounds; two rows share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from rank_group import run_ranks

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
    arguments = [str(folder), case.model, str(case.microbatch_size)]
    run_ranks(["-m", "fidelity_rows.torch_rank", *arguments], NUM_RANKS, TIMEOUT_S)
    return {name: tuple(sorted(folder.glob(f"{name}[0-9].json"))) for name in SCHEDULES}
