"""Exchanges of sharded weights around the layers of a stage (ZeRO-3, FSDP): by how much they lengthen its passes.

Weights are gathered one layer ahead, and gradients are summed one layer behind, as PyTorch's FSDP2 does; G gathers, S
sums:

    forward    G0 F0 F1 F2           backward    G2 B2 B1 B0 S0
    beside        G1 G2              beside         G1 G0 S1
                                                       S2

So the first gather of a pass has no work beside it, and the last sum has none. Another exchange lengthens the pass by
the time that it takes beyond the work beside it, or at least slows this work. The exchanges beside one layer share a
link, and take turns. The last layer of the model stays whole between its forward and its backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipesched.schedules.common import Bytes, Seconds


@dataclass(frozen=True, slots=True)
class ShardedWeights:
    """The exchanges of a layer whose weights and gradients are shared by its copies.

    Attributes:
        gather_s: Seconds of a gather of the weights.
        sum_s: Seconds of the sum of the gradients, each copy with its share.
        gathered_bytes: Bytes of the gathered weights.
        summed_bytes: Bytes of the gradients before they are summed.
    """

    gather_s: Seconds
    sum_s: Seconds
    gathered_bytes: Bytes
    summed_bytes: Bytes


_SLOWDOWN = 0.189
"""Increase of the seconds of kernels by exchanges beside them, which take multiprocessors and bandwidth: the mean over
A100, H100, MI210 and MI250 (arXiv:2507.03114)."""
NO_EXCHANGES = ShardedWeights(0.0, 0.0, 0, 0)
"""The exchanges of a layer whose weights are whole: none."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Whether a trainer exchanges weights beside computation.

    Attributes:
        gathers: It gathers the weights of a layer beside the layer before.
        sums: It sums the gradients of a layer beside the layer behind it.
    """

    gathers: bool
    sums: bool

    def shown_s(self, works_s: Sequence[float], gathers_s: Sequence[float], sums_s: Sequence[float] = ()) -> float:
        """Return the seconds by which exchanges lengthen a pass.

        Args:
            works_s: Seconds of the computation of each layer, in the order of the pass.
            gathers_s: Seconds of each gather, or none for a pass that needs no weights.
            sums_s: Seconds of each sum, or none for a pass without gradients of weights.
        """
        ahead = [*gathers_s[1:], 0.0] if self.gathers and gathers_s else [0.0] * len(works_s)
        behind = [0.0, *sums_s[:-1]] if self.sums and sums_s else [0.0] * len(works_s)
        shown_s = sum(gathers_s[:1] if self.gathers else gathers_s) + sum(sums_s[-1:] if self.sums else sums_s)
        exchanges_s = map(sum, zip(ahead, behind, strict=True))
        return shown_s + sum(
            max(exchange_s - work_s, least_delay_s(exchange_s))
            for work_s, exchange_s in zip(works_s, exchanges_s, strict=True)
        )


def least_delay_s(exchange_s: float) -> float:
    """Return the least seconds by which an exchange delays the work beside it."""
    return exchange_s * _SLOWDOWN / (1 + _SLOWDOWN)
