"""The bytes and seconds of messages in half precision, as `executor.transport.half_precision` makes them."""

from __future__ import annotations

from dataclasses import dataclass

from pipesched.profiles import FLOAT32_BYTES

HEADER_BYTES = 8
"""What a compressed message says of itself, before its elements."""
_HALF_BYTES = 2


@dataclass(frozen=True, slots=True)
class Compression:
    """Activations and their gradients in half precision, behind a head of 8 bytes.

    Attributes:
        element_bytes: Bytes of an element as it is computed with; with 2 or fewer nothing is gained, and nothing is
            converted.
        convert_bytes_per_s: How quickly a device converts, counted in bytes as they were; None: in no time.
    """

    element_bytes: int = FLOAT32_BYTES
    convert_bytes_per_s: float | None = None

    def message_bytes(self, num_bytes: int) -> int:
        """Return what a tensor of `num_bytes` is on its way; nothing stays nothing."""
        if self.element_bytes <= _HALF_BYTES or not num_bytes:
            return num_bytes
        return head_bytes(num_bytes, self.element_bytes)

    def convert_s(self, num_bytes: int) -> float:
        """Return how long one end works on a tensor of `num_bytes` [s]."""
        if self.element_bytes <= _HALF_BYTES or self.convert_bytes_per_s is None:
            return 0.0
        return num_bytes / self.convert_bytes_per_s


def head_bytes(num_bytes: int, element_bytes: int) -> int:
    """Return the size of a tensor of `num_bytes` once its elements are halves, the header included."""
    return HEADER_BYTES + -(-num_bytes * _HALF_BYTES // element_bytes)
