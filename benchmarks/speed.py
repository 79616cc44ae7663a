"""How fast the tool itself is: start of the command line, ops per second of the SimPy model, settings of the tuner.

python benchmarks/speed.py
"""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from pipesched import Link, StageCost, StageCosts, build, flat, load_profile
from pipesched.schedules import computes
from pipesched.schedules.lowering import lower
from pipesched.simulator.analysis import metrics
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import memory
from pipesched.simulator.tuner import Problem, Space, search_settings

PROFILE = Path(__file__).parents[1] / "profiles/data/gpt-10m-epyc.json"
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "pipesched --help": [sys.executable, "-m", "pipesched", "--help"],
    "pipesched simulate -p 8 -m 64": [
        *(sys.executable, "-m", "pipesched", "simulate", "--schedule", "1f1b", "-p", "8", "-m", "64"),
        *("--uniform", "f=1,b=2", "--link", "latency_s=0.1"),
    ],
}


def median_s(run: Callable[[], object], repeats: int) -> float:
    """Return the median time of `run` [s]."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    print("| whole process | median of 9 |\n|---|---|")
    for name, command in COMMANDS.items():
        took_s = median_s(lambda command=command: subprocess.run(command, check=True, capture_output=True), 9)  # type: ignore[misc]
        print(f"| {name} | {took_s:.3f} s |")
    p, m = 16, 256
    schedule = lower(build("1f1b", p, m))
    stage = StageCost(1.0, 2.0, output_bytes=10, saved_bytes=100, weight_bytes=1000)
    costs, cluster = StageCosts((stage,) * p), flat(p, Link(0.01, 1e3))
    num_ops = sum(map(len, schedule.ops))
    num_computes = sum(len(computes(op)) for row in schedule.ops for op in row)
    timeline = simulate_lists(schedule, costs, cluster)
    print(f"\n1f1b, p = {p}, m = {m}: {num_ops} ops in the lists, {num_computes} of them computations\n")
    print("| what | median of 9 | ops/s | computations/s |\n|---|---|---|---|")
    for name, run in {
        "simulate, with transfers": lambda: simulate_lists(schedule, costs, cluster),
        "simulate + memory": lambda: memory(simulate_lists(schedule, costs, cluster), costs, schedule),
        "memory": lambda: memory(timeline, costs, schedule),
        "metrics and idle causes": lambda: metrics(timeline),
        "lower": lambda: lower(build("1f1b", p, m)),
    }.items():
        took_s = median_s(run, 9)
        print(f"| {name} | {took_s:.3f} s | {num_ops / took_s:,.0f} | {num_computes / took_s:,.0f} |")
    settings = Space((8, 16, 32, 64), (1, 2, 4, 8), (0, 4), recomputes=(False, True)).settings()
    problem = Problem(load_profile(PROFILE), 64, flat(8, Link(1e-4, 1e9)))
    gc.set_threshold(200_000)  # as in the tuner's processes
    search_settings(problem, settings[:4])  # machine code is loaded, or made
    took_s = median_s(lambda: search_settings(problem, settings), 3)
    loop = "plain Python" if find_spec("numba") is None else "compiled by numba"
    print(f"\n{len(settings)} settings of the tuner, p = 8, one process, {loop}: {took_s / len(settings):.4f} s each")


if __name__ == "__main__":
    main()
