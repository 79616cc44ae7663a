"""The shape of a transformer: all numbers that determine its operators, parameters and activations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture of experts that replaces the feed-forward part of some blocks.

    Attributes:
        count: Number of routed experts of a block.
        topk: Routed experts that a token visits.
        ffn: Inner width of one expert.
        shared_ffn: Inner width of all shared experts together, which every token visits.
        first_dense: Number of first blocks without experts.
        every: Of the later blocks, one in `every` has experts.
    """

    count: int
    topk: int
    ffn: int
    shared_ffn: int = 0
    first_dense: int = 0
    every: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (MLA: arXiv:2405.04434, section 2.1).

    Attributes:
        query_rank: Width of the compressed queries, or None if queries are not compressed.
        key_value_rank: Width of the compressed keys and values.
        nope_size: Width of a head's query and key without rotary position.
        rope_size: Width of a head's query and key with rotary position.
        value_size: Width of a head's value.
    """

    query_rank: int | None
    key_value_rank: int
    nope_size: int
    rope_size: int
    value_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The shape of a transformer.

    Attributes:
        name: Name of the model.
        layers: Number of blocks, besides the embedding and the head.
        hidden: Width of the activations between blocks.
        ffn: Inner width of the dense feed-forward part.
        heads: Attention heads.
        kv_heads: Heads of keys and values; fewer than `heads` in grouped-query attention.
        head_size: Width of a head.
        vocab: Size of the vocabulary.
        sequence: Tokens of a sample.
        is_gated: The feed-forward part has a gate (SwiGLU): two products up, one down.
        is_tied: The embedding and the head share their weights.
        has_bias: Linear layers have a bias.
        has_dropout: Dropout follows attention and feed-forward part, and keeps masks.
        has_positions: The embedding of positions is learned; otherwise positions are rotary.
        has_layer_norm: Norms have a weight and a bias (LayerNorm); otherwise a weight alone (RMSNorm).
        experts: Mixture of experts, or None.
        latent: Latent attention, or None.
        predicted_tokens: Further multi-token prediction blocks behind the last block (MTP).
    """

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int
    sequence: int
    is_gated: bool = False
    is_tied: bool = False
    has_bias: bool = False
    has_dropout: bool = False
    has_positions: bool = False
    has_layer_norm: bool = False
    experts: Experts | None = None
    latent: LatentAttention | None = None
    predicted_tokens: int = 0

    def has_experts(self, block: int) -> bool:
        """Return whether block `block` has experts."""
        if self.experts is None or block < self.experts.first_dense:
            return False
        return (block - self.experts.first_dense) % self.experts.every == self.experts.every - 1
