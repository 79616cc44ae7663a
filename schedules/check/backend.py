"""The message backends that a schedule is checked for."""

from __future__ import annotations

from enum import StrEnum


class MessageBackend(StrEnum):
    """A backend, by its way to send and queue messages."""

    GLOO = "gloo"
    NCCL = "nccl"
    NCCL_PAIR = "nccl-pair"
    NCCL_RANK = "nccl-rank"
    NCCL_BATCHED = "nccl-batched"
    BUFFERED = "buffered"
