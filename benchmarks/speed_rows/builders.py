"""Time of building and lowering lists, beside PyTorch's own orders, which are not lowered."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

from pipesched import build
from pipesched.schedules import Schedule
from pipesched.schedules.builders import CATALOGUE
from pipesched.schedules.builders.controllable_memory import _squeezed
from pipesched.schedules.lowering import lower
from speed_rows.row import Figure, Row, ratio, repeated, turns

SMALL, LARGE = (8, 64), (64, 512)
GOAL_S = 0.25
LOWERED_PER_S = 1_000_000
RANKS, MICROBATCHES = LARGE
LOOP, VEE = (0, RANKS), (0, 2 * RANKS - 1)
TORCH = {
    "interleaved": ("ScheduleInterleaved1F1B", LOOP),
    "zbv": ("ScheduleZBVZeroBubble", VEE),
    "v_half": None,
    "dualpipe_v": ("ScheduleDualPipeV", VEE),
}
"""PyTorch's class, and the stages of rank 0; it has no V-Half."""
ROUNDS, TIMES = 5, 20


def figures() -> Iterator[Figure]:
    for name, order in TORCH.items():
        yield from beside_torch(name, order)
    for name in CATALOGUE:
        yield Figure(f"{name}, built: {SMALL}, {LARGE}", "", f"{built(name, SMALL)}, {built(name, LARGE)}", None)


def beside_torch(name: str, order: tuple[str, tuple[int, int]] | None) -> Iterator[Figure]:
    """Yield the time of a schedule, and the time of PyTorch for its order, which is measured once.

    A schedule caches its lowered lists, so each turn lowers a new schedule with the same lists.
    """
    whole, lowering = f"{name} {LARGE}, built and lowered", f"{name} {LARGE}, lowered"
    schedule = anew(name)
    num_ops = len(lower(schedule).columns.codes)  # machine code is loaded, or made
    took_s = turns({whole: lambda: lower(anew(name)), lowering: lambda: lower(replace(schedule))}, ROUNDS)
    whole_s, lowering_s = (statistics.median(took_s[what]) for what in (whole, lowering))
    yield Figure(whole, f"{GOAL_S} s", f"{whole_s:.3f} s", whole_s <= GOAL_S)
    speed = num_ops / lowering_s
    yield Figure(lowering, f"{LOWERED_PER_S:,} ops/s", f"{speed:,.0f} ops/s", speed >= LOWERED_PER_S)
    if order is not None:
        torch_s = turns({"torch": torch_order(*order)}, 1)["torch"]
        figure = f"{torch_s[0]:.1f} s, {ratio(torch_s, [whole_s]):,.0f} x"
        yield Figure(f"{name} {LARGE}, ordered by PyTorch's {order[0]}, not lowered", "", figure, None)


def anew(name: str, counts: tuple[int, int] = LARGE) -> Schedule:
    """Return a new schedule, without cached results."""
    _squeezed.cache_clear()
    return build(name, *counts)


def built(name: str, counts: tuple[int, int]) -> str:
    """Return the median time of building a schedule [ms]."""
    times = TIMES if counts == SMALL else 1
    took_s = turns({name: repeated(partial(anew, name, counts), times)}, ROUNDS)[name]
    return f"{statistics.median(took_s) / times * 1e3:.2f} ms"


def torch_order(kind: str, stages_of_rank_0: tuple[int, int]) -> Callable[[], object]:
    """Return a function that makes PyTorch order the ops of all ranks, on stand-ins for stages."""
    from torch.distributed.pipelining import schedules as pipelining

    num_stages = 2 * RANKS
    stages = [
        SimpleNamespace(
            stage_index=index,
            num_stages=num_stages,
            group_size=RANKS,
            group_rank=0,
            is_first=index == 0,
            is_last=index == num_stages - 1,
            submod=None,
        )
        for index in stages_of_rank_0
    ]
    return lambda: getattr(pipelining, kind)(stages, MICROBATCHES, loss_fn=lambda *_args: 0.0)


ROW = Row(
    title="Builders",
    how="lists of all ranks; processor time, medians of turns; PyTorch orders once",
    figures=figures,
)
