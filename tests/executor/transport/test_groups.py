"""The end of communicators: all are aborted at once, and none for long."""

import threading
import time

import pytest
import torch
import torch.distributed as dist

from pipesched.executor.transport import Groups, groups
from tests.executor.transport.recorded_dist import RecordedDist

CPU = torch.device("cpu")


@pytest.fixture
def made(monkeypatch):
    """The groups of rank 0 of three: four directions, of which rank 0 has two, and the replicas of two stages."""
    RecordedDist(monkeypatch)
    made = Groups("nccl", CPU)
    made.of_channels([(0, 1), (1, 0), (1, 2), (2, 1)])
    made.of_sums({0: (0, 2), 1: (1, 2)})
    return made


def test_all_communicators_of_the_rank_are_aborted_at_once(made, monkeypatch):
    """One by one would wait for ever: NCCL frees a communicator when the kernels of the others are gone."""
    together = threading.Barrier(3, timeout=5.0)
    met = []

    def abort(group):
        together.wait()
        met.append(group.key[0])

    monkeypatch.setattr("tests.executor.transport.recorded_dist.Group.abort", abort)
    made.abort()
    assert sorted(met) == [(0, 1), (0, 2), (1, 0)]


def test_an_abort_that_hangs_or_fails_keeps_nobody(made, monkeypatch):
    monkeypatch.setattr(groups, "_ABORT_S", 0.05)
    released = threading.Event()

    def abort(group):
        if group.key[0] == (0, 1):
            raise RuntimeError("it is gone")
        released.wait(30.0)

    monkeypatch.setattr("tests.executor.transport.recorded_dist.Group.abort", abort)
    begun_s = time.monotonic()
    made.abort()
    assert time.monotonic() - begun_s < 5.0
    released.set()


def test_gloo_has_no_communicators_that_could_hang(monkeypatch):
    RecordedDist(monkeypatch)
    over_gloo = Groups("gloo", CPU)
    assert not over_gloo.are_communicators
    assert over_gloo.of_sums({0: (0, 1), 1: (2,)}).keys() == {0}
    assert not over_gloo.are_communicators


def test_a_rank_gets_the_groups_of_its_own_stages_only(made):
    assert made.are_communicators
    assert made.of_sums({0: (0, 2), 1: (1, 2), 2: (0,)}).keys() == {0}
    assert made.of_channels([(1, 2)])[1, 2] == dist.GroupMember.NON_GROUP_MEMBER
