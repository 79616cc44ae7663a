"""The shape of a transformer by name: a preset, a Hugging Face ``config.json``, or free numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import Any

from pipesched.profiles import ProfileError
from pipesched.profiles.inside_stage import Experts, LatentAttention, ModelShape
from pipesched.profiles.io.loading import DATA_FOLDER, read_profile_text
from pipesched.profiles.io.model_name import read_arguments
from pipesched.schedules.common import guess, shown

_PRESETS = DATA_FOLDER / "models"


def preset_names() -> tuple[str, ...]:
    """Return the names of the models whose shape comes with pipesched."""
    return tuple(sorted(path.stem for path in _PRESETS.glob("*.json")))


def names_shape(text: str) -> bool:
    """Return whether `text` begins as the name of a transformer whose shape is known without a measurement."""
    kind, _, _ = text.partition(":")
    return kind in ("hf", "transformer", *preset_names())


def model_shape(name: str | Path) -> ModelShape:
    """Return the shape of a transformer.

    Args:
        name: One of these forms; a path is a configuration.

            ``llama3-70b``                a preset (`preset_names`)
            ``hf:folder/config.json``     a Hugging Face configuration, or the folder with its ``config.json``
            ``transformer:layers=32,..``  free numbers: layers, hidden, heads, vocab and seq are required
            ``gpt:layers=8,width=320``    the built-in model of `resolve_model`

            Without `ffn`, feed-forward parts are 4 times as wide as the model. Without `expert_ffn`, experts are as
            wide as feed-forward parts.

            Numbers after a colon change a preset or a configuration, as in ``llama3-70b:layers=12,seq=8192``.

    Raises:
        ProfileError: There is no such model, the file is invalid, or the numbers do not fit together; one line.
    """
    text = f"hf:{name}" if isinstance(name, Path) else name
    kind, _, rest = text.partition(":")
    if kind == "transformer":
        given = _given(text, rest)
        shape = _changed(text, _plain_shape(text, given), given)
    elif kind == "gpt":
        given = _given(text, rest, _Gpt)
        shape = _built_in_shape(text, given)
    else:
        base, changes = _base_shape(text, kind, rest)
        given = _given(text, changes)
        shape = _changed(text, base, given)
    faults = _faults(shape, given)
    if faults:
        raise ProfileError(f"model {shown(text)}: {faults[0]}")
    return shape


@dataclass(frozen=True)
class _Gpt:
    """The numbers of the built-in GPT, by their keys; `models.language_models.gpt` has the same defaults."""

    layers: int = 8
    width: int = 320
    heads: int = 8
    context: int = 128
    vocab: int = 256


_MODEL_FIELDS = {
    "layers": "layers",
    "hidden": "hidden",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "head_size": "head_size",
    "ffn": "ffn",
    "vocab": "vocab",
    "seq": "sequence",
    "gated": "is_gated",
    "tied": "is_tied",
    "bias": "has_bias",
    "dropout": "has_dropout",
    "positions": "has_positions",
    "layer_norm": "has_layer_norm",
    "mtp": "predicted_tokens",
}
"""Fields of `ModelShape`, by key."""
_EXPERT_FIELDS = {
    "experts": "count",
    "topk": "topk",
    "expert_ffn": "ffn",
    "moe_every": "every",
    "dense_first": "first_dense",
}
"""Fields of `Experts`, by key; ``shared_experts`` is a multiple of ``expert_ffn``."""
_LATENT_FIELDS = {
    "q_rank": "query_rank",
    "kv_rank": "key_value_rank",
    "nope_size": "nope_size",
    "rope_size": "rope_size",
    "value_size": "value_size",
}
"""Fields of `LatentAttention`, by key."""
_SWITCHES = ("mla", *(key for key, field in _MODEL_FIELDS.items() if field.startswith(("is_", "has_"))))
_Numbers = make_dataclass(
    "_Numbers",
    [
        (key, bool if key in _SWITCHES else int, None)
        for key in (*_MODEL_FIELDS, *_EXPERT_FIELDS, "shared_experts", "mla", *_LATENT_FIELDS)
    ],
)
"""The numbers and switches that a name may give, by their keys; None is not given."""
_USUAL_LATENT = LatentAttention(query_rank=1536, key_value_rank=512, nope_size=128, rope_size=64, value_size=128)
"""Sizes of ``mla=yes``: DeepSeek-V2 and V3 (arXiv:2405.04434, section 3.1.2; arXiv:2412.19437, section 4.2)."""
_REQUIRED = ("layers", "hidden", "heads", "vocab", "seq")
_MAY_BE_ZERO = ("experts", "shared_experts", "dense_first", "q_rank", "mtp")
_MOST = {"layers": 10_000, "mtp": 100}
"""Largest values of keys; larger ones are typing errors."""
_MOST_OF_OTHERS = 2**31 - 1
"""Largest value of the other keys."""


def _given(text: str, rest: str, numbers: type = _Numbers) -> dict[str, Any]:
    """Return the numbers in ``key=value,key=value``, each in its range.

    Args:
        text: The whole name, for messages.
        rest: The part with the numbers.
        numbers: The dataclass with the keys.

    Raises:
        ProfileError: A key is unknown or repeated, or a value has the wrong type or is out of range.
    """
    given = read_arguments(text, numbers, rest)
    for key, got in given.items():
        least, most = 0 if key in _MAY_BE_ZERO else 1, _MOST.get(key, _MOST_OF_OTHERS)
        if not isinstance(got, bool) and not least <= got <= most:
            advice = "raise it" if got < least else "lower it"
            raise ProfileError(f"model {shown(text)}: {key}: got {got}, expected {least} to {most}; {advice}")
    return given


def _base_shape(text: str, kind: str, rest: str) -> tuple[ModelShape, str]:
    """Return the shape of a preset or a configuration, and the changes behind its name."""
    if kind == "hf":
        file, _, changes = rest.rpartition(":")
        if not file or "=" not in changes:
            file, changes = rest, ""
        if not file:
            raise ProfileError(f"model {shown(text)}: got no file, expected one; try hf:path/config.json")
        return _read_config(file, text), changes
    if kind in preset_names():
        return _read_config(_PRESETS / f"{kind}.json", text), rest
    forms = ("hf:path/config.json", "transformer:layers=..", "gpt:layers=..")
    raise ProfileError(
        f"model: got {shown(text)}, {guess(kind, preset_names())}expected one of "
        f"{', '.join((*preset_names(), *forms))}; check its spelling"
    )


def _read_config(path: str | Path, name: str) -> ModelShape:
    from pipesched.profiles.io.hugging_face import read_config  # loads pydantic

    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    return read_config(read_profile_text(file), str(file), name)


def _built_in_shape(text: str, given: dict[str, Any]) -> ModelShape:
    """Return the shape of the built-in GPT: GPT-2's, with a head of its own and without dropout."""
    gpt = _Gpt(**given)
    return ModelShape(
        name=text,
        layers=gpt.layers,
        hidden=gpt.width,
        ffn=4 * gpt.width,
        heads=gpt.heads,
        kv_heads=gpt.heads,
        head_size=_head_size(text, gpt.width, gpt.heads, given, "width"),
        vocab=gpt.vocab,
        sequence=gpt.context,
        has_bias=True,
        has_positions=True,
        has_layer_norm=True,
    )


def _plain_shape(text: str, given: dict[str, Any]) -> ModelShape:
    """Return the shape with the required numbers: a feed-forward part of four times the width, no bias, RMSNorm."""
    missing = [key for key in _REQUIRED if key not in given]
    if given.get("gated") and "ffn" not in given:
        missing.append("ffn")
    if missing:
        raise ProfileError(
            f"model {shown(text)}: got no {', '.join(missing)}, expected a number for each; append {missing[0]}=..."
        )
    hidden, heads = given["hidden"], given["heads"]
    return ModelShape(
        name=text,
        layers=given["layers"],
        hidden=hidden,
        ffn=4 * hidden,
        heads=heads,
        kv_heads=heads,
        head_size=given.get("head_size") or _head_size(text, hidden, heads, given),
        vocab=given["vocab"],
        sequence=given["seq"],
    )


def _head_size(text: str, hidden: int, heads: int, given: dict[str, Any], key: str = "hidden") -> int:
    """Return the width of a head; `key` names the width in messages. A message blames the number that the user gave."""
    if hidden % heads == 0:
        return hidden // heads
    other = ", or append head_size=..." if key == "hidden" else ""
    fault = f"{key}: got {hidden}, expected a multiple of heads={heads}; try {key}={-(-hidden // heads) * heads}"
    if key not in given:
        fault = f"heads: got {heads}, expected a divisor of {key}={hidden}; try heads={_divisor(hidden, heads)}"
    raise ProfileError(f"model {shown(text)}: {fault}{other}")


def _divisor(whole: int, most: int) -> int:
    """Return the largest divisor of `whole` up to `most`."""
    small = [count for count in range(1, math.isqrt(whole) + 1) if whole % count == 0]
    return max(count for pair in small for count in (pair, whole // pair) if count <= most)


def _changed(text: str, shape: ModelShape, given: dict[str, Any]) -> ModelShape:
    """Return `shape` with the given numbers. If its heads fill the width, they still do; so with equal key heads."""
    changes = {field: given[key] for key, field in _MODEL_FIELDS.items() if key in given}
    hidden, heads = changes.get("hidden", shape.hidden), changes.get("heads", shape.heads)
    if {"hidden", "heads"} & given.keys() and shape.heads * shape.head_size == shape.hidden:
        changes.setdefault("head_size", given.get("head_size") or _head_size(text, hidden, heads, given))
    if shape.kv_heads == shape.heads:
        changes.setdefault("kv_heads", heads)
    latent = _changed_latent(text, shape.latent, given)
    if latent is not None:
        changes["head_size"] = latent.nope_size + latent.rope_size
    experts = _changed_experts(text, shape.experts, given, changes.get("ffn", shape.ffn))
    return replace(shape, experts=experts, latent=latent, **changes)


def _changed_experts(text: str, experts: Experts | None, given: dict[str, Any], ffn: int) -> Experts | None:
    """Return the experts with the given numbers; new experts are as wide as `ffn`, the feed-forward part."""
    changes = {field: given[key] for key, field in _EXPERT_FIELDS.items() if key in given}
    used = [key for key in (*_EXPERT_FIELDS, "shared_experts") if key in given]
    if given.get("experts") == 0:
        experts, used = None, [key for key in used if key != "experts"]
    elif experts is None and "experts" in given:
        if "topk" not in given:
            raise ProfileError(
                f"model {shown(text)}: got no topk, expected a number together with experts; append topk=..."
            )
        experts = Experts(count=given["experts"], topk=given["topk"], ffn=ffn)
    if experts is None:
        _require_unused(text, used, "experts", "experts=8")
        return None
    experts = replace(experts, **changes)
    if "shared_experts" in given:
        experts = replace(experts, shared_ffn=given["shared_experts"] * experts.ffn)
    return experts


def _changed_latent(text: str, latent: LatentAttention | None, given: dict[str, Any]) -> LatentAttention | None:
    changes = {field: given[key] for key, field in _LATENT_FIELDS.items() if key in given}
    if "mla" in given:
        latent = (latent or _USUAL_LATENT) if given["mla"] else None
    if latent is None:
        _require_unused(text, [key for key in _LATENT_FIELDS if key in given], "mla", "mla=yes")
        return None
    latent = replace(latent, **changes)
    return replace(latent, query_rank=latent.query_rank or None)


def _require_unused(text: str, used: list[str], owner: str, advice: str) -> None:
    if used:
        raise ProfileError(
            f"model {shown(text)}: {used[0]}: got this argument without {owner}, expected both; append {advice}"
        )


def _faults(shape: ModelShape, given: dict[str, Any]) -> list[str]:
    """Return a fault for each pair of numbers that contradict each other; it blames a given number."""
    faults = []
    heads, kv_heads = shape.heads, shape.kv_heads
    if heads % kv_heads and "kv_heads" in given:
        nearest = _divisor(heads, kv_heads)
        faults.append(f"kv_heads: got {kv_heads}, expected a divisor of heads={heads}; try kv_heads={nearest}")
    elif heads % kv_heads:
        nearest = -(-heads // kv_heads) * kv_heads
        faults.append(f"heads: got {heads}, expected a multiple of kv_heads={kv_heads}; try heads={nearest}")
    experts = shape.experts
    if experts is not None and experts.topk > experts.count:
        faults.append(f"topk: got {experts.topk}, expected at most experts={experts.count}; lower it")
    if experts is not None and not any(map(shape.has_experts, range(shape.layers))):
        faults.append(
            f"experts: got {experts.count} for no block: dense_first={experts.first_dense} and "
            f"moe_every={experts.every} of layers={shape.layers}, expected at least one block with experts; lower "
            "dense_first"
        )
    if shape.latent is not None and shape.kv_heads != shape.heads:
        faults.append(f"kv_heads: got {shape.kv_heads} with mla, expected heads={shape.heads}; leave it out")
    return faults
