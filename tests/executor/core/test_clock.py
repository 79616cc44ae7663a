"""The clock of a device: times read back against the times at which a fake device reached its events."""

import time
from random import Random

import pytest
import torch

from pipesched.executor.core import CudaClock, HostClock, Recorder, make_clock
from tests.executor.core.fake_device import FakeDevice

GPU = torch.device("cuda", 0)
NEAR_NS = 1000


def clock_of(device):
    return CudaClock(GPU, device.make_event, device.read_ns)


def run(clock, device, random, length_ns, count):
    """Run ops of random lengths, launched ahead of the device; return each mark with the true time of its event."""
    clock.begin()
    marks = []
    for _ in range(count):
        work_ns = round(2 * length_ns / count * random.random())
        device.launch(work_ns)
        device.now_ns += round(work_ns * random.random())
        marks.append((clock.mark(), max(device.idle_ns, device.now_ns)))
    clock.end()
    return marks


@pytest.mark.parametrize("length_s", [1e-4, 1.0, 100.0])
@pytest.mark.parametrize("drift", [-1e-4, 0.0, 1e-5])
def test_times_read_back_within_a_microsecond_whatever_the_drift(drift, length_s):
    for seed in range(5):
        device, random = FakeDevice(drift), Random(seed)
        clock = clock_of(device)
        marks = run(clock, device, random, length_s * 1e9, 300)
        assert max(abs(clock.read_ns(mark) - true_ns) for mark, true_ns in marks) <= NEAR_NS


def test_ten_seconds_without_a_mark_read_back_within_a_microsecond():
    device = FakeDevice(1e-4)
    clock = clock_of(device)
    clock.begin()
    device.launch(10_000_000_000)
    mark = clock.mark()
    device.launch(3_000_000)
    clock.end()
    assert abs(clock.read_ns(mark) - (device.idle_ns - 3_000_000)) <= NEAR_NS


def test_the_tightest_tie_counts_where_the_host_is_interrupted():
    """Nine of ten ties are late by up to a millisecond, at the device or at the host."""
    latencies_ns = [(random.randrange(10**6), random.randrange(10**6)) for random in map(Random, range(9))]
    device = FakeDevice(1e-4, latencies_ns=[*latencies_ns, (400, 900)])
    clock = clock_of(device)
    clock.begin()
    marks = []
    for _ in range(100):
        device.launch(5_000_000)  # so the device is behind the host, and a late launch changes nothing
        marks.append((clock.mark(), device.idle_ns))
    clock.end()
    assert max(abs(clock.read_ns(mark) - true_ns) for mark, true_ns in marks) <= NEAR_NS


def test_a_tie_counts_in_the_middle_of_the_time_that_it_takes():
    device = FakeDevice(latencies_ns=[(5000, 5000)])
    clock = clock_of(device)
    clock.begin()
    device.launch(1_000_000_000)
    mark, true_ns = clock.mark(), device.idle_ns
    clock.end()
    assert abs(clock.read_ns(mark) - true_ns) <= NEAR_NS


def test_a_mark_waits_for_nothing():
    device = FakeDevice()
    clock = clock_of(device)
    clock.begin()
    before, now_ns = device.num_waits, device.now_ns
    for _ in range(50):
        device.launch(1_000_000)
        clock.mark()
    assert (device.num_waits, device.now_ns) == (before, now_ns)


def test_a_run_makes_no_event_that_one_as_long_has_made_also_behind_one_that_failed():
    device, random = FakeDevice(), Random(0)
    clock = clock_of(device)
    run(clock, device, random, 1e9, 200)
    made = device.num_made
    assert made < 200 + 40
    for _ in range(20):
        run(clock, device, random, 1e9, 200)
    clock.begin()
    for _ in range(200):
        clock.mark()
    run(clock, device, random, 1e9, 200)  # nobody has ended the run before
    assert device.num_made == made


def test_each_run_is_read_anew():
    device, random = FakeDevice(1e-4), Random(0)
    clock = clock_of(device)
    for length_ns in (1e9, 1e7, 2e9):
        marks = run(clock, device, random, length_ns, 100)
        assert max(abs(clock.read_ns(mark) - true_ns) for mark, true_ns in marks) <= NEAR_NS
        device.now_ns += 60_000_000_000  # the clock drifts between two runs as well


def test_clocks_of_two_devices_agree_though_their_events_know_nothing_of_each_other():
    first_device, other_device = FakeDevice(1e-4), FakeDevice(-1e-4, offset_ns=-3_000_000_000)
    clocks = [clock_of(first_device), clock_of(other_device)]
    for clock in clocks:
        clock.begin()
    marks = []
    for _ in range(1000):
        for device in (first_device, other_device):
            device.launch(5_000_000)
        marks.append([clock.mark() for clock in clocks])
    for clock in clocks:
        clock.end()
    for first, second in marks:
        assert abs(clocks[0].read_ns(first) - clocks[1].read_ns(second)) <= 2 * NEAR_NS
    with pytest.raises(RuntimeError, match="two devices"):
        first_device.make_event().elapsed_time(other_device.make_event())


def test_the_recorder_reads_the_times_of_the_device_and_an_op_that_is_extended():
    device = FakeDevice(1e-4)
    recorder = Recorder(clock_of(device))
    recorder.begin(0)
    true_ns = []
    for _ in range(10):
        posted = recorder.mark()
        device.launch(2_000_000)
        start, begun_ns = recorder.mark(), device.idle_ns
        device.launch(5_000_000)
        recorder.add(posted, start, recorder.mark())
        true_ns.append([begun_ns - 2_000_000, begun_ns, device.idle_ns])
    recorder.extend(3, recorder.mark())
    true_ns[3][2] = device.idle_ns
    recorder.end(0)
    for times, true in zip(recorder.times_ns(), true_ns, strict=True):
        assert times == pytest.approx(true, abs=NEAR_NS, rel=0)


def test_a_recorder_that_keeps_nothing_records_no_event():
    device = FakeDevice()
    recorder = Recorder(clock_of(device), keeps=False)
    recorder.begin(0)
    for _ in range(10):
        recorder.add(recorder.mark(), recorder.mark(), recorder.mark())
    recorder.end(0)
    assert (len(recorder), device.num_recorded) == (10, 0)


def test_the_events_of_a_gpu_are_recorded_on_its_current_stream_and_know_their_times(monkeypatch):
    made = []

    class Event:
        def __init__(self, enable_timing):
            self.is_timed, self.streams = enable_timing, []
            made.append(self)

        def record(self, stream):
            self.streams.append(stream)

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return 1.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: f"the stream of {index}")
    clock = make_clock(torch.device("cuda", 3))
    clock.begin()
    clock.mark()
    clock.end()
    assert all(event.is_timed for event in made)
    assert {stream for event in made for stream in event.streams} == {"the stream of 3"}


def test_the_clock_of_a_cpu_is_the_hosts():
    clock = make_clock(torch.device("cpu"))
    assert isinstance(clock, HostClock)
    clock.begin()
    before_ns = time.perf_counter_ns()
    mark = clock.mark()
    clock.end()
    assert before_ns <= clock.read_ns(mark) <= time.perf_counter_ns()
