"""Time and staleness of pipelined backpropagation: Figs 1 to 4, Tables 1 and 8, Algorithm 1.

The paper's scheme has 2K + 1 accelerators: the forward of a stage and its backward are on different ones. An op list
runs both on the rank that has the stage's weights, so `paper_scheme` simulates time and staleness of the scheme alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import pipesched
from paper_rows.figure import Outcome, Verdict, verdict_of
from paper_rows.plain_loop import largest_error
from paper_rows.stale_weights.layer_sizes import layer_sizes
from pipesched.schedules.builders import build
from pipesched.schedules.weights import staleness

_REGISTERS = {
    "lenet5": ((1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
    "alexnet": ((1,), (1, 2), (1, 2, 3)),
    "vgg16": ((2,), (2, 4), (2, 4, 7), (2, 4, 7, 10)),
    "resnet": ((4,), (4, 7), (2, 3, 4)),
}
"""Layers before each pair of registers, for 4, 6, 8 and 10 stages; layers of a ResNet are blocks."""


@dataclass(frozen=True, slots=True)
class Cycles:
    """The paper's scheme with K pairs of registers, in cycles.

    Attributes:
        makespan: Cycles until the last mini-batch has updated all stages.
        busy: Share of accelerators at work, by cycle.
        staleness: By forward stage, the most updates between the weights of a forward and its own update.
    """

    makespan: int
    busy: tuple[float, ...]
    staleness: tuple[int, ...]


def paper_scheme(registers: int, mini_batches: int) -> Cycles:
    """Simulate the paper's scheme cycle by cycle.

    Forward stage j of mini-batch i runs in cycle i + j, backward stage j in cycle i + 2K - j. The last forward and
    backward are in one cycle, on one accelerator. A backward updates its weights at the end of its cycle.
    """
    accelerators = 2 * registers + 1
    work: dict[int, set[int]] = {}
    for batch in range(mini_batches):
        for place in range(accelerators):
            work.setdefault(batch + place, set()).add(place)
    stale = []
    for stage in range(registers + 1):
        updates = [batch + 2 * registers - stage for batch in range(mini_batches)]
        ages = [
            batch - sum(update < batch + stage for update in updates)  # updates that the forward sees
            for batch in range(mini_batches)
        ]
        stale.append(max(ages))
    busy = tuple(len(work[cycle]) / accelerators for cycle in sorted(work))
    return Cycles(max(work) + 1, busy, tuple(stale))


def fig_2() -> Outcome:
    ranks, batches = 4, 6
    costs = pipesched.Setup(pipesched.DeviceCost(forward_s=1.0, backward_s=2.0))
    result = pipesched.simulate(build("naive", ranks, batches), costs)
    work_s = sum(device.busy_s for device in result.metrics.devices)
    share = work_s / (ranks * result.makespan_s)
    return Outcome("1 of 4 accelerators at work", f"{share:.0%} of the time", verdict_of([share], [1 / ranks], 0.001))


def fig_4() -> Outcome:
    shown, long = paper_scheme(1, 5), paper_scheme(1, 200)
    first = staleness(build("stale_weights", 2, 200)).stages[0]
    results = [shown.makespan, max(shown.busy), long.staleness[0], first.forward.staleness]
    rows = []
    for registers in (1, 2, 3, 4, 9):
        scheme, lists = paper_scheme(registers, 200), build("stale_weights", registers + 1, 200)
        rows.append(
            f"| {registers} | {2 * registers + 1} | {scheme.staleness[0]} | "
            f"{staleness(lists).stages[0].forward.staleness} | {_speedup(registers):.2f} | "
            f"{_list_speedup(registers):.2f} |"
        )
    return Outcome(
        "7 cycles, all 3 accelerators at work, weights 2 cycles old",
        f"{results[0]} cycles, {results[1]:.0%} at work, {results[2]} old; op lists on 2 ranks {results[3]} old",
        verdict_of(results, [7, 1, 2, 2], 0.001),
        "Time and staleness of the 2K + 1 accelerators are simulated only: an op list has one place for the weights "
        "of a stage, and the paper's scheme reads them on one accelerator and updates them on another. Our op lists "
        "have the same staleness on K + 1 ranks, each with a forward and a backward of one stage.",
        [
            "K pairs of registers, 200 mini-batches. A forward and a backward of a stage take one cycle each, on the",
            "accelerator in the middle both together; one cycle of our ranks has both. Speed-up over one accelerator.",
            "",
            "| K | accelerators | staleness | of op lists | speed-up | of op lists, K + 1 ranks |",
            "|---:|---:|---:|---:|---:|---:|",
            *rows,
        ],
    )


def _speedup(registers: int) -> float:
    """Return the speed-up on 2K + 1 accelerators; the work of a mini-batch is 2K + 1 cycles."""
    return 200 * (2 * registers + 1) / paper_scheme(registers, 200).makespan


def _list_speedup(registers: int) -> float:
    costs = pipesched.Setup(pipesched.DeviceCost(forward_s=1.0, backward_s=1.0))
    made = pipesched.simulate(build("stale_weights", registers + 1, 200), costs)
    return 200 * 2 * (registers + 1) / made.makespan_s


def table_1() -> Outcome:
    rows = []
    for model, placements in _REGISTERS.items():
        sizes = layer_sizes(model)
        whole = sum(size.parameters for size in sizes)
        shares = [sum(size.parameters for size in sizes[: cuts[-1]]) / whole for cuts in placements]
        cells = [f"{','.join(map(str, c))}: {share:.1%}" for c, share in zip(placements, shares, strict=True)]
        rows.append(f"| {model} | {' | '.join([*cells, *[''] * (4 - len(cells))])} |")
    return Outcome(
        "-",
        "-",
        Verdict.DRAWING,
        "The text that we have lacks the table. The registers below have its numbers of stages, and share of weights "
        "that are stale. Blocks are the smallest parts of our ResNet.",
        ["| | 4 stages | 6 stages | 8 stages | 10 stages |", "|---|---|---|---|---|", *rows],
    )


def _error(seed: int) -> float:
    return largest_error("stale_weights", seed, 0.0, behind=lambda stage: 2 * (2 - stage), ahead=lambda _: 0)


def algorithm_1() -> Outcome:
    errors = [_error(seed) for seed in range(3)]
    return Outcome(
        "forward weights 2(K - j + 1) steps old",
        f"losses differ by at most {max(errors):.0e} over 3 seeds",
        Verdict.AGREES if max(errors) < 1e-12 else Verdict.DIFFERS,
        "K = 2, 12 steps of SGD in float64, beside a plain loop. It agrees below 1e-12. As no weights are stashed, a "
        "backward multiplies with the weights of its own time.",
    )
