"""Which cores there are for this process."""

import os

import pytest

from pipesched.profiles.processes import host, num_companions, num_cores, usable_cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_only_the_cores_that_this_process_may_use_count(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 1})
    assert usable_cores() == (1, 3)
    assert num_cores() == 2


def test_where_the_system_does_not_say_all_cores_count(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert usable_cores() == (0, 1, 2, 3)


def test_a_companion_stands_for_each_further_rank_up_to_the_cores_and_none_beside_a_gpu(monkeypatch):
    monkeypatch.setattr(host, "usable_cores", lambda: (0, 1, 2))
    assert [num_companions(num_ranks) for num_ranks in (1, 2, 3, 8)] == [0, 1, 2, 2]
    assert num_companions(8, "cuda") == 0
