"""Schedules that split the backward into I and W: the zero-bubble family and the V schedules."""

from __future__ import annotations

from pipesched.simulator.theory.domain import require


def zb_h1_longest_span_s(p: int, m: int, t_f: float, t_i: float, t_w: float) -> float:
    """Return m (t_f + t_i + t_w) + (p - 1)(t_f + t_i - t_w), of links that take no time.

    It is the makespan too where t_i is at least t_w. Source: arXiv:2401.10241, section 2.3.

    Raises:
        SimulationError: m is below p or t_f below t_w, where the form does not hold.
    """
    require(m >= p and t_f >= t_w, f"zb_h1: got m = {m}, t_f = {t_f}, t_w = {t_w}, expected m >= {p}, t_f >= t_w")
    return m * (t_f + t_i + t_w) + (p - 1) * (t_f + t_i - t_w)


def zb_h2_longest_span_s(p: int, m: int, t_f: float, t_i: float, t_w: float) -> float:
    """Return m (t_f + t_i + t_w) + (p - 1)(t_f + t_i - 2 t_w), of links that take no time (the same section).

    Raises:
        SimulationError: m is below 2 p - 1, t_f below t_w or t_f + t_i below 2 t_w, where the form does not hold.
    """
    require(
        m >= 2 * p - 1 and t_f >= t_w and t_f + t_i >= 2 * t_w,
        f"zb_h2: got m = {m}, t_f = {t_f}, t_i = {t_i}, t_w = {t_w}, "
        f"expected m >= {2 * p - 1}, t_f >= t_w, t_f + t_i >= 2 t_w",
    )
    return m * (t_f + t_i + t_w) + (p - 1) * (t_f + t_i - 2 * t_w)


def interleaved_zb_longest_span_s(p: int, m: int, v: int, t_f: float, t_i: float, t_w: float) -> float:
    """Return m (t_f + t_i + t_w) + (p - 1)(t_f + t_i - t_w) / v: ZB-H1's bubble divided by the chunks.

    No paper states it; it is ZB-H1's form (arXiv:2401.10241, section 2.3), in chunk times.

    Raises:
        SimulationError: m is not a multiple of p or t_f is below t_w, where the form does not hold.
    """
    require(
        m % p == 0 and t_f >= t_w,
        f"interleaved_zb: got m = {m}, t_f = {t_f}, t_w = {t_w}, expected m a multiple of {p}, t_f >= t_w",
    )
    return m * (t_f + t_i + t_w) + (p - 1) * (t_f + t_i - t_w) / v


def zb_h1_activations(p: int, rank: int, saved: float, saved_for_weight: float) -> float:
    """Return (p - k) M_B + k M_W on rank k, m at least p: the peak memory from F to I and from I to W.

    Source: arXiv:2401.10241, section 2.3, where ranks count from 1.
    """
    return (p - rank) * saved + rank * saved_for_weight


def zb_h2_activations(p: int, rank: int, saved: float, saved_for_weight: float) -> float:
    """Return (2 p - 1 - 2 k) M_B + 2 k M_W on rank k, m at least 2 p - 1 (the same section)."""
    return (2 * p - 1 - 2 * rank) * saved + 2 * rank * saved_for_weight


def zb_auto_longest_span_s(p: int, m: int, limit: int) -> float:
    """Return 3 m + max(0, 2 p - 1 - limit): F, I and W of 1 s, m at least 2 p - 1, limit from p micro-batches up.

    Each micro-batch of memory more takes a second from ZB-H1's bubble, until none is left at ZB-H2's memory. No paper
    states it; it joins the two ends that arXiv:2401.10241, section 2.3 gives.

    Raises:
        SimulationError: m is below 2 p - 1, or the limit below p.
    """
    require(
        m >= 2 * p - 1 and limit >= p,
        f"zb_auto: got m = {m}, limit = {limit}, expected m >= {2 * p - 1}, limit >= {p}",
    )
    return 3 * m + max(0, 2 * p - 1 - limit)


def zbv_makespan_s(p: int, m: int, t: float) -> float:
    """Return (6 m + p - 1) t, where F, I and W of a chunk all take t (ZBV, arXiv:2401.10241, section 6).

    So it is for m of 3 p / 2 and more; 3 (p - 1) - 2 (m - 1) chunk times are added where that is above 0.
    """
    return (6 * m + p - 1 + max(0, 3 * (p - 1) - 2 * (m - 1))) * t


def zbv_in_flight(p: int, m: int) -> int:
    """Return 2 min(m, p): chunks that a rank holds at most from F to W, as 1F1B's first rank (the same section)."""
    return 2 * min(m, p)


def v_half_makespan_s(p: int, m: int, t: float) -> float:
    """Return (6 m + 3 p - 5) t, or 3 p - 4 with p odd, where F, I and W of a chunk all take t.

    It holds for the builder's lists; the authors (arXiv:2405.15362) count a bubble of about p / (2 m) of the work.

    Raises:
        SimulationError: m is below 2 p, where the form does not hold.
    """
    require(m >= 2 * p, f"v_half: got m = {m}, expected m >= {2 * p}")
    return (6 * m + max(0, 3 * p - 5 + p % 2)) * t


def v_min_makespan_s(p: int, m: int, t: float) -> float:
    """Return (6 m + 4 p - 7) t, or 4 p - 4 with p one above a multiple of 3, where F, I and W of a chunk all take t.

    It holds for the builder's lists; the authors (arXiv:2405.15362) count a bubble of about 2 p / (3 m) of the work.

    Raises:
        SimulationError: m is below 2 p, where the form does not hold.
    """
    require(m >= 2 * p, f"v_min: got m = {m}, expected m >= {2 * p}")
    return (6 * m + 4 * p - (4 if p % 3 == 1 else 7)) * t


def v_half_in_flight(p: int, m: int) -> int:
    """Return 2 min(m, floor((p + 2) / 2)): chunks that a rank holds at most from F to W (arXiv:2405.15362)."""
    return 2 * min(m, (p + 2) // 2)


def v_min_in_flight(p: int, m: int) -> int:
    """Return 2 min(m, floor((p + 4) / 3)): chunks that a rank holds at most from F to W (arXiv:2405.15362)."""
    return 2 * min(m, (p + 4) // 3)
