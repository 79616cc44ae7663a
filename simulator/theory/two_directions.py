"""Schedules that pass the stages in both directions, or in waves."""

from __future__ import annotations

from pipesched.simulator.theory.domain import require


def dualpipe_idle_s(p: int, t_f: float, t_w: float, overlap: float = 0.0) -> float:
    """Return the idle time of the rank that is idle longest in DualPipe (DeepSeek-V3, arXiv:2412.19437, Table 2).

    It is (p/2 - 1)(t_fb + t_b - 3 t_w), of links that take no time and t_f = t_i = t_b - t_w; a pair takes
    t_fb = t_b + (1 - overlap) t_f. W longer than F fills no more of a wait than F would: it counts as t_f here.

    Args:
        p: Ranks; of DualPipeV the stages, twice its ranks.
        t_f: Seconds of F of one stage, and of I.
        t_w: Seconds of W of one stage.
        overlap: Hidden share of the shorter op of a pair, from 0 to 1.
    """
    t_w = min(t_w, t_f)
    t_b = t_f + t_w
    t_fb = t_b + (1 - overlap) * t_f
    return (p / 2 - 1) * (t_fb + t_b - 3 * t_w)


def dualpipe_makespan_s(p: int, m: int, t_f: float, t_w: float, overlap: float = 0.0) -> float:
    """Return m (2 t_f + t_w) - (m - p - 1) overlap t_f + `dualpipe_idle_s`; of DualPipeV m counts twice.

    The ranks next to the middle overlap the most pairs, m - p - 1, so they work the shortest and are idle longest.
    """
    return m * (2 * t_f + t_w) - (m - p - 1) * overlap * t_f + dualpipe_idle_s(p, t_f, t_w, overlap)


def dualpipe_in_flight(p: int) -> int:
    """Return p + 1: micro-batches in flight on every rank, p as in `dualpipe_idle_s` (arXiv:2412.19437, Table 2)."""
    return p + 1


def hanayo_makespan_s(p: int, m: int, waves: int, t_f: float, t_b: float) -> float:
    """Return m (t_f + t_b) + (p - 1) / w (a + m / p (b - a)), a the shorter and b the longer of t_f and t_b.

    With t_f = t_b the bubble is the same as with 2 w interleaved chunks. No paper states it.

    Raises:
        SimulationError: m is not a multiple of p, where the form does not hold.
    """
    require(m % p == 0, f"hanayo: got m = {m}, expected a multiple of {p}")
    return m * (t_f + t_b) + (p - 1) / waves * _turns_s(m // p, t_f, t_b)


def chimera_makespan_s(p: int, m: int, t_f: float, t_b: float) -> float:
    """Return m (t_f + t_b) + (p - 2)(a + m / p (b - a)), a the shorter and b the longer of t_f and t_b.

    The times are of one stage; a rank holds two. With one unit, m = p, the bubble is (p - 2) b, as the paper counts it
    (arXiv:2107.06925, section 3); with more units and t_f = t_b too.
    """
    return m * (t_f + t_b) + (p - 2) * _turns_s(m // p, t_f, t_b)


def chimera_bubble_fraction(p: int, m: int) -> float:
    """Return (p - 2) / (2 m + p - 2), where F and B take as long (arXiv:2107.06925, table 2)."""
    return (p - 2) / (2 * m + p - 2)


def chimera_in_flight(p: int, rank: int) -> int:
    """Return p / 2 + 1 on the outermost ranks and one more on each next one, up to p (arXiv:2107.06925, table 2)."""
    return p // 2 + 1 + min(rank, p - 1 - rank)


def gems_makespan_s(p: int, m: int, t_f: float, t_b: float) -> float:
    """Return p (t_f + t_b) + (m - 1)(a + p b), a the shorter and b the longer of t_f and t_b of one stage.

    The second wave can follow the first no faster than the slower of the two. No paper states it.
    """
    return p * (t_f + t_b) + (m - 1) * (min(t_f, t_b) + p * max(t_f, t_b))


def _turns_s(rounds: int, t_f: float, t_b: float) -> float:
    """Return the time of one step of filling and draining: once, and the difference of F and B in every round."""
    return min(t_f, t_b) + rounds * abs(t_b - t_f)
