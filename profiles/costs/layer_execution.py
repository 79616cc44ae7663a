"""The execution of a layer: options of a trainer that affect seconds and bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerExecution:
    """How layers are computed.

    Attributes:
        tensor_parallel: GPUs that share every layer, and are one device of a pipeline.
        sequence_parallel: These GPUs also split the activations between the matrix products, and the messages, by
            tokens.
        selective_recompute: Attention is recomputed in the backward, and keeps nothing.
        flash_attention: Attention is one operation that never has its whole matrix in memory, as in FlashAttention.
    """

    tensor_parallel: int = 1
    sequence_parallel: bool = False
    selective_recompute: bool = False
    flash_attention: bool = False
