"""The model of a published run: its columns, and the facts of its family that no column has."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from pipesched.profiles.inside_stage.model_shape import Experts, LatentAttention, ModelShape
from published_rows.megatron_tests import MegatronTest, megatron_test
from published_rows.row import PublishedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Facts of a family of models, from its model card or its trainer.

    Attributes:
        pattern: Pattern that the name of a model of the family matches.
        is_gated: The feed-forward part has a gate.
        is_tied: The embedding and the head share their weights.
        has_bias: Linear layers have a bias.
        has_dropout: Dropout follows attention and feed-forward part.
        has_positions: Positions are learned.
        has_layer_norm: Norms are LayerNorm.
        head_size: Width of a head, or None for hidden / heads.
        expert_ffn: Inner width of an expert, or None for the column ffn.
        shared_ffn: Inner width of the shared experts.
        first_dense: First blocks without experts.
        latent: Latent attention, or None.
        predicted_tokens: Multi-token prediction blocks.
        vocab: Vocabulary where the row has none.
        origin: Origin of these facts.
    """

    pattern: str
    is_gated: bool = True
    is_tied: bool = False
    has_bias: bool = False
    has_dropout: bool = False
    has_positions: bool = False
    has_layer_norm: bool = False
    head_size: int | None = None
    expert_ffn: int | None = None
    shared_ffn: int = 0
    first_dense: int = 0
    latent: LatentAttention | None = None
    predicted_tokens: int = 0
    vocab: int | None = None
    origin: str


_MLA_V2 = LatentAttention(query_rank=1536, key_value_rank=512, nope_size=128, rope_size=64, value_size=128)
GPT2_VOCAB = 50257
USUAL_HEAD_SIZE = 128
LLAMA = Family(pattern="llama", vocab=128256, origin="arXiv:2407.21783, table 3")

FAMILIES = (
    Family(
        pattern=r"deepseek[-_ ]?v2[-_ ]?lite",
        expert_ffn=1408,
        shared_ffn=2816,
        first_dense=1,
        latent=LatentAttention(query_rank=None, key_value_rank=512, nope_size=128, rope_size=64, value_size=128),
        vocab=102400,
        origin="huggingface.co/deepseek-ai/DeepSeek-V2-Lite, config.json",
    ),
    Family(
        pattern=r"deepseek[-_ ]?v2",
        expert_ffn=1536,
        shared_ffn=3072,
        first_dense=1,
        latent=_MLA_V2,
        vocab=102400,
        origin="huggingface.co/deepseek-ai/DeepSeek-V2, config.json",
    ),
    Family(
        pattern=r"deepseek[-_ ]?v3|deepseek[-_ ]?r1",
        expert_ffn=2048,
        shared_ffn=2048,
        first_dense=3,
        latent=_MLA_V2,
        vocab=129280,
        origin="huggingface.co/deepseek-ai/DeepSeek-V3, config.json",
    ),
    Family(
        pattern=r"kimi[-_ ]?k2",
        expert_ffn=2048,
        shared_ffn=2048,
        first_dense=1,
        latent=_MLA_V2,
        vocab=163840,
        origin="huggingface.co/moonshotai/Kimi-K2-Instruct, config.json",
    ),
    Family(
        pattern=r"qwen3.*235b",
        head_size=128,
        expert_ffn=1536,
        vocab=151936,
        origin="huggingface.co/Qwen/Qwen3-235B-A22B, config.json",
    ),
    Family(
        pattern=r"qwen3.*30b",
        head_size=128,
        expert_ffn=768,
        vocab=151936,
        origin="huggingface.co/Qwen/Qwen3-30B-A3B, config.json",
    ),
    Family(pattern=r"qwen3", head_size=128, vocab=151936, origin="arXiv:2505.09388, table 1"),
    Family(pattern=r"qwen", has_bias=True, vocab=152064, origin="arXiv:2412.15115"),
    Family(pattern=r"gpt[-_ ]?oss", has_bias=True, head_size=64, vocab=201088, origin="arXiv:2508.10925"),
    Family(pattern=r"mixtral", vocab=32000, origin="arXiv:2401.04088, table 1"),
    Family(pattern=r"internlm", has_bias=True, vocab=103168, origin="huggingface.co/internlm/internlm-7b, config.json"),
    Family(
        pattern=r"mpt",
        is_gated=False,
        is_tied=True,
        has_layer_norm=True,
        vocab=50368,
        origin="github.com/mosaicml/llm-foundry, scripts/train/yamls/pretrain: tied, no bias, ALiBi",
    ),
    Family(pattern=r"llama[-_ ]?2", vocab=32000, origin="arXiv:2307.09288"),
    LLAMA,
    Family(
        pattern=r"bert",
        is_gated=False,
        is_tied=True,
        has_bias=True,
        has_dropout=True,
        has_positions=True,
        has_layer_norm=True,
        vocab=30522,
        origin="github.com/NVIDIA/Megatron-LM, pretrain_bert.py",
    ),
    Family(
        pattern=r"gpt|bloom",
        is_gated=False,
        is_tied=True,
        has_bias=True,
        has_dropout=True,
        has_positions=True,
        has_layer_norm=True,
        vocab=GPT2_VOCAB,
        origin="github.com/NVIDIA/Megatron-LM, megatron/training/arguments.py",
    ),
)
"""Families in the order of their search."""


def family_of(run: PublishedRun) -> Family:
    """Return the family of a model by its name; an unknown model with grouped heads or experts is like Llama."""
    name = run.model.lower()
    for family in FAMILIES:
        if re.search(family.pattern, name):
            return family
    return LLAMA


def model_shape(run: PublishedRun) -> ModelShape:
    """Return the shape of the run's model.

    Raises:
        ValueError: A number is missing, or contradicts another number.
    """
    family = _of_test(family_of(run), megatron_test(run))
    heads = run.heads or KNOWN_HEADS.get(run.hidden) or _supposed_heads(run.hidden, run.tp)
    head_size = family.head_size or run.hidden // heads
    if not family.head_size and run.hidden % heads:
        raise ValueError(f"heads is {heads}; expected a divisor of hidden, {run.hidden}")
    vocab = run.vocab or family.vocab
    if vocab is None:
        raise ValueError(f"vocab is empty; expected a number for model {run.model!r}")
    return ModelShape(
        name=run.model,
        layers=run.layers,
        hidden=run.hidden,
        ffn=run.ffn or 4 * run.hidden,
        heads=heads,
        kv_heads=run.kv_heads or heads,
        head_size=head_size,
        vocab=vocab,
        sequence=run.seq,
        is_gated=family.is_gated,
        is_tied=_is_tied(run, family),
        has_bias=family.has_bias,
        has_dropout=family.has_dropout,
        has_positions=family.has_positions,
        has_layer_norm=family.has_layer_norm,
        experts=_experts(run, family),
        latent=family.latent,
        predicted_tokens=1 if re.search(r"w/ ?mtp", run.model.lower()) else family.predicted_tokens,
    )


def _of_test(family: Family, test: MegatronTest | None) -> Family:
    """Return the family with the flags of a test of Megatron-LM."""
    if test is None:
        return family
    return replace(
        family,
        is_gated=test.gated,
        is_tied=not test.untied,
        has_bias=test.bias,
        has_dropout=test.dropout,
        has_positions=not test.rotary,
        has_layer_norm=not test.rms_norm,
    )


KNOWN_HEADS = {14400: 96}
"""Heads of a width whose rows do not say them: bigscience, train/tr11-176B-ml/chronicles-prequel.md, Best TFLOPs."""


def _supposed_heads(hidden: int, tensor: int) -> int:
    """Return a number of heads that tensor parallelism divides, of a width near 128."""
    counts = [count for count in range(1, hidden + 1) if hidden % count == 0 and count % tensor == 0]
    return min(counts, key=lambda count: abs(math.log(hidden / count / USUAL_HEAD_SIZE)), default=1)


def _is_tied(run: PublishedRun, family: Family) -> bool:
    if "untied" in run.note or "untie" in run.model:
        return False
    return "tied embeddings" in run.note or family.is_tied


def _experts(run: PublishedRun, family: Family) -> Experts | None:
    if not run.experts or run.experts == 1:
        return None
    return Experts(
        count=run.experts,
        topk=run.topk or 1,
        ffn=family.expert_ffn or run.ffn or 4 * run.hidden,
        shared_ffn=family.shared_ffn,
        first_dense=min(family.first_dense, run.layers - 1),
    )
