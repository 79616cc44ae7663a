"""The words that say how a model computes: optimizers, number types, sizes, devices and what carries messages."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

OptimizerName: TypeAlias = Literal["sgd", "momentum", "adam", "adamw"]
"""PyTorch's; momentum is SGD with it."""

DeviceKind: TypeAlias = Literal["cpu", "cuda"]

Carrier: TypeAlias = Literal["gloo", "nccl"]
"""What carries messages between processes."""

Backend: TypeAlias = Literal["auto", Carrier]
"""``auto``: NCCL where every rank has a GPU of its own, else gloo."""

MessagePrecision: TypeAlias = Literal["half"]
"""Half precision where it fits, as executor.transport.half_precision says."""

Dtype: TypeAlias = Literal["float32", "float64", "bfloat16", "float16"]
"""What a model may compute in; names of torch dtypes."""

DTYPES: tuple[Dtype, ...] = get_args(Dtype)

FLOAT32_BYTES = 4
BYTES_LIMIT = 2**63
"""What no number of bytes comes to: an integer of 64 bits would not hold it."""
BYTE_UNITS: dict[str, int] = {"": 1, "b": 1} | {
    f"{letter}{end}": base ** (power + 1)
    for power, letter in enumerate("kmgt")
    for end, base in (("b", 1000), ("ib", 1024))
}
"""How many bytes the units of sizes are, in lower case: ``gb``, ``gib``."""
_ELEMENT_BYTES: dict[str, int] = {"float32": FLOAT32_BYTES, "float64": 8, "bfloat16": 2, "float16": 2}


def element_bytes(dtype: str) -> int:
    """Return the size of an element; of a dtype that this does not know, that of float32."""
    return _ELEMENT_BYTES.get(dtype, FLOAT32_BYTES)
