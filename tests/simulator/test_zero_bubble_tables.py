"""Zero Bubble Pipeline Parallelism (arXiv:2401.10241, ICLR 2024), Tables 5 and 6, to the printed digits.

The rate is `bubble_of_longest_span`. Times of Table 5 are in ms, and so they are here: a rate has no unit.
"""

from typing import NamedTuple

import pytest

from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import StageCosts, uniform
from pipesched.schedules import Schedule
from pipesched.schedules.builders import build
from pipesched.simulator.analysis import metrics
from pipesched.simulator.engine import simulate_lists

P, V = 8, 4
M_W_OVER_M_B = 32 * 4096 / (34 * 4096 + 5 * 32 * 1024)
"""Table 1's memory of W over that of B, of hidden size 4096, 32 heads and 1024 tokens."""


class Setting(NamedTuple):
    m: int
    f: float
    i: float
    w: float
    c: float
    one_f_one_b: str
    zb_h1: str
    zb_h2: str
    zb_1p: str
    zb_2p: str
    interleaved_as_printed: str
    interleaved: str

    @property
    def work(self) -> float:
        return self.m * (self.f + self.i + self.w)

    def costs(self, chunks: int = 1) -> StageCosts:
        f, i, w = (seconds / chunks for seconds in (self.f, self.i, self.w))
        return uniform(P * chunks, f, i + w, i, w)

    def rate(self, schedule: Schedule, chunks: int = 1) -> str:
        timeline = simulate_lists(schedule, self.costs(chunks), flat(P, Link(self.c)))
        return f"{metrics(timeline).bubble_of_longest_span:.4f}"


SETTINGS = (
    Setting(24, 29.718, 29.444, 19.927, 0.527, "0.2347", "0.1323", "0.0698", "0.1323", "0.0029", "0.0808", "0.0827"),
    Setting(32, 29.802, 29.428, 19.530, 0.577, "0.1898", "0.1045", "0.0559", "0.1045", "0.0022", "0.0628", "0.0644"),
    Setting(64, 29.935, 29.621, 19.388, 0.535, "0.1091", "0.0554", "0.0294", "0.0554", "0.0010", "0.0320", "0.0328"),
)
settings = pytest.mark.parametrize("row", SETTINGS, ids=lambda row: f"m={row.m}")


@settings
def test_1f1b_and_the_handcrafted_schedules_come_out(row):
    rates = [row.rate(build(name, P, row.m)) for name in ("1f1b", "zb_h1", "zb_h2")]
    assert rates == [row.one_f_one_b, row.zb_h1, row.zb_h2]


@settings
@pytest.mark.parametrize("kept", [M_W_OVER_M_B, 0.5])
def test_the_heuristic_comes_out_under_both_memory_limits(row, kept):
    def automatic(limit: float) -> str:
        return row.rate(build("zb_auto", P, row.m, f=row.f, i=row.i, w=row.w, c=row.c, limit=limit, kept=kept))

    assert automatic(P) == row.zb_1p
    assert automatic(2 * P) == row.zb_2p


@settings
def test_interleaved_1f1b_is_slightly_above_the_printed_column(row):
    schedule = build("interleaved", P, row.m, V)
    assert row.rate(schedule, V) == row.interleaved
    assert row.interleaved > row.interleaved_as_printed


@settings
def test_the_printed_column_of_interleaved_1f1b_lets_only_every_pth_microbatch_wait_for_the_rank_before_the_first(row):
    """What comes round from the last rank to the first (F), or from the first to the last (B), is waited for by the
    first micro-batch of each round of p only. Without these dependencies the printed digits come out."""
    seconds = {"F": row.f / V, "B": (row.i + row.w) / V}
    rows = [
        [(op.phase.value, op.stage, op.microbatch) for op in ops[:-V]] for ops in build("interleaved", P, row.m, V).ops
    ]
    end: dict[tuple[str, int, int] | None, float] = {None: 0.0}
    free, at = [0.0] * P, [0] * P
    while min(at) < len(rows[0]):
        for rank in range(P):
            while at[rank] < len(rows[rank]) and (before := _waited_for(*rows[rank][at[rank]])) in end:
                op = rows[rank][at[rank]]
                arrival = end[before] + (row.c if before else 0.0)
                end[op] = free[rank] = max(free[rank], arrival) + seconds[op[0]]
                at[rank] += 1
    assert f"{(max(free) - row.work) / max(free):.4f}" == row.interleaved_as_printed


def _waited_for(letter: str, stage: int, microbatch: int) -> tuple[str, int, int] | None:
    """What another rank must have made; a stage's own F is always before its B on the rank's list."""
    ends, comes_round = (0, stage % P == 0) if letter == "F" else (P * V - 1, stage % P == P - 1)
    if stage == ends or (comes_round and microbatch % P):
        return None
    return (letter, stage - 1 if letter == "F" else stage + 1, microbatch)


@settings
def test_with_these_transfers_zb_h2_loses_what_the_paper_gives_and_two_transfers_a_rank(row):
    """(p - 1)(t_f + t_i - 2 t_w) of section 2.3, and 2 c per rank for the way there and back."""
    timeline = simulate_lists(build("zb_h2", P, row.m), row.costs(), flat(P, Link(row.c)))
    longest_s = max(device.span_s for device in metrics(timeline).devices)
    assert longest_s - row.work == pytest.approx((P - 1) * (row.f + row.i + 2 * row.c - 2 * row.w), rel=1e-9)
