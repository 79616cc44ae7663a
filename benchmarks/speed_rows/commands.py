"""Whole commands: start-up, the tuner, the planner, lists of many ops, an optimum."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pipesched
from speed_rows.row import Figure, Row, whole_process_s

DATA = Path(__file__).parents[2] / "profiles" / "data"
START = "simulate -s 1f1b -p 8 -m 64 --uniform f=1,b=2 --link latency_s=0.1"
TUNE = (
    f"tune {DATA / 'gpt-10m-epyc.json'} -p 8 -b 64 -m 8,16,32,64 -n 1-8 --advance 0-15 --recompute both "
    "--link latency=0.1ms,bandwidth=1GB/s"
)
"""4 numbers of micro-batches, 8 of pipelines, 16 advances, with and without recompute: 1,024 settings."""
ESTIMATE = "profile gpt:layers=98,width=4096 --gpu h100 --precision bfloat16 --microbatch-sizes 1,2,4"
"""A model of 100 layers, embedding and head included."""
PLAN = "plan {profile} -b 256 --nodes 8 --machine dgx-h100"
LARGE = "simulate -s interleaved -p 512 -m 4096 -v 4 --uniform f=1,b=2 --json"
LARGE_LIMIT_S = 60.0


def start() -> Iterator[Figure]:
    took_s = whole_process_s(START.split(), 9)
    yield Figure("`pipesched simulate -p 8 -m 64`, whole process", "0.35 s", f"{took_s:.3f} s", took_s <= 0.35)


def searches() -> Iterator[Figure]:
    took_s = whole_process_s(TUNE.split(), 3)
    yield Figure("`tune`, 1,024 settings, p = 8, whole process", "1.5 s", f"{took_s:.2f} s", took_s <= 1.5)
    with tempfile.TemporaryDirectory() as folder:
        profile = str(Path(folder) / "profile.json")
        whole_process_s([*ESTIMATE.split(), "--out", profile], 1)
        took_s = whole_process_s(PLAN.format(profile=profile).split(), 3)
    yield Figure("`plan`, 64 devices, 100 layers, whole process", "2 s", f"{took_s:.2f} s", took_s <= 2)


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a process.

    Attributes:
        seconds: Time of the process.
        peak_bytes: Peak memory of the process, or of the largest of its children.
        output: Output of the process.
        is_good: Whether the process ended in time with exit code 0.
    """

    seconds: float
    peak_bytes: int
    output: str
    is_good: bool


def ended(arguments: Sequence[str], limit_s: float) -> Ended:
    """Run Python with these arguments, for at most `limit_s` seconds."""
    command = [sys.executable, "-P", *arguments]
    begun_s = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            took_s = time.perf_counter() - begun_s
            if pid:
                break
            if took_s > limit_s:
                process.kill()
            time.sleep(0.01)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return Ended(took_s, usage.ru_maxrss * 1024, output.read(), process.returncode == 0)


def large() -> Iterator[Figure]:
    lists = "p = 512, m = 4096, interleaved, v = 4"
    runs = {
        "`simulate`": ["-m", "pipesched", *LARGE.split()],
        "columns and times, no Timeline": [str(Path(__file__).with_name("many_ops.py"))],
    }
    for what, arguments in runs.items():
        end = ended(arguments, LARGE_LIMIT_S)
        in_time = f"{end.seconds:.1f} s" if end.is_good else f"none in {end.seconds:.0f} s"
        yield Figure(f"{lists}: {what}, whole process", "20 s", in_time, end.is_good and end.seconds <= 20)
        memory = f"{end.peak_bytes / 2**30:.1f} GiB"
        yield Figure(f"{lists}: {what}, memory", "4 GiB", memory, end.is_good and end.peak_bytes <= 4 * 2**30)


def optimum() -> Iterator[Figure]:
    costs = pipesched.DeviceCost(1.0, backward_input_s=1.0, backward_weight_s=1.0)
    begun_s = time.perf_counter()
    result = pipesched.optimize(pipesched.build("zb_h1", 8, 32), costs, in_flight=8, seconds=50.0)
    took_s = time.perf_counter() - begun_s
    figure = f"{result.least.gap:.2%}, {took_s:.1f} s"
    is_proven = result.least.gap <= 1e-9 and took_s <= 60
    yield Figure("CP-SAT, p = 8, m = 32, split, 8 in flight: gap", "0, 60 s", figure, is_proven)


START_ROW = Row("Start", "whole processes, the median of 9", start)
SEARCH_ROW = Row("Searches", "whole processes, the median of 3", searches)
LARGE_ROW = Row("Many ops", "one process, with the most that it had in memory", large)
OPTIMUM_ROW = Row("Optimum", "one search, in this process", optimum)
