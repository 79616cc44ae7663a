"""Torch's number types by name."""

from __future__ import annotations

import torch


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype called `name`, as ``float32`` or another of `DTYPES`."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype
