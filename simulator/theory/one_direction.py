"""Schedules that pass the stages in one direction with whole backwards, data parallelism, and recompute."""

from __future__ import annotations

from pipesched.simulator.theory.domain import require


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

    GPipe's makespan, and every advance + 2 micro-batches the rest of a round trip 2 c that `advance` pairs of F and B
    have not hidden: (m + 1)(t_f + t_b) + 2 c + floor((m - 1) / (advance + 2)) max(0, 2 c - advance (t_f + t_b)).
    """
    unhidden_s = max(0.0, 2 * transfer_s - advance * (t_f + t_b))
    return gpipe_makespan_s(2, m, t_f, t_b, transfer_s) + (m - 1) // (advance + 2) * unhidden_s


def interleaved_bubble_overhead(p: int, m: int, v: int) -> float:
    """Return (p - 1) / (v m), of links that take no time (Megatron-LM, arXiv:2104.04473, section 2.2.2).

    Raises:
        SimulationError: m is not a multiple of p, where the form does not hold.
    """
    require(m % p == 0, f"interleaved: got {m} micro-batches on {p} ranks, expected a multiple of {p}")
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
    """Return the same with advance forward propagation: `advance` more on all ranks but the last, at most m."""
    return min(m, p - rank + advance) if rank < p - 1 else 1


def interleaved_peak_factor(p: int, v: int) -> float:
    """Return 1 + (p - 1) / (p v): activations on rank 0 over 1F1B's, m a multiple of p and above p.

    Source: Reducing Activation Recomputation in Large Transformer Models, arXiv:2205.05198, section 4.2.3.
    """
    return 1 + (p - 1) / (p * v)


def looped_bfs_makespan_s(p: int, m: int, v: int, t_f: float, t_b: float, transfer_s: float = 0.0) -> float:
    """Return the makespan of looped BFS (arXiv:2211.05953).

    For F, and likewise for B, in chunk times t: (v - 1) max(m t, p (t + c)) + m t + (p - 1)(t + c), as a chunk begins
    when the one before is through with all micro-batches, and when the first of them has come round. With c = 0 and m
    of at least p this is (m + (p - 1) / v)(t_f + t_b).
    """
    c = transfer_s if p > 1 else 0.0
    return sum((v - 1) * max(m * t, p * (t + c)) + m * t + (p - 1) * (t + c) for t in (t_f / v, t_b / v))


def looped_bfs_in_flight(m: int, v: int) -> int:
    """Return v m: on every rank all micro-batches of all chunks wait for their B (arXiv:2211.05953)."""
    return v * m


def recompute_extra_s(m: int, t_f: float) -> float:
    """Return m t_f: by how much an R before every backward prolongs a schedule, where links take no time.

    The work of one rank: while the pipeline drains, R runs while the gradient is on its way. So it is for naive, gpipe,
    1f1b, 1f1b_afp, and interleaved with m a multiple of p; for naive and gpipe whatever the links take.
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


def recompute_activations(in_flight: int, saved: float, stage_input: float) -> float:
    """Return the peak activation memory of a rank with R: all of one micro-batch, and the inputs of the others."""
    return (in_flight - 1) * stage_input + saved


def data_parallel_makespan_s(p: int, m: int, t_f: float, t_b: float) -> float:
    """Return ceil(m / p)(t_f + t_b), of links that take no time: no rank waits for another but at the Reduce."""
    return -(-m // p) * (t_f + t_b)
