"""The split of every layer over the GPUs of a stage, and the settings of its computation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pipesched.profiles import ProfileError
from pipesched.profiles.inside_stage.model_shape import ModelShape

MOST_ZERO = 3
"""Highest stage of ZeRO."""

Recomputation: TypeAlias = Literal["none", "selective", "alternate", "full"]
"""Recomputation in the backward: none; attention alone, of trainers without FlashAttention; every second product and
all kernels that only move bytes (torchtitan's selective checkpoints); every block."""
AttentionKernel: TypeAlias = Literal["unfused", "flash_1", "flash_2", "fused"]
"""Kernel of attention: a matrix of scores in memory; FlashAttention 1 or 2; the newest fused kernel of the GPU."""
MatmulPrecision: TypeAlias = Literal["float32", "bfloat16", "float16", "float8", "float4"]
"""Number type of matrix products; float8 and float4 keep weights and activations between layers in bfloat16."""
LINEAR_BYTES = {"float8": 1.0, "float4": 0.5625}
"""Bytes of an element of a linear layer's inputs, where they are fewer than between layers; float4 with its scales."""


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
        attention: Kernel of attention.
        has_fused_gradients: Products of weight gradients add to the float32 gradients. Each leaves a placeholder of the
            size of the weights to autograd, one for all equal matrices (Transformer Engine).
        has_fused_pointwise: A gated activation is one kernel, not one per operation of PyTorch, and the loss works in
            place.
        has_fused_loss: The loss reads the logits once and keeps no float32 copy.
        keeps_gathered: Sequence parallelism keeps the gathered inputs of products, and gathers none in the backward.
        has_graphs: Kernels are launched as CUDA graphs or by a compiler, and never wait for the host.
        hides_gradients: The sum of gradients runs beside the last backward.
        hides_weights: The gather of weights runs beside the first forward; with ZeRO-3, beside the kernels of each
            pass.
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
    attention: AttentionKernel = "fused"
    has_fused_gradients: bool = True
    has_fused_pointwise: bool = True
    has_fused_loss: bool = False
    keeps_gathered: bool = False
    has_graphs: bool = False
    hides_gradients: bool = False
    hides_weights: bool = False
    hides_tensor: bool = False

    def require_possible(self, shape: ModelShape) -> None:
        """Refuse a split that does not divide a model.

        Raises:
            ProfileError: A number is below 1, or does not divide what it splits.
        """
        for name in ("tensor", "context", "expert", "expert_tensor", "data"):
            if getattr(self, name) < 1:
                raise ProfileError(f"sharding: {name}: got {getattr(self, name)}, expected at least 1; raise it")
        if not 0 <= self.zero <= MOST_ZERO:
            raise ProfileError(f"sharding: zero: got {self.zero}, expected 0 to {MOST_ZERO}; try zero=1")
        for name, whole, size in self._divided(shape):
            count = getattr(self, name)
            if size % count:
                raise ProfileError(
                    f"sharding of {shape.name}: {name}: got {count}, expected a divisor of {whole}={size}; "
                    f"try {name}={math.gcd(size, count)}"
                )
        if self.expert_tensor not in (1, self.tensor):
            raise ProfileError(
                f"sharding: expert_tensor: got {self.expert_tensor}, expected 1 or tensor={self.tensor}; try 1"
            )
        if self.num_gpus % (self.expert * self.expert_tensor):
            raise ProfileError(
                f"sharding: expert: got {self.expert} x expert_tensor={self.expert_tensor}, expected a divisor of the "
                f"{self.num_gpus} GPUs of a stage; lower it, or raise data"
            )

    def _divided(self, shape: ModelShape) -> Iterator[tuple[str, str, int]]:
        """Yield each field that splits a number of the model, the number's name, and the number."""
        yield "tensor", "heads", shape.heads
        yield "tensor", "ffn", shape.ffn
        yield "context", "sequence", shape.sequence
        if shape.latent is None and shape.kv_heads > self.tensor:  # fewer heads are copied
            yield "tensor", "kv_heads", shape.kv_heads
        if self.has_sequence:
            yield "tensor", "tokens of a sample on one GPU", shape.sequence // self.context
        if shape.experts is not None:
            yield "expert", "experts", shape.experts.count
            yield "expert_tensor", "expert ffn", shape.experts.ffn

    @property
    def num_gpus(self) -> int:
        """The number of GPUs of a stage."""
        return self.tensor * self.context * self.data
