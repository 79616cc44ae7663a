"""R7: Ctrl-C at random moments of long commands."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fault_rows.attempt import contents
from fault_rows.row import Row, Section
from fault_rows.specimens import specimens
from fault_rows.workers import worked_off

ANSWER_S = 1.0
STARTED_S = 0.4
"""Start of Python itself, which answers an interrupt in its own way [s]."""
LATEST_S = 4.0
ANSWERING = "plan "
"""Command that answers an interrupt with its best result so far, and exit code 0."""
SHOWN = 12
NUM_WORKERS = 2
SEED = 7
COMMANDS = (
    "simulate -s interleaved -p 64 -m 4096 -v 4 --uniform f=1,b=2 --out x.json",
    "simulate -s zbv -p 64 -m 512 --uniform f=1,i=1,w=1 --out x.html",
    "gantt -s 1f1b -p 64 -m 512 --uniform f=1,b=2 --out x.png",
    "check -s interleaved -p 64 -m 2048 -v 4",
    "compare gpipe,1f1b,zb_h1,interleaved -p 32 -m 1024 --uniform f=1,i=1,w=1 --out x.html",
    "sweep -s 1f1b,gpipe,zb_h1 -p 8,16,32 -m 64:4096:x2 --uniform f=1,i=1,w=1 --workers 2 --out x.csv",
    "tune profile.json -p 2 -b 4096 --workers 2 --out x.html",
    "plan profile.json -b 4096 --devices 2 --workers 2 --out x.json",
    "simulate -s 1f1b -p 512 -m 4096 --uniform f=1,b=2 --out x.json",
    "run -s 1f1b -p 64 -m 64 --uniform f=1ms,b=2ms --iterations 1000 --out x.json",
    "run -s 1f1b -p 4 -m 8 --uniform f=20ms,b=20ms --iterations 1000 --out x.json",
    "train mlp:layers=8,width=16 -s 1f1b -p 2 -m 4 --steps 100000",
)


def lines(count: int) -> Section:
    """Yield the section on `count` interrupts."""
    yield "| command | interrupts | answered | ended before | slowest | left or wrong |"
    yield "|---|---|---|---|---|---|"
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        specimens(Path(name))
        profile = (Path(name) / "profile.json").read_bytes()

    def tried(index: int) -> tuple[float | None, str]:
        return _interrupted(COMMANDS[index % len(COMMANDS)], profile, random.Random(f"{SEED} {index}"))

    outcomes = worked_off(tried, count, NUM_WORKERS)
    for number, command in enumerate(COMMANDS):
        results = outcomes[number :: len(COMMANDS)]
        answered = [(seconds, wrong) for seconds, wrong in results if seconds is not None]
        wrongs = [wrong for _, wrong in answered if wrong]
        failures += [f"- `{command}`: {wrong}" for wrong in wrongs]
        slowest_s = max((seconds for seconds, _ in answered), default=0.0)
        yield (
            f"| `{command.split()[0]}` | {len(results)} | {len(answered) - len(wrongs)} "
            f"| {len(results) - len(answered)} | {slowest_s:.2f} s | {len(wrongs)} |"
        )
    yield ""
    yield from failures[:SHOWN]
    return not failures


def _interrupted(command: str, profile: bytes, chance: random.Random) -> tuple[float | None, str]:
    """Return the time of the answer [s], or None if the command ended before the interrupt, and the fault."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "profile.json").write_bytes(profile)
        before = contents(folder)
        process = subprocess.Popen(
            [sys.executable, "-m", "pipesched", *command.split()],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=_hear_interrupts,
        )
        time.sleep(chance.uniform(STARTED_S, LATEST_S))
        if process.poll() is not None:
            process.communicate()
            return None, ""
        sent_s = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        try:
            _, errors = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return 30.0, "no answer"
        seconds = time.monotonic() - sent_s
        after = contents(folder)
    is_answer = command.startswith(ANSWERING) and process.returncode == 0
    wrongs = {
        f"exit code {process.returncode}": process.returncode != 130 and not is_answer,
        f"{seconds:.1f} s": seconds > ANSWER_S,
        f"said {errors[-200:]!a}": "Traceback" in errors or not (is_answer or errors.endswith("stopped\n")),
        "files": after != before and not is_answer,
    }
    return seconds, ", ".join(wrong for wrong, is_so in wrongs.items() if is_so)


def _hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


ROW = Row(
    title="R7: Ctrl-C at any moment",
    goal="answered within 1 s, exit code 130, one line, no file; or by `plan` with the best so far",
    count=120,
    lines=lines,
)
