"""The split of every layer over the GPUs of a stage, and the settings of its computation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Recomputation: TypeAlias = Literal["none", "selective", "full"]
"""Recomputation in the backward: none; attention alone, of trainers without FlashAttention; every block."""
MatmulPrecision: TypeAlias = Literal["float32", "bfloat16", "float16", "float8"]
"""Number type of matrix products; float8 keeps weights and activations between layers in bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSharding:
    """The split of every layer over the GPUs of a stage.

    A stage has tensor x context x data GPUs. Expert parallelism splits the experts over GPUs of the context and data
    groups.

    Attributes:
        tensor: GPUs that share every matrix (Megatron-LM's tensor parallelism).
        has_sequence: These GPUs also share the activations between the matrices, by tokens.
        context: GPUs that share the tokens of a sample.
        expert: GPUs over which the experts of a block are split.
        expert_tensor: GPUs that share the matrices of one expert.
        data: Copies of the stage with other samples.
        zero: Training states split over the data and context groups: 0 none, 1 optimizer states, 2 gradients too,
            3 weights too (arXiv:1910.02054).
        precision: Number type of the matrix products.
        gradient_bytes: Bytes of an element of the accumulated gradients.
        recompute: Recomputation in the backward.
        has_flash_attention: Attention is one kernel that never has its whole matrix in memory.
        has_fused_gradients: Products of weight gradients add to the float32 gradients. Each leaves a placeholder of the
            size of the weights to autograd, one for all equal matrices (Transformer Engine).
        has_fused_loss: The loss reads the logits once and keeps no float32 copy.
        hides_gradients: The sum of gradients runs beside the last backward.
        hides_weights: The gather of weights runs beside the first forward, or of ZeRO-3 beside the layer before.
        hides_tensor: Collectives of the tensor group run beside the matrix products.
    """

    tensor: int = 1
    has_sequence: bool = False
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    data: int = 1
    zero: int = 0
    precision: MatmulPrecision = "bfloat16"
    gradient_bytes: int = 4
    recompute: Recomputation = "none"
    has_flash_attention: bool = True
    has_fused_gradients: bool = True
    has_fused_loss: bool = False
    hides_gradients: bool = False
    hides_weights: bool = False
    hides_tensor: bool = False

    @property
    def num_gpus(self) -> int:
        """The number of GPUs of a stage."""
        return self.tensor * self.context * self.data
