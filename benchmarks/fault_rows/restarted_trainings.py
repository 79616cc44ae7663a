"""R4: ranks of a training with restarts are killed with SIGKILL at random moments."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from fault_rows.attempt import Command
from fault_rows.faulty_run import POLL_S, START_S, FaultyRun, Launched
from fault_rows.row import Row, Section
from fault_rows.workers import load_torch, worked_off

SCHEMES = ("gpipe", "1f1b", "zb_h1", "pipedream", "pipedream_2bw", "avgpipe")
NUM_RANKS = 2
STEPS, EVERY = 400, 20
KILLS = 3
"""Most kills of a run."""
LATEST_S = 2.0
"""Longest time from the start of all ranks to the kill of a rank [s]."""
LONGEST_S = 120.0
NUM_WORKERS = 2
SEED = 5


def lines(count: int) -> Section:
    """Yield the section on `count` runs."""
    load_torch()
    yield f"`{_words('SCHEME', 'model.safetensors')}`: a random rank is killed, {KILLS} times, each up to"
    yield f"{LATEST_S:g} s after all are there; the weights of `--export` are those of a run that nobody disturbed,"
    yield "byte for byte, or not."
    yield ""
    yield "| schedule | runs | kills | equal |"
    yield "|---|---|---|---|"
    with tempfile.TemporaryDirectory() as name:
        wholes = worked_off(partial(_undisturbed, Path(name)), min(count, len(SCHEMES)), NUM_WORKERS)
        tried = worked_off(lambda index: _tried(Path(name), index), count, NUM_WORKERS)
    failures = [f"undisturbed: {wrong}" for wrong in wholes if wrong]
    for number, scheme in enumerate(SCHEMES[:count]):
        own = tried[number :: len(SCHEMES)]
        yield f"| {scheme} | {len(own)} | {sum(kills for kills, _ in own)} | {sum(not wrong for _, wrong in own)} |"
    failures += [wrong for _, wrong in tried if wrong]
    yield ""
    yield f"Equal: {sum(not wrong for _, wrong in tried)} of {count}, after {sum(kills for kills, _ in tried)} kills."
    yield from (f"- {failure}" for failure in failures)
    return not failures


def _words(scheme: str, export: object) -> str:
    options = f"-s {scheme} -p {NUM_RANKS} -m 4 --batch-size 16 --steps {STEPS} --uniform f=1ms,i=1ms,w=1ms"
    kept = f"--checkpoint run --every {EVERY} --restarts {KILLS} --export {export}"
    return f"train mlp:layers=8,width=16 {options} --partition uniform --distributed {kept}"


def _begun(scheme: str, export: Path) -> FaultyRun:
    def start(folder: Path, given: Mapping[str, str]) -> Launched:
        return Launched(Command(_words(scheme, export).split(), folder, None, given))

    run = FaultyRun(start)
    run.await_ranks(NUM_RANKS)
    return run


def _ended(run: FaultyRun) -> str:
    """Wait for the end of the run; return its fault, if any."""
    run.fault_s = time.monotonic()
    end = run.end(LONGEST_S, "")
    return "" if end.exit_code == 0 and not end.left else f"exit code {end.exit_code}, left {end.left}: {end.errors!a}"


def _undisturbed(folder: Path, index: int) -> str:
    wrong = _ended(_begun(SCHEMES[index], folder / f"{SCHEMES[index]}.safetensors"))
    return wrong and f"{SCHEMES[index]}: {wrong}"


def _tried(folder: Path, index: int) -> tuple[int, str]:
    """Run a training whose ranks are killed; return the number of kills, and the fault, if any."""
    scheme, chance, kills = SCHEMES[index % len(SCHEMES)], random.Random(f"{SEED} {index}"), 0
    export = folder / f"{index}.safetensors"
    run = _begun(scheme, export)
    for _ in range(KILLS):
        run.await_ranks(NUM_RANKS)
        time.sleep(chance.uniform(0, LATEST_S))
        ranks = run.ranks()
        if ranks and run.launcher.poll() is None:
            os.kill(chance.choice(ranks), signal.SIGKILL)
            kills += 1
            until_s = time.monotonic() + START_S
            while {*ranks} & {*run.ranks()} and time.monotonic() < until_s:
                time.sleep(POLL_S)
    wrong = _ended(run)
    if not wrong and export.read_bytes() != (folder / f"{scheme}.safetensors").read_bytes():
        wrong = "other weights"
    return kills, wrong and f"{scheme}, {kills} kills: {wrong}"


ROW = Row(
    title="R4: ranks of trainings killed, which start again",
    goal="bitwise equal to an undisturbed run: all",
    count=6,
    lines=lines,
)
