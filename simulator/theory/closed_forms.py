"""Closed forms of makespans, idle seconds and memory; arguments for which a form was not derived are refused.

Equal stages; p ranks, m micro-batches, v chunks per rank; t_f and t_b are the seconds of F and B of the whole share of
a rank (with v chunks, a v-th for each), t_i and t_w the seconds of I and W; transfer_s, in the formulas c, is the
latency of one message. Makespans leave out the optimizer's step. The longest span is the greatest time of any rank from
its first F to its last W. In runs without a flush, m is the number of micro-batches of the whole run.
"""

from __future__ import annotations

from pipesched.simulator import SimulationError

# One direction, whole backwards; data parallelism; recompute.


def naive_makespan_s(p: int, m: int, t_f: float, t_b: float, transfer_s: float = 0.0) -> float:
    """Return m p (t_f + t_b) + 2 m (p - 1) c: one micro-batch at a time goes there and back."""
    return m * p * (t_f + t_b) + 2 * m * (p - 1) * transfer_s


def gpipe_makespan_s(p: int, m: int, t_f: float, t_b: float, transfer_s: float = 0.0) -> float:
    """Return (m + p - 1)(t_f + t_b) + 2 (p - 1) c (GPipe, arXiv:1811.06965, section 2.3)."""
    return (m + p - 1) * (t_f + t_b) + 2 * (p - 1) * transfer_s


def one_f_one_b_makespan_s(p: int, m: int, t_f: float, t_b: float, transfer_s: float = 0.0) -> float:
    """Return the makespan of 1F1B (PipeDream-flush, arXiv:2006.09503, section 2.2).

    It is (m + p - 1)(t_f + t_b) + 2 c [m + p - 2 - ceil((m - 1) / p)]. Where p divides m the bracket is
    p - 2 + (p - 1) m / p, the form found in papers: every p micro-batches wait for p - 1 round trips.
    """
    round_trips = m + p - 2 - -(-(m - 1) // p)
    return (m + p - 1) * (t_f + t_b) + 2 * round_trips * transfer_s


def two_rank_afp_makespan_s(m: int, advance: int, t_f: float, t_b: float, transfer_s: float = 0.0) -> float:
    """Return the makespan of 1F1B with advance forward propagation on two ranks (AvgPipe, PPoPP 2023, Figure 7).

    It is GPipe's makespan, plus a wait once in advance + 2 micro-batches. The wait is the part of a round trip 2 c that
    `advance` pairs of F and B do not hide. Together:

        (m + 1)(t_f + t_b) + 2 c + floor((m - 1) / (advance + 2)) max(0, 2 c - advance (t_f + t_b))
    """
    unhidden_s = max(0.0, 2 * transfer_s - advance * (t_f + t_b))
    return gpipe_makespan_s(2, m, t_f, t_b, transfer_s) + (m - 1) // (advance + 2) * unhidden_s


def interleaved_bubble_overhead(p: int, m: int, v: int) -> float:
    """Return (p - 1) / (v m), for links that take no time (Megatron-LM, arXiv:2104.04473, section 2.2.2).

    Raises:
        SimulationError: m is not a multiple of p, where the form does not hold.
    """
    _require(m % p == 0, f"interleaved: got {m} micro-batches on {p} ranks, expected a multiple of {p}")
    return (p - 1) / (v * m)


def interleaved_makespan_s(p: int, m: int, v: int, t_f: float, t_b: float) -> float:
    """Return m (t_f + t_b) (1 + bubble_overhead), for links that take no time and m a multiple of p."""
    return m * (t_f + t_b) * (1 + interleaved_bubble_overhead(p, m, v))


def gpipe_in_flight(m: int) -> int:
    """Return m: on every rank all micro-batches wait for their B (arXiv:1811.06965, section 2.3)."""
    return m


def one_f_one_b_in_flight(p: int, m: int, rank: int) -> int:
    """Return min(m, p - rank): micro-batches between F and B on `rank` (arXiv:2006.09503, section 2.2)."""
    return min(m, p - rank)


def afp_in_flight(p: int, m: int, rank: int, advance: int) -> int:
    """Return `one_f_one_b_in_flight` with advance forward propagation: `advance` more but at most m; 1 on the last."""
    return min(m, p - rank + advance) if rank < p - 1 else 1


def interleaved_peak_factor(p: int, v: int) -> float:
    """Return 1 + (p - 1) / (p v), the activations on rank 0 relative to 1F1B, for m above p and a multiple of p.

    Source: Reducing Activation Recomputation in Large Transformer Models, arXiv:2205.05198, section 4.2.3.
    """
    return 1 + (p - 1) / (p * v)


def looped_bfs_makespan_s(p: int, m: int, v: int, t_f: float, t_b: float, transfer_s: float = 0.0) -> float:
    """Return the makespan of looped BFS (arXiv:2211.05953).

    For F, and likewise for B, in chunk times t, it is (v - 1) max(m t, p (t + c)) + m t + (p - 1)(t + c). A chunk
    begins when the chunk before has run all micro-batches, and the first of them has passed all ranks. With c = 0 and m
    of at least p this is (m + (p - 1) / v)(t_f + t_b).
    """
    c = transfer_s if p > 1 else 0.0
    return sum((v - 1) * max(m * t, p * (t + c)) + m * t + (p - 1) * (t + c) for t in (t_f / v, t_b / v))


def looped_bfs_in_flight(m: int, v: int) -> int:
    """Return v m: on every rank all micro-batches of all chunks wait for their B (arXiv:2211.05953)."""
    return v * m


def recompute_extra_s(m: int, t_f: float) -> float:
    """Return m t_f, the time that an R before every backward adds to a schedule, for links that take no time.

    It is the R work of one rank: while the pipeline drains, R runs while the gradient is on its way. This holds for
    naive, gpipe, 1f1b, 1f1b_afp, and interleaved with m a multiple of p. For naive and gpipe it holds for all links.
    """
    return m * t_f


def one_f_one_b_recompute_makespan_s(p: int, m: int, t_f: float, t_b: float, transfer_s: float = 0.0) -> float:
    """Return the makespan of 1F1B with an R before every backward.

    The makespan of 1F1B plus m t_f, but in each of the m - 1 - ceil((m - 1) / p) round trips of its steady phase an R
    runs while the message is on its way, and hides min(t_f, 2 c).
    """
    round_trips = m - 1 - -(-(m - 1) // p)
    plain_s = one_f_one_b_makespan_s(p, m, t_f, t_b, transfer_s)
    return plain_s + recompute_extra_s(m, t_f) - round_trips * min(t_f, 2 * transfer_s)


def late_recompute_backward_s(t_f: float, t_b: float) -> float:
    """Return t_f + t_b, the time of a backward after a late R of t_f, to use as t_b in the other forms.

    No op of a rank comes between a late R and its backward, and both wait for the gradient. With transfer_s = 0, 1F1B
    takes (m + p - 1)(2 t_f + t_b), and by p - 1 times t_f longer than with an early R.
    """
    return t_f + t_b


def recompute_activations(in_flight: int, saved: float, stage_input: float) -> float:
    """Return the peak activation memory of a rank with R: all of one micro-batch, and the inputs of the others."""
    return (in_flight - 1) * stage_input + saved


def data_parallel_makespan_s(p: int, m: int, t_f: float, t_b: float) -> float:
    """Return ceil(m / p)(t_f + t_b), for links that take no time; ranks wait for each other only at the Reduce."""
    return -(-m // p) * (t_f + t_b)


# Both directions, or waves.


def dualpipe_idle_s(p: int, t_f: float, t_w: float, overlap: float = 0.0) -> float:
    """Return the idle time of the rank that is idle longest in DualPipe (DeepSeek-V3, arXiv:2412.19437, Table 2).

    It is (p/2 - 1)(t_fb + t_b - 3 t_w), for links that take no time and t_f = t_i = t_b - t_w. A pair takes
    t_fb = t_b + (1 - overlap) t_f. W longer than F fills no more of a wait than F would: it counts as t_f here.

    Args:
        p: Number of ranks. For DualPipeV, the number of stages, which is twice the number of ranks.
        t_f: Seconds of F of one stage, and of I.
        t_w: Seconds of W of one stage.
        overlap: Hidden share of the shorter op of a pair, from 0 to 1.
    """
    t_w = min(t_w, t_f)
    t_b = t_f + t_w
    t_fb = t_b + (1 - overlap) * t_f
    return (p / 2 - 1) * (t_fb + t_b - 3 * t_w)


def dualpipe_makespan_s(p: int, m: int, t_f: float, t_w: float, overlap: float = 0.0) -> float:
    """Return m (2 t_f + t_w) - (m - p - 1) overlap t_f + `dualpipe_idle_s`; for DualPipeV, pass twice its m.

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
    _require(m % p == 0, f"hanayo: got m = {m}, expected a multiple of {p}")
    return m * (t_f + t_b) + (p - 1) / waves * _turns_s(m // p, t_f, t_b)


def chimera_makespan_s(p: int, m: int, t_f: float, t_b: float) -> float:
    """Return m (t_f + t_b) + (p - 2)(a + m / p (b - a)), a the shorter and b the longer of t_f and t_b.

    The times are of one stage; a rank holds two. With one unit, m = p, the bubble is (p - 2) b, as the paper counts it
    (arXiv:2107.06925, section 3); with more units and t_f = t_b too.
    """
    return m * (t_f + t_b) + (p - 2) * _turns_s(m // p, t_f, t_b)


def chimera_bubble_fraction(p: int, m: int) -> float:
    """Return (p - 2) / (2 m + p - 2), for F and B of equal length (arXiv:2107.06925, table 2)."""
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
    """Return the time of one step of filling and draining: the shorter of F and B, plus their difference per round."""
    return min(t_f, t_b) + rounds * abs(t_b - t_f)


# The backward split into I and W: the zero-bubble family and the V schedules.


def zb_h1_longest_span_s(p: int, m: int, t_f: float, t_i: float, t_w: float) -> float:
    """Return m (t_f + t_i + t_w) + (p - 1)(t_f + t_i - t_w), for links that take no time.

    It is the makespan too where t_i is at least t_w. Source: arXiv:2401.10241, section 2.3.

    Raises:
        SimulationError: m is below p or t_f below t_w, where the form does not hold.
    """
    _require(m >= p and t_f >= t_w, f"zb_h1: got m = {m}, t_f = {t_f}, t_w = {t_w}, expected m >= {p}, t_f >= t_w")
    return m * (t_f + t_i + t_w) + (p - 1) * (t_f + t_i - t_w)


def zb_h2_longest_span_s(p: int, m: int, t_f: float, t_i: float, t_w: float) -> float:
    """Return m (t_f + t_i + t_w) + (p - 1)(t_f + t_i - 2 t_w), for links that take no time (the same section).

    Raises:
        SimulationError: m is below 2 p - 1, t_f below t_w or t_f + t_i below 2 t_w, where the form does not hold.
    """
    _require(
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
    _require(
        m % p == 0 and t_f >= t_w,
        f"interleaved_zb: got m = {m}, t_f = {t_f}, t_w = {t_w}, expected m a multiple of {p}, t_f >= t_w",
    )
    return m * (t_f + t_i + t_w) + (p - 1) * (t_f + t_i - t_w) / v


def zb_h1_activations(p: int, rank: int, saved: float, saved_for_weight: float) -> float:
    """Return the peak activation memory of rank k, (p - k) M_B + k M_W, for m of at least p.

    M_B is the memory of a micro-batch from F to I (`saved`), M_W from I to W (`saved_for_weight`).

    Source: arXiv:2401.10241, section 2.3, where ranks count from 1.
    """
    return (p - rank) * saved + rank * saved_for_weight


def zb_h2_activations(p: int, rank: int, saved: float, saved_for_weight: float) -> float:
    """Return (2 p - 1 - 2 k) M_B + 2 k M_W on rank k, m at least 2 p - 1 (the same section)."""
    return (2 * p - 1 - 2 * rank) * saved + 2 * rank * saved_for_weight


def zb_auto_longest_span_s(p: int, m: int, limit: int) -> float:
    """Return 3 m + max(0, 2 p - 1 - limit): F, I and W of 1 s, m at least 2 p - 1, limit from p micro-batches up.

    Each further micro-batch of memory shortens ZB-H1's bubble by a second, until none is left at ZB-H2's memory. No
    paper states it; it joins the two ends that arXiv:2401.10241, section 2.3 gives.

    Raises:
        SimulationError: m is below 2 p - 1, or the limit below p.
    """
    _require(
        m >= 2 * p - 1 and limit >= p,
        f"zb_auto: got m = {m}, limit = {limit}, expected m >= {2 * p - 1}, limit >= {p}",
    )
    return 3 * m + max(0, 2 * p - 1 - limit)


def zbv_makespan_s(p: int, m: int, t: float) -> float:
    """Return (6 m + p - 1) t, where F, I and W of a chunk all take t (ZBV, arXiv:2401.10241, section 6).

    This holds for m of at least 3 p / 2. For a smaller m, 3 (p - 1) - 2 (m - 1) chunk times are added if above 0.
    """
    return (6 * m + p - 1 + max(0, 3 * (p - 1) - 2 * (m - 1))) * t


def zbv_in_flight(p: int, m: int) -> int:
    """Return 2 min(m, p), the most chunks that a rank holds from F to W: as much as 1F1B's first rank."""
    return 2 * min(m, p)


def v_half_makespan_s(p: int, m: int, t: float) -> float:
    """Return (6 m + 3 p - 5) t, or 3 p - 4 with p odd, where F, I and W of a chunk all take t.

    It holds for the builder's lists; the authors (arXiv:2405.15362) count a bubble of about p / (2 m) of the work.

    Raises:
        SimulationError: m is below 2 p, where the form does not hold.
    """
    _require(m >= 2 * p, f"v_half: got m = {m}, expected m >= {2 * p}")
    return (6 * m + max(0, 3 * p - 5 + p % 2)) * t


def v_min_makespan_s(p: int, m: int, t: float) -> float:
    """Return (6 m + 4 p - 7) t, or 4 p - 4 with p one above a multiple of 3, where F, I and W of a chunk all take t.

    It holds for the builder's lists; the authors (arXiv:2405.15362) count a bubble of about 2 p / (3 m) of the work.

    Raises:
        SimulationError: m is below 2 p, where the form does not hold.
    """
    _require(m >= 2 * p, f"v_min: got m = {m}, expected m >= {2 * p}")
    return (6 * m + 4 * p - (4 if p % 3 == 1 else 7)) * t


def v_half_in_flight(p: int, m: int) -> int:
    """Return 2 min(m, floor((p + 2) / 2)), the most chunks that a rank holds, from F to W (arXiv:2405.15362)."""
    return 2 * min(m, (p + 2) // 2)


def v_min_in_flight(p: int, m: int) -> int:
    """Return 2 min(m, floor((p + 4) / 3)), the most chunks that a rank holds, from F to W (arXiv:2405.15362)."""
    return 2 * min(m, (p + 4) // 3)


# Runs without a flush.


def unflushed_makespan_s(p: int, m: int, t_f: float, t_b: float) -> float:
    """Return (m + p - 1)(t_f + t_b): PipeDream's order fills and drains once (arXiv:1806.03377, section 3.2)."""
    return (m + p - 1) * (t_f + t_b)


def wpipe_makespan_s(p: int, m: int, t_f: float, t_b: float) -> float:
    """Return (2 m + p - 1)(t_f + t_b), t_f and t_b of one of a rank's two stages (WPipe, ICLR 2022, Figure 5)."""
    return (2 * m + p - 1) * (t_f + t_b)


def hybrid_speedup(share: float, pipelined_speedup: float) -> float:
    """Return the limit 1 / (share / S + 1 - share) of a long run, `share` of it pipelined (arXiv:1912.12675, 4.2).

    Args:
        share: Micro-batches that are pipelined, over all.
        pipelined_speedup: S, of pipelined over non-pipelined training.

    Raises:
        SimulationError: A share outside of 0 to 1, or no speed-up above 0.
    """
    _require(0 <= share <= 1, f"hybrid: got share {share}, expected 0 to 1")
    _require(pipelined_speedup > 0, f"hybrid: got speed-up {pipelined_speedup}, expected more than 0")
    return 1 / (share / pipelined_speedup + 1 - share)


def staleness_degree(num_register_pairs: int, stage: int) -> int:
    """Return the staleness 2 (K - j + 1) of forward stage j in 1 .. K + 1 (arXiv:1912.12675, section 4.1).

    Args:
        num_register_pairs: K, pairs of pipeline registers.
        stage: j.
    """
    return 2 * (num_register_pairs - stage + 1)


def weight_stash_share(num_active: int, weight_bytes: float, activation_bytes: float) -> float:
    """Return n W / (A + W), the relative memory overhead of weight stashing (arXiv:1912.12675, Appendix D).

    Args:
        num_active: n, the mini-batches in the pipeline, each with a copy of all weights. The paper counts one per
            forward and backward stage; a schedule that holds a version per stage and micro-batch needs fewer.
        weight_bytes: W, of the whole model.
        activation_bytes: A, of a whole mini-batch.
    """
    return num_active * weight_bytes / (activation_bytes + weight_bytes)


def wpipe_table(scheme: str, n: int) -> tuple[float, float]:
    """Return (weight buffers in S_m, activations in S_a) with M = N = n (WPipe, ICLR 2022, Table 1).

    S_m and S_a are the weights and one micro-batch's activations of the whole model. If a group of stages must keep
    old versions, each version that it keeps is a buffer, the newest included; otherwise the group has none.

    Raises:
        SimulationError: The table does not have this scheme.
    """
    table = {
        "gpipe": (0.0, float(n)),
        "pipedream": ((n + 1) / 2, (2 * n - n + 1) / 2),
        "pipedream_2bw": (2.0, (2 * n - n + 1) / 2),
        "wpipe": (1.0, (4 * n - n + 1) / 4),
    }
    _require(scheme in table, f"table: got {scheme}, expected one of {', '.join(table)}")
    return table[scheme]


def _require(holds: bool, fault: str) -> None:
    """Refuse arguments for which a form was not derived.

    Raises:
        SimulationError: `holds` is False; `fault` is the message.
    """
    if not holds:
        raise SimulationError(fault)
