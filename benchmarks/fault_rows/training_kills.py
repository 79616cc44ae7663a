"""R4: training killed with SIGKILL at random moments, and gone on with from its checkpoints."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fault_rows.row import Row

SCHEMES = (
    "gpipe", "1f1b", "interleaved -v 2", "zb_h1", "zbv",
    "pipedream", "pipedream_2bw", "wpipe", "vanilla_1f1b", "avgpipe",
)  # fmt: skip
STEPS = 400
EVERY = 20
BEGUN_S = 60.0
"""A run has its first checkpoint so soon [s]."""
LATEST_S = 1.0
"""It is killed so long after a checkpoint, at most [s]."""
SEED = 4


def lines(count: int) -> Iterator[str]:
    """Yield the section, of so many kills."""
    chance = random.Random(SEED)
    yield f"`train mlp:layers=8,width=16 -p 2 --steps {STEPS} --checkpoint run --every {EVERY}`, all in one process,"
    yield "killed at a random moment after its first new checkpoint, gone on with, and killed again, until it is over."
    yield "The weights of `--export` are those of a run that nobody killed, byte for byte, or not."
    yield ""
    yield "| schedule | kills | runs | equal |"
    yield "|---|---|---|---|"
    failures: list[str] = []
    num_equal = num_runs = 0
    for scheme in SCHEMES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            undisturbed = _weights(folder / "whole", scheme, failures)
            kills = runs = equal = 0
            while kills < max(1, count // len(SCHEMES)):
                runs += 1
                kills += _killed(folder / f"run{runs}", scheme, chance)
                equal += _weights(folder / f"run{runs}", scheme, failures) == undisturbed != b""
        num_equal, num_runs = num_equal + equal, num_runs + runs
        yield f"| {scheme} | {kills} | {runs} | {equal} |"
    yield ""
    yield f"Equal: {num_equal} of {num_runs}."
    yield from failures


def _command(folder: Path, scheme: str) -> Sequence[str]:
    folder.mkdir(exist_ok=True)
    kept = ["--resume" if any(folder.glob("run/*/index.json")) else "--checkpoint", "run", "--every", str(EVERY)]
    name, *chunks = scheme.split()
    options = ["-s", name, *chunks, "-p", "2", "-m", "4", "--batch-size", "16", "--steps", str(STEPS)]
    command = [sys.executable, "-m", "pipesched", "train", "mlp:layers=8,width=16", *options, *kept]
    return [*command, "--export", "model.safetensors"]


def _weights(folder: Path, scheme: str, failures: list[str]) -> bytes:
    """Run the training to its end, and return the file of its weights; empty where it failed."""
    command = _command(folder, scheme)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        failures.append(f"- {scheme}: exit code {done.returncode}: {done.stderr[-300:]!a}")
        return b""
    return (folder / "model.safetensors").read_bytes()


def _killed(folder: Path, scheme: str, chance: random.Random) -> int:
    """Begin the training, or go on with it, twice, and kill it; return how often it was not over before."""
    kills = 0
    for _ in range(2):
        command = _command(folder, scheme)
        before = _newest(folder)
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until_s = time.monotonic() + BEGUN_S
        while process.poll() is None and _newest(folder) == before and time.monotonic() < until_s:
            time.sleep(0.005)
        time.sleep(chance.uniform(0, LATEST_S))
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
    return kills


def _newest(folder: Path) -> str:
    return max((path.parent.name for path in folder.glob("run/*/index.json")), default="")


ROW = Row(
    title="R4: training killed and gone on with",
    goal="bitwise equal to an undisturbed run, no damaged checkpoint taken: all",
    count=100,
    lines=lines,
)
