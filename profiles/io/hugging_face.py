"""The shape of a transformer in the form of a Hugging Face ``config.json``; the model presets have the same form.

Each class below lists the fields of one family, and reads them as ``transformers`` does. A preset has two fields
more: `origin`, its public source, and `sequence`, the tokens of a training sample.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import AliasChoices, ConfigDict, Field

from pipesched.profiles import ProfileError
from pipesched.profiles.inside_stage import Experts, LatentAttention, ModelShape
from pipesched.profiles.io.validation import Record, parse_record
from pipesched.schedules.common import Text, guess, shown

_Layers = Annotated[int, Field(ge=1, le=10_000)]
_Size = Annotated[int, Field(ge=1, lt=2**31)]
_SizeOrZero = Annotated[int, Field(ge=0, lt=2**31)]
_Probability = Annotated[float, Field(ge=0, lt=1)]
_ADVICE = "compare it with profiles/data/models/llama3-8b.json"
_LONGEST_SEQUENCE = 8192
"""Tokens of a sample, at most, if the file names none: configurations state the longest context, not training's."""


class _Config(Record):
    """The fields of all families; fields that do not change a shape are ignored."""

    model_config: ClassVar[ConfigDict] = {"extra": "ignore"}

    vocab_size: _Size
    sequence: _Size | None = None
    origin: Text = ""

    def shape(self, name: str) -> ModelShape:
        """Return the shape, called `name`."""
        raise NotImplementedError

    @property
    def divisors(self) -> tuple[tuple[str, str], ...]:
        """The pairs of fields of which the first divides the second."""
        return ()

    def trained_sequence(self, longest: int) -> int:
        """Return the tokens of a sample, from the longest context of the model."""
        return min(longest, _LONGEST_SEQUENCE) if self.sequence is None else self.sequence


class _Llama(_Config):
    """Llama and models with its block: RMSNorm, rotary positions, a gated feed-forward part, no dropout."""

    model_type: Literal["llama", "mistral", "qwen2", "qwen3", "phi3", "gemma"]
    hidden_size: _Size
    intermediate_size: _Size
    num_hidden_layers: _Layers
    num_attention_heads: _Size
    num_key_value_heads: _Size | None = None
    head_dim: _Size | None = None
    max_position_embeddings: _Size
    tie_word_embeddings: bool | None = None
    sliding_window: _Size | None = None
    use_sliding_window: bool = True
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False

    @property
    def divisors(self) -> tuple[tuple[str, str], ...]:
        of_width = () if self.head_dim else (("num_attention_heads", "hidden_size"),)
        of_heads = (("num_key_value_heads", "num_attention_heads"),) if self.num_key_value_heads else ()
        return of_width + of_heads

    def shape(self, name: str) -> ModelShape:
        window = self.sliding_window if self.use_sliding_window else None
        longest = min(self.max_position_embeddings, window or self.max_position_embeddings)
        return ModelShape(
            name=name,
            layers=self.num_hidden_layers,
            hidden=self.hidden_size,
            ffn=self.intermediate_size,
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads or self.num_attention_heads,
            head_size=self.head_dim or self.hidden_size // self.num_attention_heads,
            vocab=self.vocab_size,
            sequence=self.trained_sequence(longest),
            is_gated=True,
            is_tied=self.model_type == "gemma" if self.tie_word_embeddings is None else self.tie_word_embeddings,
            has_query_bias=self.model_type.startswith("qwen2"),
            has_head_norms=self.model_type.startswith("qwen3"),
            experts=self.experts(),
        )

    def experts(self) -> Experts | None:
        """Return the mixture of experts, or None."""
        return None


class _Mixtral(_Llama):
    model_type: Literal["mixtral"]  # type: ignore[assignment]  # of another family
    num_local_experts: _Size
    num_experts_per_tok: _Size

    def experts(self) -> Experts:
        return Experts(count=self.num_local_experts, topk=self.num_experts_per_tok, ffn=self.intermediate_size)


class _QwenMoe(_Llama):
    model_type: Literal["qwen2_moe", "qwen3_moe"]  # type: ignore[assignment]  # of another family
    num_experts: _Size
    num_experts_per_tok: _Size
    moe_intermediate_size: _Size
    shared_expert_intermediate_size: _SizeOrZero = 0
    decoder_sparse_step: _Layers = 1
    mlp_only_layers: Annotated[tuple[_SizeOrZero, ...], Field(max_length=0)] = ()

    def experts(self) -> Experts:
        return Experts(
            count=self.num_experts,
            topk=self.num_experts_per_tok,
            ffn=self.moe_intermediate_size,
            shared_ffn=self.shared_expert_intermediate_size,
            every=self.decoder_sparse_step,
            has_shared_gate=self.shared_expert_intermediate_size > 0,
        )


class _DeepSeek(_Config):
    """DeepSeek-V2 and V3: latent attention, dense first blocks, shared experts, prediction of further tokens."""

    model_type: Literal["deepseek_v2", "deepseek_v3"]
    hidden_size: _Size
    intermediate_size: _Size
    moe_intermediate_size: _Size
    num_hidden_layers: _Layers
    num_attention_heads: _Size
    q_lora_rank: _Size | None
    kv_lora_rank: _Size
    qk_nope_head_dim: _Size
    qk_rope_head_dim: _Size
    v_head_dim: _Size
    n_routed_experts: _Size
    n_shared_experts: _SizeOrZero | None
    num_experts_per_tok: _Size
    first_k_dense_replace: _SizeOrZero
    moe_layer_freq: Literal[1] = 1
    topk_method: Text = ""
    num_nextn_predict_layers: Annotated[int, Field(ge=0, le=100)] = 0
    max_position_embeddings: _Size
    tie_word_embeddings: bool = False
    attention_bias: Literal[False] = False

    def shape(self, name: str) -> ModelShape:
        return ModelShape(
            name=name,
            layers=self.num_hidden_layers,
            hidden=self.hidden_size,
            ffn=self.intermediate_size,
            heads=self.num_attention_heads,
            kv_heads=self.num_attention_heads,
            head_size=self.qk_nope_head_dim + self.qk_rope_head_dim,
            vocab=self.vocab_size,
            sequence=self.trained_sequence(self.max_position_embeddings),
            is_gated=True,
            is_tied=self.tie_word_embeddings,
            experts=Experts(
                count=self.n_routed_experts,
                topk=self.num_experts_per_tok,
                ffn=self.moe_intermediate_size,
                shared_ffn=(self.n_shared_experts or 0) * self.moe_intermediate_size,
                first_dense=self.first_k_dense_replace,
                has_router_bias=self.topk_method == "noaux_tc",
            ),
            latent=LatentAttention(
                query_rank=self.q_lora_rank,
                key_value_rank=self.kv_lora_rank,
                nope_size=self.qk_nope_head_dim,
                rope_size=self.qk_rope_head_dim,
                value_size=self.v_head_dim,
            ),
            predicted_tokens=self.num_nextn_predict_layers,
        )


class _Gpt(_Config):
    """GPT-2, GPT-NeoX and BLOOM: LayerNorm, biases, a plain feed-forward part, keys and values for each head."""

    model_type: Literal["gpt2", "gpt_neox", "bloom"]
    hidden: Annotated[_Size, Field(validation_alias=AliasChoices("hidden_size", "n_embd", "n_embed"))]
    layers: Annotated[_Layers, Field(validation_alias=AliasChoices("num_hidden_layers", "n_layer"))]
    heads: Annotated[_Size, Field(validation_alias=AliasChoices("num_attention_heads", "n_head"))]
    ffn: Annotated[_Size | None, Field(validation_alias=AliasChoices("intermediate_size", "n_inner"))] = None
    longest: Annotated[
        _Size, Field(validation_alias=AliasChoices("max_position_embeddings", "n_positions", "seq_length"))
    ] = 2048
    dropout: Annotated[_Probability | None, Field(validation_alias=AliasChoices("hidden_dropout", "resid_pdrop"))] = (
        None
    )
    tie_word_embeddings: bool | None = None
    attention_bias: Literal[True] = True

    @property
    def divisors(self) -> tuple[tuple[str, str], ...]:
        return (("heads", "hidden"),)

    def shape(self, name: str) -> ModelShape:
        is_gpt2 = self.model_type == "gpt2"
        is_tied = self.tie_word_embeddings
        return ModelShape(
            name=name,
            layers=self.layers,
            hidden=self.hidden,
            ffn=self.ffn or 4 * self.hidden,
            heads=self.heads,
            kv_heads=self.heads,
            head_size=self.hidden // self.heads,
            vocab=self.vocab_size,
            sequence=self.trained_sequence(self.longest),
            is_tied=self.model_type != "gpt_neox" if is_tied is None else is_tied,
            has_bias=True,
            has_dropout=is_gpt2 if self.dropout is None else self.dropout > 0,
            has_positions=is_gpt2,
            has_embedding_norm=self.model_type == "bloom",
            has_layer_norm=True,
        )


_FAMILIES: tuple[type[_Config], ...] = (_Llama, _Mixtral, _QwenMoe, _DeepSeek, _Gpt)
_FAMILY_OF = {
    model_type: family for family in _FAMILIES for model_type in get_args(family.model_fields["model_type"].annotation)
}
"""Family of each ``model_type``."""


class _Architecture(Record):
    model_config: ClassVar[ConfigDict] = {"extra": "ignore"}

    model_type: Annotated[str, Field(max_length=100)]


def read_config(text: str, file: str, name: str) -> ModelShape:
    """Return the shape in the text of a ``config.json``, called `name`.

    Raises:
        ProfileError: The text is no configuration of a known architecture; the message names `file`, the place, the
            actual and the expected value.
    """
    model_type = parse_record(_Architecture, text, file, _ADVICE).model_type
    if model_type not in _FAMILY_OF:
        raise ProfileError(
            f"{file}: model_type: got {shown(model_type)}, {guess(model_type, _FAMILY_OF)}expected one of "
            f"{', '.join(sorted(_FAMILY_OF))}; give the numbers, as in transformer:layers=32,hidden=4096,heads=32,"
            "vocab=32000,seq=4096"
        )
    config = parse_record(_FAMILY_OF[model_type], text, file, _ADVICE)
    for part, whole in config.divisors:
        count, total = getattr(config, part), getattr(config, whole)
        if total % count:
            raise ProfileError(
                f"{file}: {part}: got {count}, expected a divisor of {whole}={total}; correct one of the two"
            )
    return config.shape(name)
