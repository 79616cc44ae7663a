"""Real English prose that every Python has with it: the help topics of ``pydoc``, as bytes."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def text_bytes() -> Tensor:
    """Return the whole text as bytes, shape (length,), uint8; do not write to it."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[key] for key in sorted(topics))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def crops(num_samples: int, length: int, seed: int) -> Tensor:
    """Return `num_samples` crops at random places, shape (num_samples, length), int64."""
    text = text_bytes()
    random = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - length, (num_samples, 1), generator=random)
    return text[starts + torch.arange(length)].long()
