"""Runs without a flush: m counts the micro-batches of the whole run."""

from __future__ import annotations

from pipesched.simulator.theory.domain import require


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
    require(0 <= share <= 1, f"hybrid: got share {share}, expected 0 to 1")
    require(pipelined_speedup > 0, f"hybrid: got speed-up {pipelined_speedup}, expected more than 0")
    return 1 / (share / pipelined_speedup + 1 - share)


def staleness_degree(num_register_pairs: int, stage: int) -> int:
    """Return 2 (K - j + 1), forward stage j of K + 1, K pairs of pipeline registers (arXiv:1912.12675, section 4.1)."""
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
    require(scheme in table, f"table: got {scheme}, expected one of {', '.join(table)}")
    return table[scheme]
