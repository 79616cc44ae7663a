"""Runners let a judge go through all items, in whichever process."""

import os
from multiprocessing import active_children

import pytest

from pipesched.simulator.search import make_process_runner

WHO = "/proc/self"
"""A link to whoever reads it."""


@pytest.mark.parametrize("workers", [1, 2])
def test_all_items_are_evaluated_by_this_process_or_by_so_many_others(workers):
    shares = [[WHO] * 5 for _ in range(8)]
    answers = [*make_process_runner(workers)(os.readlink, lambda: shares.pop() if shares else [])]
    assert len(answers) == 40
    assert len({*answers}) <= workers
    assert (str(os.getpid()) in answers) == (workers == 1)
    assert active_children() == []
