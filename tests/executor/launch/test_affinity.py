"""Which cores a rank runs on."""

import os

import pytest

from pipesched.executor.launch.affinity import local_device
from pipesched.profiles.processes import pin


def test_ranks_of_one_device_share_its_cores():
    two_pipelines = (0, 1, 0, 1)
    assert [local_device(two_pipelines, rank, rank, 4) for rank in range(4)] == [(0, 2), (1, 2), (0, 2), (1, 2)]


def test_devices_are_numbered_anew_on_every_machine():
    pipeline = (0, 1, 2, 3)
    assert [local_device(pipeline, rank, rank % 2, 2) for rank in range(4)] == [(0, 2), (1, 2), (0, 2), (1, 2)]


@pytest.fixture
def _all_cores():
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
@pytest.mark.usefixtures("_all_cores")
def test_a_device_is_as_many_cores_as_a_rank_has_threads():
    cores = sorted(os.sched_getaffinity(0))
    last = len(cores) - 1
    assert pin(0, len(cores) + 1, 1) == tuple(cores)  # not enough: everybody may run everywhere
    assert pin(last, len(cores), 1) == (cores[last],) == tuple(os.sched_getaffinity(0))
