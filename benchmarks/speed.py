"""How fast the tool itself is: start of the command line, ops per second of both engines, settings of the tuner.

python benchmarks/speed.py
"""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from pipesched import Link, StageCost, StageCosts, build, flat, load_profile
from pipesched.schedules import computes
from pipesched.schedules.lowering import lower
from pipesched.simulator import USUAL_NETWORK
from pipesched.simulator.analysis import metrics
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import compile_lists, loop_runner, program_times, simulate_arrays
from pipesched.simulator.memory import memory
from pipesched.simulator.tuner import Problem, Space, search_settings

BREAK_EVEN = loop_runner.BREAK_EVEN
PROFILE = Path(__file__).parents[1] / "profiles/data/gpt-10m-epyc.json"
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "pipesched --help": [sys.executable, "-m", "pipesched", "--help"],
    "pipesched simulate -p 8 -m 64": [
        *(sys.executable, "-m", "pipesched", "simulate", "--schedule", "1f1b", "-p", "8", "-m", "64"),
        *("--uniform", "f=1,b=2", "--link", "latency_s=0.1"),
    ],
}


STAGE = StageCost(1.0, 2.0, output_bytes=10, saved_bytes=100, weight_bytes=1000)


def median_s(run: Callable[[], object], repeats: int) -> float:
    """Return the median time of `run` [s]."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def engine_rows(p: int, m: int, rounds: int) -> Iterator[str]:
    """Yield a row for each way to the times of a 1F1B, all of which take turns: ops/s, and times as quick as SimPy."""
    schedule = lower(build("1f1b", p, m))
    costs, cluster = StageCosts((STAGE,) * p), flat(p, Link(0.01, 1e3))
    program = compile_lists(schedule, USUAL_NETWORK, has_hand_over=False)

    def times(break_even: int) -> None:
        loop_runner.BREAK_EVEN = break_even
        program_times(program, costs, cluster)

    def timeline(break_even: int) -> None:
        loop_runner.BREAK_EVEN = break_even
        simulate_arrays(schedule, costs, cluster)

    runs: dict[str, Callable[[], object]] = {
        "SimPy, Timeline": lambda: simulate_lists(schedule, costs, cluster),
        "arrays, Timeline, plain Python": lambda: timeline(sys.maxsize),
        "arrays, times of compiled lists, plain Python": lambda: times(sys.maxsize),
    }
    if loop_runner.has_numba():
        times(0)  # machine code is loaded, or made
        runs["arrays, Timeline, numba"] = lambda: timeline(0)
        runs["arrays, times of compiled lists, numba"] = lambda: times(0)
    took_s: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            took_s[name].append(median_s(run, 1))
    num_ops = sum(map(len, schedule.ops))
    simpy_s = took_s["SimPy, Timeline"]
    for name, seconds in took_s.items():
        ratios = [slow_s / quick_s for slow_s, quick_s in zip(simpy_s, seconds, strict=True)]
        yield f"| ({p}, {m}) | {name} | {num_ops / statistics.median(seconds):,.0f} | {statistics.median(ratios):.1f} |"


def main() -> None:
    print("| whole process | median of 9 |\n|---|---|")
    for name, command in COMMANDS.items():
        took_s = median_s(lambda command=command: subprocess.run(command, check=True, capture_output=True), 9)  # type: ignore[misc]
        print(f"| {name} | {took_s:.3f} s |")
    p, m = 16, 256
    schedule = lower(build("1f1b", p, m))
    costs, cluster = StageCosts((STAGE,) * p), flat(p, Link(0.01, 1e3))
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
    print("\n1f1b, ops in the lists; the ways take turns\n")
    print("| (p, m) | what | ops/s | times as quick |\n|---|---|---|---|")
    for row in chain(engine_rows(8, 64, 9), engine_rows(64, 512, 3)):
        print(row)
    loop_runner.BREAK_EVEN = BREAK_EVEN
    settings = Space((8, 16, 32, 64), (1, 2, 4, 8), (0, 4), recomputes=(False, True)).settings()
    problem = Problem(load_profile(PROFILE), 64, flat(8, Link(1e-4, 1e9)))
    gc.set_threshold(200_000)  # as in the tuner's processes
    search_settings(problem, settings[:4])  # machine code is loaded, or made
    took_s = median_s(lambda: search_settings(problem, settings), 3)
    loop = "compiled by numba" if loop_runner.has_numba() else "plain Python"
    print(f"\n{len(settings)} settings of the tuner, p = 8, one process, {loop}: {took_s / len(settings):.4f} s each")


if __name__ == "__main__":
    main()
