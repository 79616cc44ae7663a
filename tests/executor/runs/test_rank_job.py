"""The rank and op that are named when a GPU hangs, after its host has launched all ops."""

import threading
import time

import pytest
import torch

from pipesched.executor import NOBODY, waiting_for
from pipesched.executor.launch import ProgressPage, standstill
from pipesched.executor.launch.standstill import Stillness
from pipesched.executor.runs.rank_job import RankListener, following_device
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute

OPS = lower(build("1f1b", 2, 6)).ops
PATIENCE_S = 60


class Stream:
    """The work of a GPU, which reaches as many of its events as it may."""

    def __init__(self):
        self.may_reach, self.num_recorded = 0, 0


class Event:
    """As `torch.cuda.Event`."""

    def __init__(self, enable_timing):
        assert not enable_timing, "the position needs no times"

    def record(self, stream):
        self._stream, self._number = stream, stream.num_recorded
        stream.num_recorded += 1

    def query(self):
        return self._number < self._stream.may_reach


@pytest.fixture
def streams(monkeypatch):
    streams = Stream(), Stream()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", streams.__getitem__)
    monkeypatch.setattr("pipesched.executor.errors._wait_listeners", [])
    return streams


def followed(page, number):
    listener = RankListener(page.writer(number), device=page.device_row(number))
    return following_device(listener, torch.device("cuda", number))


def until(is_true):
    until_s = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < until_s
        time.sleep(0.001)


def test_a_hang_names_the_op_at_which_the_device_stands(streams, tmp_path):
    """Rank 0 hangs in its fifth op; the stream of rank 1 waits for it, whose host is at its end as well."""
    hung, place = streams[0], 4
    with ProgressPage.create(tmp_path / "page", 2) as page:
        hung.may_reach = place + 1
        with followed(page, 0) as told:
            for index, op in enumerate(OPS[0]):
                told.at(index, op)
            until(lambda: page.read(0).place == place)
            assert page.read_host(0).text == str(OPS[0][-1]), "the host has come to the end"
            with followed(page, 1) as told:
                for index, op in enumerate(OPS[1]):
                    told.at(index, op)
                    if isinstance(op, Compute) and not streams[1].may_reach:
                        with waiting_for("the activation 0 of stage 0", 0):
                            streams[1].may_reach = streams[1].num_recorded  # to the wait, not beyond
                until(lambda: page.read(1).whom == 0)
                states = {rank: page.read(rank)._replace(rank=rank) for rank in (0, 1)}
        message = str(standstill(states))
        first = next(op for op in OPS[1] if isinstance(op, Compute))
        assert message.startswith(f"rank 0 failed at {OPS[0][place]}")
        assert f"rank 1 at {first} has waited" in message


def test_a_rank_whose_host_is_done_moves_as_long_as_its_device_does(streams, tmp_path, monkeypatch):
    with ProgressPage.create(tmp_path / "page", 1) as page, followed(page, 0) as told:
        for index, op in enumerate(OPS[0]):
            told.at(index, op)
        now_s = [time.monotonic() + 100]
        stillness = Stillness(2.0)
        for count in range(1, 9):
            streams[0].may_reach = count
            until(lambda count=count: page.read(0).num_ops == count)
            with monkeypatch.context() as patched:
                patched.setattr(time, "monotonic", lambda: now_s[0])
                assert not stillness.is_over([page.read(0)], lambda: True)
                now_s[0] += 1.5
        now_s[0] += 1.0
        monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
        assert stillness.is_over([page.read(0)], lambda: True)


def test_a_wait_of_the_host_is_told_when_the_device_comes_to_it_and_the_host_is_heard_afterwards(streams, tmp_path):
    with ProgressPage.create(tmp_path / "page", 1) as page:
        streams[0].may_reach = 1
        with followed(page, 0) as told:
            told.at(0, OPS[0][0])
            with waiting_for("the other ranks", 1):
                until(lambda: page.read(0).num_ops == 1)
                assert page.read(0).whom == NOBODY, "the device is still at its op"
                streams[0].may_reach = 2
                until(lambda: page.read(0).whom == 1)
            streams[0].may_reach = 3
            until(lambda: page.read(0).whom == NOBODY)
        with waiting_for("the end", 1):
            assert page.read(0).whom == 1


def test_on_a_cpu_the_position_of_the_host_is_right_and_no_thread_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("pipesched.executor.errors._wait_listeners", [])
    with ProgressPage.create(tmp_path / "page", 1) as page:
        listener, before = RankListener(page.writer(0), device=page.device_row(0)), threading.active_count()
        with following_device(listener, torch.device("cpu")) as told:
            assert told is listener
            assert threading.active_count() == before
