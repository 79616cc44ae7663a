"""The names of optimizers, number types, sizes, devices and message backends, and the strictness of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from pydantic import ConfigDict

OptimizerName: TypeAlias = Literal["sgd", "momentum", "adam", "adamw"]
"""Optimizers of PyTorch; momentum is SGD with momentum."""
OPTIMIZER_MOMENTS: dict[OptimizerName, int] = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""Numbers that an optimizer keeps for each parameter."""

DeviceKind: TypeAlias = Literal["cpu", "cuda"]

Carrier: TypeAlias = Literal["gloo", "nccl"]
"""Carriers of messages between processes."""

Backend: TypeAlias = Literal["auto", Carrier]
"""``auto``: NCCL if every rank has its own GPU, else gloo."""

MessagePrecision: TypeAlias = Literal["half"]
"""Half precision for tensors with small rounding errors, as in executor.transport.half_precision."""

Dtype: TypeAlias = Literal["float32", "float64", "bfloat16", "float16"]
"""Number types of a model; names of torch dtypes."""

DTYPES: tuple[Dtype, ...] = get_args(Dtype)

STRICT: ConfigDict = {"strict": True, "extra": "forbid", "allow_inf_nan": False}
"""Pydantic settings for external input: no type conversion, no unknown fields, no infinite numbers."""

FLOAT32_BYTES = 4
BYTES_LIMIT = 2**63
"""Limit of numbers of bytes: larger ones do not fit a 64-bit integer."""
BYTE_UNITS: dict[str, int] = {"": 1, "b": 1} | {
    f"{letter}{end}": base ** (power + 1)
    for power, letter in enumerate("kmgt")
    for end, base in (("b", 1000), ("ib", 1024))
}
"""Bytes of the units of sizes, in lower case: ``gb``, ``gib``."""
_ELEMENT_BYTES: dict[str, int] = {"float32": FLOAT32_BYTES, "float64": 8, "bfloat16": 2, "float16": 2}


def element_bytes(dtype: str) -> int:
    """Return the bytes of an element; an unknown dtype counts as float32."""
    return _ELEMENT_BYTES.get(dtype, FLOAT32_BYTES)
