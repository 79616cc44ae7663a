"""Shares of a GPU's multiprocessors, on a double of the CUDA driver that keeps its books."""

from __future__ import annotations

import ctypes

import pytest

from pipesched.executor import ExecutionError
from pipesched.executor.core import green_pointers


class Driver:
    """A driver that hands out SMs from the front, in steps of eight.

    Attributes:
        shares: First and last SM of each green context.
    """

    def __init__(self, num_sms):
        self.num_sms = num_sms
        self.shares = []

    def cuDeviceGet(self, gpu, index):  # noqa: N802
        return 0

    def cuDeviceGetDevResource(self, gpu, resource, kind):  # noqa: N802
        _fill(resource, 0, self.num_sms)
        return 0

    def cuDevSmResourceSplitByCount(self, part, count, whole, rest, flags, least):  # noqa: N802
        first, num_sms = _read(whole)
        if least > num_sms or least % 8:
            return 1
        _fill(part, first, least)
        _fill(rest, first + least, num_sms - least)
        return 0

    def cuDevResourceGenerateDesc(self, text, parts, count):  # noqa: N802
        first, num_sms = _read(parts)
        text._obj.value = 1 + first
        self._num_sms = num_sms
        return 0

    def cuGreenCtxCreate(self, context, text, gpu, flags):  # noqa: N802
        self.shares.append((text.value - 1, text.value - 2 + self._num_sms))
        context._obj.value = len(self.shares)
        return 0 if flags == 1 else 1

    def cuGreenCtxStreamCreate(self, stream, context, flags, priority):  # noqa: N802
        stream._obj.value = 1000 + context.value
        return 0 if flags == 1 else 1


def _fill(resource, first, num_sms):
    resource[96:100], resource[100:104] = num_sms.to_bytes(4, "little"), first.to_bytes(4, "little")


def _read(resource):
    return int.from_bytes(resource[100:104], "little"), int.from_bytes(resource[96:100], "little")


@pytest.mark.parametrize(
    ("num_ranks", "shares"),
    [(1, [(0, 127)]), (2, [(0, 63), (64, 127)]), (4, [(0, 31), (32, 63), (64, 95), (96, 127)])],
)
def test_ranks_get_equal_shares_of_132_multiprocessors_that_do_not_overlap(num_ranks, shares):
    driver = Driver(132)
    assert green_pointers(0, num_ranks, lambda name: driver) == [1001 + rank for rank in range(num_ranks)]
    assert driver.shares == shares


def test_too_many_ranks_are_refused():
    with pytest.raises(ExecutionError, match="got 17 ranks on a GPU of 132 SMs, expected 8 SMs for each"):
        green_pointers(0, 17, lambda name: Driver(132))


def test_a_driver_without_them_is_refused():
    with pytest.raises(ExecutionError, match=r"expected CUDA 12\.4"):
        green_pointers(0, 2, lambda name: ctypes.CDLL(None))


def test_an_error_of_the_driver_is_reported_by_its_number():
    driver = Driver(132)
    driver.cuGreenCtxCreate = lambda *_: 801
    with pytest.raises(ExecutionError, match="got error 801 of the CUDA driver"):
        green_pointers(0, 2, lambda name: driver)
