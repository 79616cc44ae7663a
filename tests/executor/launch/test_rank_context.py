"""Where ranks meet under torchrun, and how they part."""

from itertools import count

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

from pipesched.executor.launch import meeting, rank_context
from pipesched.executor.launch.rank_device import RankDevice
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from tests.executor.pipelines import job


def test_ranks_that_are_started_again_do_not_find_what_those_before_them_left(monkeypatch):
    """The agent of torchrun keeps one store for all attempts, and each attempt counts its meetings from 0."""
    kept = HashStore()
    monkeypatch.setattr(rank_context, "_lasting", lambda meet, process, size: kept)
    is_there = []
    for restart in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restart)
        monkeypatch.setattr(rank_context, "_meetings", count())
        store = rank_context._store("env://", 0, 2, rank_context.timedelta(seconds=1))
        is_there.append(store.check(["address"]))
        store.set("address", "here")
    assert is_there == [False, False]


class Communicator:
    """Rank 0's end of a channel; to destroy it would wait for ever."""

    def __init__(self, told):
        self.told = told

    def abort(self):
        self.told.append("abort")


@pytest.fixture
def told(monkeypatch):
    """The calls on the groups of a run of one process, in order."""
    told = []
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(rank_context, "_store", lambda *where: HashStore())
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **how: told.append(f"init {backend}"))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "barrier", lambda group=None: told.append(f"barrier {group}"))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: told.append("destroy"))
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", lambda: told.append("give up"))
    monkeypatch.setattr(meeting.atexit, "register", lambda function: told.append("at exit"))
    yield told
    meeting._failed.clear()


def connected(monkeypatch, told, backend):
    """Return the context of a run over `backend` that has communicators."""
    place = RankDevice(torch.device("cpu"), backend, 1, True)
    monkeypatch.setattr(rank_context, "placed", lambda *asked: place)

    class Made(rank_context.Groups):
        def __init__(self, *how):
            super().__init__(*how)
            self._channels[0, 1] = Communicator(told)

    monkeypatch.setattr(rank_context, "Groups", Made)
    schedule = lower(build("gpipe", 1, 1))
    return rank_context.connected(job(schedule, timeout_s=1.0), schedule, "file://here")


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_run_that_is_over_meets_over_gloo_and_destroys_its_groups(backend, told, monkeypatch):
    with connected(monkeypatch, told, backend):
        told.append("run")
    assert told == ["init gloo", "run", "barrier None", "destroy"]


def test_communicators_of_a_failed_run_are_aborted_when_its_error_is_told(told, monkeypatch):
    with pytest.raises(ZeroDivisionError), connected(monkeypatch, told, "nccl"):
        raise ZeroDivisionError
    assert told == ["init gloo", "at exit"]
    told.append("error")
    meeting.abort_failed()
    meeting.abort_failed()
    assert told == ["init gloo", "at exit", "error", "abort"]


def test_the_next_run_of_a_process_gives_up_the_groups_of_a_failed_one(told, monkeypatch):
    with pytest.raises(ZeroDivisionError), connected(monkeypatch, told, "nccl"):
        raise ZeroDivisionError
    told.clear()
    with connected(monkeypatch, told, "nccl"):
        pass
    assert told == ["abort", "give up", "init gloo", "barrier None", "destroy"]


def test_a_failed_run_over_gloo_destroys_its_groups_at_once(told, monkeypatch):
    with pytest.raises(ZeroDivisionError), connected(monkeypatch, told, "gloo"):
        raise ZeroDivisionError
    assert told == ["init gloo", "destroy"]
