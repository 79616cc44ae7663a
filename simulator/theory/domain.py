"""The domain of the closed forms: the meaning of their letters; arguments outside of a derivation are refused.

Equal stages; p ranks, m micro-batches, v chunks per rank; t_f and t_b are the seconds of F and B of the whole share of
a rank (with v chunks, a v-th for each), t_i and t_w the seconds of I and W; transfer_s, in the formulas c, is the
latency of one message. Makespans leave out the optimizer's step. The longest span is a rank's, from its first F to its
last W.
"""

from __future__ import annotations

from pipesched.simulator import SimulationError


def require(holds: bool, fault: str) -> None:
    """Refuse arguments for which a form was not derived.

    Raises:
        SimulationError: With `fault`, where it does not hold.
    """
    if not holds:
        raise SimulationError(fault)
