"""The bytes and seconds of messages in half precision, as `executor.transport.half_precision` makes them."""

from __future__ import annotations

from dataclasses import dataclass

from pipesched.profiles import FLOAT32_BYTES

HEADER_BYTES = 8
"""Header of a compressed message, before its elements [bytes]."""
_HALF_BYTES = 2


@dataclass(frozen=True, slots=True)
class Compression:
    """Activations and their gradients in half precision, after a header of 8 bytes.

    Attributes:
        element_bytes: Bytes of an uncompressed element; elements of 2 bytes or fewer are not converted.
        convert_bytes_per_s: Conversion throughput of a device in uncompressed bytes per second; None for free
            conversion.
    """

    element_bytes: int = FLOAT32_BYTES
    convert_bytes_per_s: float | None = None

    def message_bytes(self, num_bytes: int) -> int:
        """Return the size of the message of a tensor of `num_bytes`; an empty tensor stays empty."""
        if self.element_bytes <= _HALF_BYTES or not num_bytes:
            return num_bytes
        return head_bytes(num_bytes, self.element_bytes)

    def convert_s(self, num_bytes: int) -> float:
        """Return the conversion time of one end for a tensor of `num_bytes` [s]."""
        if self.element_bytes <= _HALF_BYTES or self.convert_bytes_per_s is None:
            return 0.0
        return num_bytes / self.convert_bytes_per_s


def head_bytes(num_bytes: int, element_bytes: int) -> int:
    """Return the size of a tensor of `num_bytes` with elements in half precision, header included."""
    return HEADER_BYTES + -(-num_bytes * _HALF_BYTES // element_bytes)
