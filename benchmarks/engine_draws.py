"""The differences of the array engine's times from SimPy's, over random lists, costs, machines and options.

python benchmarks/engine_draws.py --draws 2000 --out benchmarks/results/engine_draws.md
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from report import arguments_of, provenance, show

from pipesched.profiles import ProfileError
from pipesched.schedules import ScheduleError, Timeline
from pipesched.schedules.columns import machine_code
from pipesched.simulator import SimulationError
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import array_engine, simulate_arrays

sys.path.append(str(Path(__file__).parents[1]))
from tests.simulator.fast.draws import Draw, drawn

ERRORS = ScheduleError, SimulationError, ProfileError
LIMIT = 1e-9
LOOPS = {"numba": 0, "plain Python": sys.maxsize}
"""Number of steps after which each loop runs as machine code."""


def features(draw: Draw) -> Iterator[str]:
    """Yield the features of a draw that the engines might treat differently."""
    schedule, costs, cluster, more = draw
    network = more["network"]
    has = {
        "eager messages": network.protocol == "eager",
        "blocking sends": network.sends == "blocking",
        "messages in chunks": network.chunk_bytes is not None,
        "messages that slow devices": network.slowdown > 0,
        "shared NICs": bool(cluster.nics),
        "devices that ranks share": len(set(schedule.rank_to_device)) < schedule.num_ranks,
        "hand-over": cluster.has_hand_over,
        "reductions": bool(schedule.reducers),
        "overlap": costs.overlap > 0,
        "compression": costs.compression is not None,
        "jitter": "jitter" in more,
    }
    yield from (name for name, is_there in has.items() if is_there)


def differences(timeline: Timeline, expected: Timeline) -> list[float]:
    """Return the difference of each pair of times: in seconds if the time is below 1 s, else relative."""
    spans = [(span.posted_s, span.start_s, span.end_s) for span in timeline.spans]
    spans += [(hand_over.start_s, hand_over.end_s, 0.0) for hand_over in timeline.hand_overs]
    wanted = [(span.posted_s, span.start_s, span.end_s) for span in expected.spans]
    wanted += [(hand_over.start_s, hand_over.end_s, 0.0) for hand_over in expected.hand_overs]
    return [max(map(_difference, times, wanted_s)) for times, wanted_s in zip(spans, wanted, strict=True)]


def _difference(time_s: float, wanted_s: float) -> float:
    return abs(time_s - wanted_s) / max(1.0, abs(wanted_s))


def _refuse(*_: object, **__: object) -> Timeline:
    raise RuntimeError("the array engine has handed lists to SimPy that SimPy answers")


def report(num_draws: int, loops: Sequence[str]) -> Iterator[str]:
    """Yield the page."""
    yield "# The array engine beside SimPy, draw by draw"
    yield ""
    how = f"draws 0 to {num_draws - 1} of `tests/simulator/fast/draws.py`, {' and '.join(loops)}"
    yield from provenance(f"engine_draws.py --draws {num_draws}", os.getloadavg()[0], how)
    yield ""
    counts, names, refused, answered = Counter[str](), Counter[str](), 0, 0
    apart: dict[str, list[float]] = {loop: [] for loop in loops}
    only_one: list[int] = []
    for seed in range(num_draws):
        draw = drawn(seed)
        try:
            expected = simulate_lists(*draw[:3], **draw.more)
        except ERRORS:
            refused += 1
            continue
        answered += 1
        counts.update(features(draw))
        names[re.sub(r"(\+R|x\d+)+$", "", draw.schedule.name)] += 1
        for loop in loops:
            machine_code.BREAK_EVEN = LOOPS[loop]
            timeline = simulate_arrays(*draw[:3], **draw.more)
            if [(span.rank, span.op) for span in timeline.spans] != [(span.rank, span.op) for span in expected.spans]:
                only_one.append(seed)
            else:
                apart[loop] += differences(timeline, expected)
    yield f"Of {num_draws} draws SimPy refuses {refused} (lists that deadlock, among others) and answers {answered}."
    yield ""
    yield f"| loop | spans and hand-overs | further apart than {LIMIT:g} | largest difference | of other ops |"
    yield "|---|---|---|---|---|"
    for loop, all_apart in apart.items():
        beyond = sum(difference > LIMIT for difference in all_apart)
        yield f"| {loop} | {len(all_apart):,} | {beyond} | {max(all_apart):.1e} | {len(only_one)} |"
    yield ""
    yield "Differences are in seconds below 1 s, else relative."
    yield ""
    lists = ", ".join(f"{name} ({count})" for name, count in sorted(names.items()))
    yield from textwrap.wrap(f"Lists: {lists}.", 118, break_on_hyphens=False)
    yield ""
    yield "| drawn feature | answered draws |"
    yield "|---|---|"
    for what, count in sorted(counts.items()):
        yield f"| {what} | {count} |"


if __name__ == "__main__":
    parser = arguments_of(__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    arguments = parser.parse_args()
    array_engine.simulate_lists = _refuse  # type: ignore[attr-defined]  # what is compared are two engines
    in_use = [loop for loop in LOOPS if loop != "numba" or machine_code.has_numba()]
    show(report(arguments.draws, in_use), arguments.out)
