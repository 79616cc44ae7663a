"""Which cores there are for this process."""

import os

import pytest

from pipesched.profiles.processes import num_cores, usable_cores


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
