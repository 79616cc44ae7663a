"""The operators of a layer on one GPU: kernels with their shapes and bytes, and collectives with their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

OperatorKind: TypeAlias = Literal[
    "matmul", "group_matmul", "attention", "attention_backward", "memory", "permute", "cross_entropy"
]
"""Kinds of kernels; each kind has one curve of efficiency."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One kernel on one GPU.

    Attributes:
        name: Name of the kernel in its layer, as ``qkv``.
        kind: Kind of the kernel.
        flops: Floating-point operations of products of matrices, two per multiplication. Causal attention counts half
            of the square.
        num_bytes: Bytes that the kernel reads from the GPU's memory and writes there.
        saved_bytes: Bytes that a forward kernel keeps for the backward, each tensor counted at one kernel.
        batch: Products of equal shape: experts on the GPU for ``group_matmul``, samples for attention, otherwise 1.
        rows: m of a product; tokens of a sequence for attention.
        columns: n of a product; heads on the GPU for attention.
        inner: k of a product; width of a query or key head for attention.
        is_linear: Product of a linear layer that float8 training computes in float8.
    """

    name: str
    kind: OperatorKind
    flops: int
    num_bytes: int
    saved_bytes: int = 0
    batch: int = 1
    rows: int = 0
    columns: int = 0
    inner: int = 0
    is_linear: bool = False


CollectiveKind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_receive"]
GroupName: TypeAlias = Literal["tensor", "context", "expert", "data", "expert_data"]
"""Groups of GPUs that exchange data inside a stage."""


@dataclass(frozen=True, slots=True)
class Collective:
    """An exchange among GPUs of one stage.

    Attributes:
        kind: Kind of the exchange.
        num_bytes: Bytes of the whole tensor: of the result of an all-gather, of the input of a reduce-scatter, of the
            tensor of an all-reduce; of an all-to-all and of a send, the bytes that one GPU sends, to itself included.
        group: Group of the exchanging GPUs.
        is_hidden: The trainer runs the exchange beside kernels of the same pass.
        copies: Copies of a token among the bytes of an all-to-all, of which each node and each GPU gets one.
    """

    kind: CollectiveKind
    num_bytes: int
    group: GroupName
    is_hidden: bool = False
    copies: int = 1
