"""The backends that a schedule is checked for: who carries the messages."""

from __future__ import annotations

from enum import StrEnum


class MessageBackend(StrEnum):
    """A backend: what carries the messages, and how it queues them."""

    GLOO = "gloo"
    NCCL = "nccl"
    NCCL_PAIR = "nccl-pair"
    NCCL_RANK = "nccl-rank"
    NCCL_BATCHED = "nccl-batched"
    BUFFERED = "buffered"
