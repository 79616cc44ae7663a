"""The shape of a transformer: all numbers that determine its operators, parameters and activations.

A shape counts the floating-point operations of a training step. `flops_per_token` follows PaLM (arXiv:2204.02311,
appendix B), which defines the model FLOPs utilization (MFU):

    6 x weights of matrix products that a token visits + 6 x layers x heads x (query size + value size) x sequence

Each weight takes two operations in the forward pass and four in the backward pass. The head counts, the lookup of the
embedding does not. Recomputation does not count. The square of attention counts in full, although causal attention
needs half of it. Trainers differ in this term:

    full square    PaLM, nanotron, llm-foundry, and older releases of Megatron-LM and Megatron-DeepSpeed
    half square    recent Megatron-LM (``num_floating_point_operations``), and Megatron-Bridge

Megatron-DeepSpeed of 2022 also counts the recomputed forward pass of the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipesched.profiles.costs import SampleWork


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
        has_router_bias: The router adds a number to the score of each expert.
        has_shared_gate: A gate scales the output of the shared experts.
    """

    count: int
    topk: int
    ffn: int
    shared_ffn: int = 0
    first_dense: int = 0
    every: int = 1
    has_router_bias: bool = False
    has_shared_gate: bool = False


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
        head_size: Width of a head; of its query and key in latent attention.
        vocab: Size of the vocabulary.
        sequence: Tokens of a sample.
        is_gated: The feed-forward part has a gate (SwiGLU): two products up, one down.
        is_tied: The embedding and the head share their weights.
        has_bias: Linear layers in blocks have a bias.
        has_query_bias: The layers of queries, keys and values have a bias; implied by `has_bias`.
        has_head_norms: A norm follows the queries and the keys of each head.
        has_dropout: Dropout follows attention and feed-forward part, and keeps masks.
        has_positions: The embedding has a learned row for each position; otherwise positions are rotary, or ALiBi.
        has_embedding_norm: A norm follows the embedding.
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
    has_query_bias: bool = False
    has_head_norms: bool = False
    has_dropout: bool = False
    has_positions: bool = False
    has_embedding_norm: bool = False
    has_layer_norm: bool = False
    experts: Experts | None = None
    latent: LatentAttention | None = None
    predicted_tokens: int = 0

    def has_experts(self, block: int) -> bool:
        """Return whether block `block` has experts."""
        if self.experts is None or block < self.experts.first_dense:
            return False
        return (block - self.experts.first_dense) % self.experts.every == self.experts.every - 1

    @property
    def value_size(self) -> int:
        """The width of a head's value."""
        return self.head_size if self.latent is None else self.latent.value_size

    @property
    def attention_weights(self) -> int:
        """The weights of the matrix products of a block's attention, without scores."""
        output = self.heads * self.value_size * self.hidden
        latent = self.latent
        if latent is None:
            return (self.heads + 2 * self.kv_heads) * self.head_size * self.hidden + output
        queries = self.heads * (latent.nope_size + latent.rope_size)
        rank = latent.query_rank
        query_weights = self.hidden * queries if rank is None else (self.hidden + queries) * rank
        compressed = self.hidden * (latent.key_value_rank + latent.rope_size)
        expanded = latent.key_value_rank * self.heads * (latent.nope_size + latent.value_size)
        return query_weights + compressed + expanded + output

    def norm_parameters(self, width: int) -> int:
        """Return the parameters of a norm of `width` numbers."""
        return width * (2 if self.has_layer_norm else 1)

    def feed_forward_weights(self, ffn: int) -> int:
        """Return the weights of a feed-forward part with inner width `ffn`."""
        return (3 if self.is_gated else 2) * self.hidden * ffn

    @property
    def weights_per_token(self) -> int:
        """The weights of all matrix products that a token visits: blocks, router, prediction blocks, and each head."""
        blocks = self.layers + self.predicted_tokens
        weights = blocks * self.attention_weights
        for block in range(blocks):
            experts = self.experts if self.has_experts(block) else None
            if experts is None:
                weights += self.feed_forward_weights(self.ffn)
            else:
                weights += self.hidden * experts.count
                weights += self.feed_forward_weights(experts.topk * experts.ffn + experts.shared_ffn)
        joined = 2 * self.hidden**2 * self.predicted_tokens
        return weights + joined + (1 + self.predicted_tokens) * self.vocab * self.hidden

    def sample_work(self, peak_flops_per_s: float, *, halves_attention: bool = False) -> SampleWork:
        """Return the work of a sample in training, for a GPU with this peak of dense matrix products [FLOP/s].

        Args:
            peak_flops_per_s: The peak in the number type of training.
            halves_attention: Count half of the square of attention, as recent Megatron-LM and Megatron-Bridge do.
        """
        flops = self.flops_per_token(halves_attention=halves_attention) * self.sequence
        return SampleWork(tokens=self.sequence, flops=flops, peak_flops_per_s=peak_flops_per_s)

    def flops_per_token(self, *, halves_attention: bool = False) -> int:
        """Return the floating-point operations of forward and backward for a token, without recomputation.

        Args:
            halves_attention: Count half of the square of attention, as recent Megatron-LM does; PaLM, nanotron and
                llm-foundry count the whole square.
        """
        blocks = self.layers + self.predicted_tokens
        attention = 6 * blocks * self.heads * (self.head_size + self.value_size) * self.sequence
        return 6 * self.weights_per_token + (attention // 2 if halves_attention else attention)
