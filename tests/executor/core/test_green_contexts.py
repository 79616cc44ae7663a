"""Shares of a GPU's multiprocessors, on a double of the bindings of the CUDA driver that keeps its books."""

from __future__ import annotations

from enum import IntEnum
from importlib import import_module
from types import SimpleNamespace

import pytest

from pipesched.executor import ExecutionError
from pipesched.executor.core import green_pointers


class Code(IntEnum):
    SUCCESS = 0
    INVALID_VALUE = 1
    NOT_SUPPORTED = 801
    INVALID_RESOURCE_CONFIGURATION = 915


class Driver:
    """A driver that splits SMs from the front, in steps of eight; it refuses to split the rest of a split again.

    Attributes:
        shares: First and last SM of each green context.
    """

    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def __init__(self, num_sms, most=132):
        self.num_sms, self.most = num_sms, most
        self.shares = []

    def cuDeviceGet(self, index):  # noqa: N802
        return Code.SUCCESS, index

    def cuDeviceGetDevResource(self, gpu, kind):  # noqa: N802
        return Code.SUCCESS, self._resource(0, self.num_sms, is_whole=True)

    def cuDevSmResourceSplitByCount(self, count, whole, flags, least):  # noqa: N802
        if not whole.is_whole:
            return Code.INVALID_RESOURCE_CONFIGURATION, None, None, None
        if least > whole.sm.smCount or least % 8:
            return Code.INVALID_VALUE, None, None, None
        count = 1 if least > self.most else count
        parts = [self._resource(index * least, least) for index in range(count)]
        return Code.SUCCESS, parts, count, self._resource(count * least, whole.sm.smCount - count * least)

    def cuDevResourceGenerateDesc(self, parts, count):  # noqa: N802
        return Code.SUCCESS, parts[0]

    def cuGreenCtxCreate(self, part, gpu, flags):  # noqa: N802
        self.shares.append((part.first, part.first + part.sm.smCount - 1))
        return Code.SUCCESS if flags == 1 else Code.INVALID_VALUE, len(self.shares)

    def cuGreenCtxStreamCreate(self, context, flags, priority):  # noqa: N802
        return Code.SUCCESS if flags == 1 else Code.INVALID_VALUE, 1000 + context

    def _resource(self, first, num_sms, *, is_whole=False):
        return SimpleNamespace(first=first, sm=SimpleNamespace(smCount=num_sms), is_whole=is_whole)


@pytest.mark.parametrize(
    ("num_ranks", "shares"),
    [(1, [(0, 127)]), (2, [(0, 63), (64, 127)]), (4, [(0, 31), (32, 63), (64, 95), (96, 127)])],
)
def test_ranks_get_equal_shares_of_132_multiprocessors_that_do_not_overlap(num_ranks, shares):
    driver = Driver(132)
    assert green_pointers(0, num_ranks, lambda name: driver) == [1001 + rank for rank in range(num_ranks)]
    assert driver.shares == shares


def test_shares_become_smaller_until_the_driver_makes_as_many_as_there_are_ranks():
    driver = Driver(132, most=48)
    green_pointers(0, 2, lambda name: driver)
    assert driver.shares == [(0, 47), (48, 95)]


def test_too_many_ranks_are_refused():
    with pytest.raises(ExecutionError, match="got 17 ranks on a GPU of 132 SMs, expected 8 SMs for each"):
        green_pointers(0, 17, lambda name: Driver(132))


def test_a_driver_without_them_is_refused():
    def missing(*arguments):
        raise RuntimeError('Function "cuDevSmResourceSplitByCount" not found')  # as the bindings do

    driver = Driver(132)
    driver.cuDevSmResourceSplitByCount = missing
    with pytest.raises(ExecutionError, match=r"expected CUDA 12\.4"):
        green_pointers(0, 2, lambda name: driver)


def test_a_machine_without_the_bindings_is_told_what_to_install():
    with pytest.raises(ExecutionError, match="cuda-bindings; install the package"):
        green_pointers(0, 2, lambda name: import_module("no_such_module"))


def test_an_error_of_the_driver_is_reported_by_its_number_and_name():
    driver = Driver(132)
    driver.cuGreenCtxCreate = lambda *_: (Code.NOT_SUPPORTED, None)
    with pytest.raises(ExecutionError, match=r"got error 801 of the CUDA driver \(NOT_SUPPORTED\)"):
        green_pointers(0, 2, lambda name: driver)
