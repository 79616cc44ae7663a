"""Green contexts: shares of a GPU's multiprocessors (SMs), so that several ranks have an honest part of one GPU each.

`torch.cuda.green_contexts` takes every share from the same first SMs. Here the driver splits a GPU once into equal
shares, and makes a stream of each, which works as any other stream.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch

from pipesched.executor import ExecutionError

_SM_STEP = 8
"""SMs that Hopper and later GPUs split by."""


@cache
def green_streams(device: torch.device, num_shares: int) -> tuple[torch.cuda.Stream, ...]:
    """Return a stream for each of equal shares of a GPU's SMs, the same ones whenever asked; some SMs may be left idle.

    Raises:
        ExecutionError: The driver, or the Python package, knows no green contexts, or the GPU has too few SMs.
    """
    torch.cuda.init()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return tuple(
        torch.cuda.ExternalStream(pointer, device=device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for pointer in green_pointers(device.index, num_shares)
    )


def green_pointers(index: int, num_shares: int, load: Callable[[str], Any] = import_module) -> list[int]:
    """Return the addresses of the streams of `green_streams`.

    Args:
        index: Index of the GPU.
        num_shares: Number of shares.
        load: Imports the bindings of the CUDA driver.
    """
    try:
        driver = load("cuda.bindings.driver")
    except ImportError as error:
        raise ExecutionError(
            f"green contexts: got no CUDA driver for Python ({error}), expected the package cuda-bindings; install it, "
            "or leave them out"
        ) from None
    try:
        gpu = _value(driver.cuDeviceGet(index))
        whole = _value(driver.cuDeviceGetDevResource(gpu, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
        pointers = []
        for part in _equal_parts(driver, whole, num_shares):
            text = _value(driver.cuDevResourceGenerateDesc([part], 1))
            flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
            context = _value(driver.cuGreenCtxCreate(text, gpu, flags))
            flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            pointers.append(int(_value(driver.cuGreenCtxStreamCreate(context, flags, 0))))
    except (AttributeError, RuntimeError) as error:  # of the bindings, where the driver lacks a function
        raise ExecutionError(
            f"green contexts: got a driver without them ({error}), expected CUDA 12.4; leave them out"
        ) from None
    return pointers


def _equal_parts(driver: Any, whole: Any, num_shares: int) -> list[Any]:
    """Return the largest equal shares of the SMs of `whole` that the driver can make."""
    num_sms = whole.sm.smCount
    for share in range(num_sms // num_shares // _SM_STEP * _SM_STEP, 0, -_SM_STEP):
        parts, count, _ = _values(driver.cuDevSmResourceSplitByCount(num_shares, whole, 0, share))
        if count == num_shares:
            return list(parts)
    raise ExecutionError(
        f"green contexts: got {num_shares} ranks on a GPU of {num_sms} SMs, expected {_SM_STEP} SMs for each; "
        "leave them out"
    )


def _value(answer: tuple[Any, Any]) -> Any:
    """Return the value in an answer of the driver that contains a status and a value."""
    return _values(answer)[0]


def _values(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of an answer of the driver, which begins with an error code."""
    code, *values = answer
    if int(code):
        raise ExecutionError(
            f"green contexts: got error {int(code)} of the CUDA driver ({code.name}), expected none; leave them out"
        )
    return tuple(values)
