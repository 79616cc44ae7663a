"""Control messages: messages between all ranks beside the tensors of the schedule, over the default gloo group."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from pipesched.executor import waiting_for


def group_beside() -> dist.ProcessGroup:
    """Return a group of all ranks for a thread of each, beside the default group."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    return group


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


def share(text: str, source: int) -> str:
    """Return the text of rank `source`; all ranks call this together. It is text: nothing that came is unpickled."""
    data = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
    size = torch.tensor(data.shape)
    with waiting_for(f"rank {source}", source):
        dist.broadcast(size, source)
        data = data if dist.get_rank() == source else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, source)
    return data.numpy().tobytes().decode()


def gather_texts(text: str, group: dist.ProcessGroup | None = None) -> list[str]:
    """Return the text of each rank, as `all_gather` does."""
    parts = all_gather(torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8), group)
    return [bytes(part.tolist()).decode() for part in parts]
