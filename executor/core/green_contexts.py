"""Green contexts: shares of a GPU's multiprocessors (SMs), so that several ranks have an honest part of one GPU each.

`torch.cuda.green_contexts` takes every share from the same first SMs. Here the driver splits the SMs that are left by
the shares before, and makes a stream of each share, which works as any other stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from pipesched.executor import ExecutionError

_RESOURCE_BYTES = 512
"""Room for a CUdevResource: 144 bytes in CUDA 12 and 152 in CUDA 13, passed by address alone."""
_SM_COUNT_OFFSET = 96
"""Place of the number of SMs in a CUdevResource [bytes]."""
_SM, _DEFAULT_STREAM, _NON_BLOCKING = 1, 1, 1
"""CU_DEV_RESOURCE_TYPE_SM, CU_GREEN_CTX_DEFAULT_STREAM and CU_STREAM_NON_BLOCKING."""
_SM_STEP = 8
"""SMs that Hopper and later GPUs split by."""


def green_streams(
    device: torch.device, num_shares: int, load: Callable[[str], Any] = ctypes.CDLL
) -> list[torch.cuda.Stream]:
    """Return a stream for each of equal shares of a GPU's SMs; SMs that do not divide are left idle.

    Args:
        device: The GPU.
        num_shares: Number of shares.
        load: Loads the CUDA driver.

    Raises:
        ExecutionError: The driver knows no green contexts, or the GPU has too few SMs.
    """
    torch.cuda.init()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return [
        torch.cuda.ExternalStream(pointer, device=device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for pointer in green_pointers(device.index, num_shares, load)
    ]


def green_pointers(index: int, num_shares: int, load: Callable[[str], Any] = ctypes.CDLL) -> list[int]:
    """Return the addresses of the streams of `green_streams`, on the GPU of this index."""
    try:
        driver = load("libcuda.so.1")
        names = (
            "cuDeviceGet cuDeviceGetDevResource cuDevSmResourceSplitByCount cuDevResourceGenerateDesc cuGreenCtxCreate "
            "cuGreenCtxStreamCreate"
        )
        get, resource_of, split, describe, create, stream_of = (getattr(driver, name) for name in names.split())
    except (OSError, AttributeError) as error:
        raise ExecutionError(
            f"green contexts: got a driver without them ({error}), expected CUDA 12.4; leave them out"
        ) from None

    gpu, left = ctypes.c_int(), ctypes.create_string_buffer(_RESOURCE_BYTES)
    _check(get(ctypes.byref(gpu), index))
    _check(resource_of(gpu, left, _SM))
    num_sms = int.from_bytes(left.raw[_SM_COUNT_OFFSET : _SM_COUNT_OFFSET + 4], "little")
    share = num_sms // num_shares // _SM_STEP * _SM_STEP
    if not share:
        raise ExecutionError(
            f"green contexts: got {num_shares} ranks on a GPU of {num_sms} SMs, expected {_SM_STEP} SMs for each; "
            "leave them out"
        )
    pointers = []
    for _ in range(num_shares):
        part, rest = (ctypes.create_string_buffer(_RESOURCE_BYTES) for _ in range(2))
        count, text, context, stream = ctypes.c_uint(1), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        _check(split(part, ctypes.byref(count), left, rest, 0, share))
        _check(describe(ctypes.byref(text), part, 1))
        _check(create(ctypes.byref(context), text, gpu, _DEFAULT_STREAM))
        _check(stream_of(ctypes.byref(stream), context, _NON_BLOCKING, 0))
        assert stream.value is not None, "the driver has made one"
        pointers.append(stream.value)
        left = rest
    return pointers


def _check(code: int) -> None:
    if code:
        raise ExecutionError(f"green contexts: got error {code} of the CUDA driver, expected none; leave them out")
