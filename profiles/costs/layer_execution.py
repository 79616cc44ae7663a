"""How a layer is computed, as far as seconds and bytes depend on it and a trainer has to be told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerExecution:
    """How layers are computed.

    Attributes:
        tensor_parallel: GPUs that share every layer, and are one device of a pipeline.
        sequence_parallel: They also share, by tokens, what is between the products, and what is sent.
        selective_recompute: Attention is computed again for its backward, and keeps nothing.
        flash_attention: Attention is one operation that never has its whole matrix in memory, as FlashAttention does.
    """

    tensor_parallel: int = 1
    sequence_parallel: bool = False
    selective_recompute: bool = False
    flash_attention: bool = False
