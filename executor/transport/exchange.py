"""Tensors and texts that all ranks exchange over gloo; nothing that comes is unpickled."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from pipesched.executor import waiting_for


def all_gather(tensor: Tensor, group: dist.ProcessGroup | None = None) -> list[Tensor]:
    """Return the tensor of each rank; tensors may differ in size, not in dtype or number of dimensions.

    Args:
        tensor: The tensor of this rank, on the CPU.
        group: Group of all ranks; None for the default group.
    """
    size = torch.tensor(tensor.shape, dtype=torch.int64)
    sizes = [torch.empty_like(size) for _ in range(dist.get_world_size())]
    with waiting_for(f"the other ranks of rank {dist.get_rank()}"):
        dist.all_gather(sizes, size, group=group)
    counts = [int(size.prod()) for size in sizes]
    padded = torch.zeros(max(counts), dtype=tensor.dtype)
    padded[: tensor.numel()] = tensor.reshape(-1)
    parts = [torch.empty_like(padded) for _ in counts]
    with waiting_for(f"the other ranks of rank {dist.get_rank()}"):
        dist.all_gather(parts, padded, group=group)
    return [part[:count].reshape(size.tolist()) for part, count, size in zip(parts, counts, sizes, strict=True)]


def gather_texts(text: str, group: dist.ProcessGroup | None = None) -> list[str]:
    """Return the text of each rank, as `all_gather` does."""
    return [part.numpy().tobytes().decode() for part in all_gather(_bytes_of(text), group)]


def share(text: str, source: int, what: str = "") -> str:
    """Return the text of rank `source`; all ranks call this together.

    Args:
        text: The text of this rank.
        source: The rank whose text is returned.
        what: The text in words, for messages about a wait for it.
    """
    data = _bytes_of(text)
    size = torch.tensor(data.shape)
    is_own = dist.get_rank() == source
    whom = "the other ranks to read" if is_own else f"rank {source} to send"
    with waiting_for(f"{whom} {what}" if what else f"rank {source}", source):
        dist.broadcast(size, source)
        data = data if is_own else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, source)
    return data.numpy().tobytes().decode()


def _bytes_of(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
