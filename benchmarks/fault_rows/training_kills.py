"""R4: a training is killed with SIGKILL at random moments, and continues from its checkpoints."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from fault_rows.attempt import Command
from fault_rows.row import Row, Section
from fault_rows.workers import load_torch, worked_off

SCHEMES = (
    "gpipe", "1f1b", "interleaved -v 2", "zb_h1", "zbv",
    "pipedream", "pipedream_2bw", "wpipe", "vanilla_1f1b", "avgpipe",
)  # fmt: skip
STEPS = 400
EVERY = 20
MOST_LOST = 2 * EVERY
"""Most steps since the newest checkpoint: the next checkpoint may be incomplete."""
KILLS_OF_RUN = 5
LATEST_S = 0.3
"""Longest time from a checkpoint to a kill [s]."""
START_S = 1.5
"""Longest time from the start to an early kill [s]."""
LONGEST_S = 120.0
POLL_S = 0.005
NUM_WORKERS = 2
SEED = 4


def lines(count: int) -> Section:
    """Yield the section on `count` kills."""
    load_torch()
    kills_of = max(1, count // len(SCHEMES))
    yield f"`train mlp:layers=8,width=16 -p 2 --steps {STEPS} --checkpoint run --every {EVERY}`, killed at a random"
    yield f"moment, up to {LATEST_S:g} s after its first new checkpoint or, every other time, up to {START_S:g} s after"
    yield f"its start, gone on with, and killed again, {KILLS_OF_RUN} times, then left alone. Every other run is all in"
    yield "one process; in the others the launcher of two ranks is killed. The weights of `--export` are those of a"
    yield "run that nobody killed, byte for byte, or not. Lost are the steps that `--log` had when it was killed, and"
    yield "no checkpoint."
    yield "Commands are forked from a process that has imported torch."
    yield ""
    yield "| schedule | kills | runs | equal | steps lost, median | at most |"
    yield "|---|---|---|---|---|---|"
    results = worked_off(lambda index: _tried(SCHEMES[index], kills_of), min(count, len(SCHEMES)), NUM_WORKERS)
    for scheme, (lost, runs, equal, _) in zip(SCHEMES, results, strict=False):
        steps = f"{median(lost):g} | {max(lost)}" if lost else "- | -"
        yield f"| {scheme} | {len(lost)} | {runs} | {equal} | {steps} |"
    yield ""
    num_runs, num_equal = (sum(result[index] for result in results) for index in (1, 2))
    steps_lost: list[int] = [steps for lost, *_ in results for steps in lost]
    num_few = sum(steps <= MOST_LOST for steps in steps_lost)
    yield f"Equal: {num_equal} of {num_runs}, after {len(steps_lost)} kills."
    yield f"At most {MOST_LOST} steps lost: {num_few} of {len(steps_lost)}."
    yield from (f"- {failure}" for *_, failures in results for failure in failures)
    return bool(num_equal == num_runs) and num_few == len(steps_lost)


def _tried(scheme: str, least_kills: int) -> tuple[list[int], int, int, list[str]]:
    """Return the lost steps of each kill, the number of runs, the number with equal final weights, and the fault."""
    chance, failures = random.Random(f"{SEED} {scheme}"), list[str]()
    lost, runs, equal = list[int](), 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        undisturbed = _weights(folder / "whole", scheme, failures)
        while len(lost) < least_kills and not failures:
            runs += 1
            run, how = folder / f"run{runs}", ["--distributed"] * (1 - runs % 2)
            for number in range(min(KILLS_OF_RUN, least_kills - len(lost))):
                lost += _killed(run, scheme, chance, how, is_early=bool(number % 2))
            equal += _weights(run, scheme, failures, how) == undisturbed != b""
    return lost, runs, equal, failures


def _begin(folder: Path, scheme: str, how: Sequence[str]) -> Command:
    folder.mkdir(exist_ok=True)
    kept = ["--resume" if any(folder.glob("run/*/index.json")) else "--checkpoint", "run", "--every", str(EVERY)]
    name, *chunks = scheme.split()
    options = ["-s", name, *chunks, "-p", "2", "-m", "4", "--batch-size", "16", "--steps", str(STEPS)]
    costs = ["--uniform", "f=1ms,i=1ms,w=1ms", "--partition", "uniform"]
    written = ["--export", "model.safetensors", "--log", "log.jsonl"]
    command = ["train", "mlp:layers=8,width=16", *options, *costs, *kept, *written, *how]
    return Command(command, folder)


def _weights(folder: Path, scheme: str, failures: list[str], how: Sequence[str] = ()) -> bytes:
    """Run the training to its end; return its file of weights, empty if the training failed."""
    command = _begin(folder, scheme, how)
    code = command.poll(LONGEST_S)
    _, errors = command.end()
    if code:
        failures.append(f"{scheme}: exit code {code}: {errors[-300:]!a}")
    return b"" if code != 0 else (folder / "model.safetensors").read_bytes()


def _killed(folder: Path, scheme: str, chance: random.Random, how: Sequence[str], *, is_early: bool) -> list[int]:
    """Start or continue the training, and kill it; return the lost steps in a list, empty if the training had ended."""
    command, before = _begin(folder, scheme, how), _newest(folder)
    until_s = time.monotonic() + (0 if is_early else LONGEST_S)
    while command.poll(POLL_S) is None and _newest(folder) == before and time.monotonic() < until_s:
        pass
    code = command.poll(chance.uniform(0, START_S if is_early else LATEST_S))
    command.end()
    if code is not None:
        return []
    log = folder / "log.jsonl"
    steps = log.read_text().count("\n") if log.exists() else 0
    return [max(0, steps - int(_newest(folder).removeprefix("step") or 0))]


def _newest(folder: Path) -> str:
    return max((path.parent.name for path in folder.glob("run/*/index.json")), default="")


ROW = Row(
    title="R4: training killed and gone on with",
    goal=f"bitwise equal to an undisturbed run, no damaged checkpoint taken, at most {MOST_LOST} steps lost: all",
    count=100,
    lines=lines,
)
