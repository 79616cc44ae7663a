"""The op that a device stands at, while the host is far ahead of it."""

import threading
from random import Random

import pytest
import torch

from pipesched.executor.core import DevicePosition, polled
from pipesched.schedules.ops import forward
from tests.executor.core.fake_device import FakeDevice

GPU = torch.device("cuda", 0)
OPS = [forward(0, microbatch) for microbatch in range(40)]


def position_of(device, **listeners):
    return DevicePosition(GPU, make_event=device.make_event, **listeners)


def launch_all(device, position, work_ns):
    """Launch ops of these lengths, and return when the device begins each."""
    begun_ns = []
    for index, (op, length_ns) in enumerate(zip(OPS, work_ns, strict=False)):
        position.at(index, op)
        begun_ns.append(max(device.idle_ns, device.now_ns))
        device.launch(length_ns)
    return begun_ns


@pytest.mark.parametrize("seed", range(20))
def test_the_oldest_open_op_is_the_last_one_that_the_device_has_begun_and_each_is_told_once_in_order(seed):
    random, device, told = Random(seed), FakeDevice(), []
    position = position_of(device, reach=lambda index, op: told.append((index, op)))
    device.launch(1000)  # work before the list
    begun_ns = launch_all(device, position, [random.randrange(1, 10_000) for _ in OPS])
    assert position.oldest_open() is None
    while device.now_ns < device.idle_ns + 5000:
        expected = sum(ns <= device.now_ns for ns in begun_ns) - 1
        assert position.oldest_open() == (None if expected < 0 else expected)
        device.now_ns += random.randrange(3000)
    assert told == [*enumerate(OPS)], "also those between two polls"


def test_the_position_is_told_without_waiting_and_events_are_made_once():
    device = FakeDevice()
    position = position_of(device)
    for _ in range(5):
        launch_all(device, position, [1000] * 40)
        now_ns = device.now_ns
        position.oldest_open()
        assert (device.num_waits, device.now_ns) == (0, now_ns)
        device.now_ns = device.idle_ns
        position.oldest_open()
    assert device.num_made == 40


def test_a_wait_begins_and_ends_where_the_device_comes_to_it():
    device, told = FakeDevice(), []
    position = position_of(
        device, reach=lambda index, op: told.append(index), wait=lambda whom: told.append(f"for {whom}")
    )
    position.at(0, OPS[0])
    device.launch(1000)
    position.at(1, OPS[1])
    position.wait(3)
    device.launch(5000)  # until the message has come
    position.wait(-1)
    position.at(2, OPS[2])
    seen = []
    for _ in range(4):
        position.oldest_open()
        seen.append([*told])
        device.now_ns += 2000
    assert seen == [[0], [0, 1, "for 3"], [0, 1, "for 3"], [0, 1, "for 3", "for -1", 2]]


class Gate:
    """An event that the device reaches when the test says so."""

    def __init__(self, is_open):
        self.is_open = is_open

    def record(self):
        pass

    def query(self):
        return self.is_open()


def test_a_thread_tells_the_op_while_the_host_is_blocked():
    is_open, reached, blocked_ns = threading.Event(), threading.Event(), []
    position = DevicePosition(
        GPU, lambda index, op: (blocked_ns.append(index), reached.set()), make_event=lambda: Gate(is_open.is_set)
    )
    with polled([position], poll_s=0.001):
        position.at(5, OPS[5])
        assert blocked_ns == []
        is_open.set()
        assert reached.wait(60)
    assert blocked_ns == [5]
    assert "device position" not in [thread.name for thread in threading.enumerate()]


def test_the_end_of_the_run_tells_the_last_op_and_a_device_that_fails_ends_the_thread():
    told = []
    position = DevicePosition(GPU, lambda index, op: told.append(index), make_event=lambda: Gate(lambda: True))
    with polled([position], poll_s=1000):
        position.at(8, OPS[8])
    assert told == [8]

    def fail():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    failing = DevicePosition(GPU, make_event=lambda: Gate(fail))
    with polled([failing], poll_s=0.001):
        failing.at(0, OPS[0])


def test_nobody_polls_where_there_is_no_device():
    before = threading.active_count()
    with polled([]):
        assert threading.active_count() == before
