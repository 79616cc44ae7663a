"""The backends that a schedule is checked for, which carry the messages."""

from __future__ import annotations

from enum import StrEnum


class MessageBackend(StrEnum):
    """A backend, by the way it carries and queues messages."""

    GLOO = "gloo"
    NCCL = "nccl"
    NCCL_PAIR = "nccl-pair"
    NCCL_RANK = "nccl-rank"
    NCCL_BATCHED = "nccl-batched"
    BUFFERED = "buffered"
