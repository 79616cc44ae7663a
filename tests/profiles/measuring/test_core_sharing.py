"""What sharing a core costs: a pass beside companions over one alone, and everything put back."""

import os
import time
from typing import ClassVar

import pytest
import torch

from pipesched.profiles import ProfileError
from pipesched.profiles.measuring import ProfilerSettings, core_sharing, measure_sharing
from pipesched.profiles.models import resolve_model
from tests.profiles.measuring.test_background_load import children

MLP = "mlp:width=4,layers=2"


class Clock:
    """A pass takes 8 ms alone and a quarter more for every companion that runs; time passes with passes alone."""

    now_s = 0.0
    running = 0
    used: ClassVar[list[tuple[int, int]]] = []

    def __init__(self, *_arguments, **_settings):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        pass

    def use(self, size, count):
        Clock.running = count
        self.used.append((size, count))


def test_the_price_is_the_processor_time_among_others_over_that_alone(monkeypatch):
    def run(*_arguments):
        Clock.now_s += 0.008 * (1 + 0.25 * Clock.running)

    monkeypatch.setattr(core_sharing, "Companions", Clock)
    monkeypatch.setattr(core_sharing.LayerChain, "run", run)
    monkeypatch.setattr(time, "thread_time", lambda: Clock.now_s)
    told = []
    prices = measure_sharing(resolve_model(MLP), ProfilerSettings(microbatch_sizes=(1, 2), repeats=3), 4, told.append)
    assert [price.num_processes for price in prices] == [2, 3, 4]
    assert [price.factors for price in prices] == [(pytest.approx(factor),) * 11 for factor in (1.25, 1.5, 1.75)]
    assert Clock.used == [(size, count) for size in (1, 2, 1) for count in (0, 1, 0, 2, 0, 3)]
    assert told == pytest.approx([1 / 3, 2 / 3, 1.0])


@pytest.mark.distributed
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes are bound to no core here")
def test_processes_share_one_core_and_afterwards_have_all_of_them_again():
    before, cores, threads = children(), os.sched_getaffinity(0), torch.get_num_threads()
    shared = []

    def look(_fraction):
        shared.append({*map(frozenset, map(os.sched_getaffinity, [0, *map(int, set(children()) - set(before))]))})

    (price,) = measure_sharing(resolve_model(MLP), ProfilerSettings(microbatch_sizes=(1,), repeats=1), 2, look)
    assert (price.num_processes, len(price.factors)) == (2, 11)
    assert all(factor > 0 for factor in price.factors)
    assert shared == [{frozenset({min(cores)})}]
    assert (children(), os.sched_getaffinity(0), torch.get_num_threads()) == (before, cores, threads)


def test_where_processes_are_bound_to_no_core_it_is_refused(monkeypatch):
    monkeypatch.setattr(core_sharing, "can_bind", lambda: False)
    with pytest.raises(
        ProfileError, match="got 2 processes on a system that cannot bind processes to cores, expected Linux"
    ):
        measure_sharing(resolve_model(MLP), ProfilerSettings(microbatch_sizes=(1,)), 2)
