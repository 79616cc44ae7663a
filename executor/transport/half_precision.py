"""Messages in half precision if they fit (automatic precision compression; WPipe, ICLR 2022, appendix A.3).

The sender divides a tensor by a power of two that brings its largest element just below 2^15, and rounds it to half
precision: elements down to 2^-29 of the largest keep 11 bits. If an element is not finite, or too many become zero
(below 2^-39 of the largest), the tensor is sent uncompressed. The message contains its kind:

    head    kind, exponent | n halves                     kind 0: element = half * 2^exponent
    head    kind, 0        | the first 2 n bytes          kind 1: the tensor's own bytes; all others are
    rest                     the other bytes                      a message of their own

So a head has the same size either way, and a receiver can post a buffer for it before it is made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pipesched.profiles.costs import HEADER_BYTES

_TOP = 15
"""The largest element becomes less than 2^15, half of the largest half-precision number."""
_LOST_SHARE = 0.01
"""Largest share of a tensor's elements that may become zero."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor as bytes; `rest` is None if the tensor was compressed into `head`."""

    head: Tensor
    rest: Tensor | None = None


def is_compressed(dtype: torch.dtype) -> bool:
    """Return whether tensors of `dtype` become smaller."""
    return dtype.is_floating_point and dtype.itemsize > torch.half.itemsize


def pack(tensor: Tensor) -> Packed:
    """Return `tensor`, of a dtype that can be compressed, as bytes on its device."""
    flat = tensor.detach().reshape(-1).contiguous()
    exponent = _exponent(flat)
    half = None if exponent is None else (flat * 2.0**-exponent).half()
    if half is not None and _is_good(half, flat):
        return Packed(torch.cat([_header(0, exponent or 0).to(flat.device), half.view(torch.uint8)]))
    own = flat.view(torch.uint8)
    cut = flat.numel() * torch.half.itemsize
    return Packed(torch.cat([_header(1, 0).to(flat.device), own[:cut]]), own[cut:])


def rest_bytes(head: Tensor, num_elements: int, dtype: torch.dtype) -> int:
    """Return the bytes that follow `head`, which is in host memory, in a separate message; 0 without one."""
    kind, _ = _read(head)
    return num_elements * (dtype.itemsize - torch.half.itemsize) if kind else 0


def unpack(packed: Packed, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the elements on `device`, in one dimension; the head is in host memory."""
    _, exponent = _read(packed.head)
    body = packed.head[HEADER_BYTES:].to(device, non_blocking=True)
    if packed.rest is None:
        return body.view(torch.half).to(dtype) * 2.0**exponent
    return torch.cat([body, packed.rest.to(device, non_blocking=True)]).view(dtype)


def _exponent(flat: Tensor) -> int | None:
    """Return the exponent of the power of two to divide by, or None if the tensor cannot be compressed."""
    largest = flat.abs().max().item() if flat.numel() else 0.0
    if not math.isfinite(largest):
        return None
    exponent = math.frexp(largest)[1] - _TOP if largest else 0
    end = math.frexp(torch.finfo(flat.dtype).max)[1]  # rounded up, the largest element must stay finite
    return exponent if -end < exponent < end - _TOP else None


def _is_good(half: Tensor, flat: Tensor) -> bool:
    lost = torch.count_nonzero(flat) - torch.count_nonzero(half)
    return bool(lost <= _LOST_SHARE * flat.numel())


def _header(kind: int, exponent: int) -> Tensor:
    return torch.tensor([kind, exponent], dtype=torch.int32).view(torch.uint8)


def _read(head: Tensor) -> tuple[int, int]:
    kind, exponent = head[:HEADER_BYTES].view(torch.int32).tolist()
    return kind, exponent
