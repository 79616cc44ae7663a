"""Both engines and PyTorch's simulator on the same lists: ops/s, in one process, by turns."""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pipesched import Link, build, flat
from pipesched.profiles.clusters import Cluster, of_nodes
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.columns import machine_code
from pipesched.schedules.formats import write_csv_comms
from pipesched.schedules.lowering import lower, lower_for_torch
from pipesched.schedules.transforms import compute_only
from pipesched.simulator import USUAL_NETWORK
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import LoadedProgram, compile_lists, held_on_devices
from pipesched.simulator.memory import memory
from speed_rows.row import Figure, Row, ratio, repeated, turns

SIZES = {(8, 64): (5, 100), (64, 512): (3, 10)}
"""(p, m): number of rounds, and of runs of the arrays in each round."""
STAGE = StageCost(1.0, 2.0, output_bytes=10, saved_bytes=100, weight_bytes=1000)
LINK = Link(0.01, 1e3)
GOALS = {"numba": (500, 400), "plain Python": (15, 10)}
"""Speed-up over SimPy with memory, and over PyTorch's simulator."""
SIMPY, SIMPY_MEMORY, TORCH = "SimPy", "SimPy with memory", "PyTorch"
ANEW = ", costs and machines loaded anew"
BEFORE = 161_000
"""Speed of the SimPy engine on an earlier day and machine [ops/s]."""


def clusters(p: int) -> dict[str, Cluster]:
    """Return clusters of `p` devices, by the way in which messages wait for each other."""
    node = Cluster((flat(1).devices[0],) * 4, intra=LINK, inter=LINK, nics=((0, 1, 2, 3),))
    return {
        "a link for every two devices": flat(p, LINK),
        "a shared NIC for every four devices": of_nodes(node, p // 4),
    }


def figures() -> Iterator[Figure]:
    for (p, m), (rounds, times) in SIZES.items():
        schedule, costs = lower(build("1f1b", p, m)), StageCosts((STAGE,) * p)
        for where, cluster in clusters(p).items():
            yield from of_lists(f"1f1b ({p}, {m}), {where}", schedule, costs, cluster, rounds, times)


def of_lists(
    what: str, schedule: Schedule, costs: StageCosts, cluster: Cluster, rounds: int, times: int
) -> Iterator[Figure]:
    """Yield the speed of each engine on some lists."""
    loops = {loop: times if loop == "numba" else max(1, times // 10) for loop in GOALS}
    if not machine_code.has_numba():
        del loops["numba"]
    runs: dict[str, Callable[[], object]] = {
        SIMPY: lambda: simulate_lists(schedule, costs, cluster),
        SIMPY_MEMORY: lambda: memory(simulate_lists(schedule, costs, cluster), costs, schedule),
        TORCH: torch_simulator(schedule),
        **array_runs(schedule, costs, cluster, loops),
    }
    break_even = machine_code.BREAK_EVEN
    for run in runs.values():
        run()  # machine code is loaded, or made
    took_s = turns(runs, rounds)
    machine_code.BREAK_EVEN = break_even
    for loop, repeats in loops.items():
        for name in (loop, loop + ANEW):
            took_s[name] = [seconds / repeats for seconds in took_s[name]]
    num_ops = sum(map(len, schedule.ops))
    speed = {name: num_ops / statistics.median(seconds) for name, seconds in took_s.items()}
    yield Figure(f"{what}: {SIMPY}", f"{2 * BEFORE:,} ops/s", f"{speed[SIMPY]:,.0f} ops/s", speed[SIMPY] >= 2 * BEFORE)
    yield Figure(f"{what}: {SIMPY_MEMORY}", "", f"{speed[SIMPY_MEMORY]:,.0f} ops/s", None)
    yield Figure(f"{what}: {TORCH}'s unit-time simulator", "", f"{speed[TORCH]:,.0f} ops/s", None)
    for loop in loops:
        goals: list[tuple[str, str, float | None]] = [
            (loop, other, goal) for other, goal in zip((SIMPY_MEMORY, TORCH), GOALS[loop], strict=True)
        ]
        for name, other, goal in (*goals, (loop + ANEW, SIMPY_MEMORY, None)):
            times_as_quick = ratio(took_s[other], took_s[name])
            yield Figure(
                f"{what}: arrays with memory, {name}, beside {other}",
                "" if goal is None else f"{goal} x",
                f"{times_as_quick:.1f} x ({speed[name]:,.0f} ops/s)",
                None if goal is None else times_as_quick >= goal,
            )


def array_runs(
    schedule: Schedule, costs: StageCosts, cluster: Cluster, loops: Mapping[str, int]
) -> dict[str, Callable[[], None]]:
    """Return runs of the compiled lists for each loop: with loaded costs and machines, or with loading each time."""
    program = compile_lists(schedule, USUAL_NETWORK, has_hand_over=False)
    held, loaded = held_on_devices(program, costs), LoadedProgram(program, costs, cluster)

    def times_and_peaks(loaded: LoadedProgram) -> None:
        seconds = loaded.times()
        for device in held:
            device.peak_bytes(seconds, 1)

    def with_loop(loop: str, run: Callable[[], None]) -> Callable[[], None]:
        runs = repeated(run, loops[loop])

        def set_and_run() -> None:
            machine_code.BREAK_EVEN = 0 if loop == "numba" else sys.maxsize
            runs()

        return set_and_run

    return {
        **{loop: with_loop(loop, lambda: times_and_peaks(loaded)) for loop in loops},
        **{
            loop + ANEW: with_loop(loop, lambda: times_and_peaks(LoadedProgram(program, costs, cluster)))
            for loop in loops
        },
    }


def torch_simulator(schedule: Schedule) -> Callable[[], object]:
    """Return a run of PyTorch's simulator over the lists in PyTorch's form."""
    from torch.distributed.pipelining import schedules as pipelining

    rows = csv.reader(write_csv_comms(lower_for_torch(compute_only(schedule))).splitlines())
    action, simulate = pipelining._Action, pipelining._simulate_comms_compute  # noqa: SLF001 -- it has no other
    actions: Any = {
        rank: [action.from_str(cell) for cell in row if "SHARD" not in cell and "REDUCE" not in cell]
        for rank, row in enumerate(rows)
    }
    return lambda: simulate(actions, lambda stage: schedule.home(stage, 0), schedule.num_stages)


ROW = Row(
    title="Engines",
    how="times of compiled lists under costs and machines that are loaded, and the peaks of their memory; medians of "
    "turns",
    figures=figures,
)
