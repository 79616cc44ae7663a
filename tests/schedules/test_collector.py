"""Python's collector waits for a block, and is as it was behind it."""

import gc

import pytest

from pipesched.schedules.common import paused_collector


@pytest.fixture(autouse=True)
def _collector():
    yield
    gc.enable()


def test_the_collector_waits_until_the_block_is_over_also_in_one_within_it():
    with paused_collector():
        with paused_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_who_has_turned_it_off_keeps_it_off():
    gc.disable()
    with paused_collector():
        pass
    assert not gc.isenabled()
