"""The flags of Megatron-LM's functional tests, by the name of the test."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from published_rows.row import PublishedRun

_TABLE = Path(__file__).parents[1] / "data" / "megatron_tests.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronTest:
    """The flags of a test: github.com/NVIDIA/Megatron-LM, tests/functional_tests/test_cases, model_config.yaml.

    Attributes:
        sequence: ``--sequence-parallel``.
        untied: ``--untie-embeddings-and-output-weights``.
        unfused: ``--attention-backend unfused``, or ``--transformer-impl local`` without ``--use-flash-attn``.
        fused_gradients: No ``--no-gradient-accumulation-fusion``.
        gated: ``--swiglu``.
        rotary: Rotary positions.
        rms_norm: ``--normalization RMSNorm``.
        dropout: Dropout of hidden activations, which is on by default.
        bias: No ``--disable-bias-linear``.
        overlaps: ``--overlap-grad-reduce``.
        fused_loss: ``--cross-entropy-loss-fusion``.
    """

    sequence: bool
    untied: bool
    unfused: bool
    fused_gradients: bool
    gated: bool
    rotary: bool
    rms_norm: bool
    dropout: bool
    bias: bool
    overlaps: bool
    fused_loss: bool


def megatron_test(run: PublishedRun) -> MegatronTest | None:
    """Return the flags of the test that a row is, or None."""
    return _tests().get(run.model)


@cache
def _tests() -> Mapping[str, MegatronTest]:
    names = MegatronTest.__slots__
    with _TABLE.open(newline="", encoding="utf-8") as lines:
        return {
            row["test"]: MegatronTest(**{name: row[name] == "1" for name in names}) for row in csv.DictReader(lines)
        }
