"""The clock, the meter and the position of a real GPU; `torch.cuda._sleep` is work of a known length."""

import time
from itertools import pairwise

import pytest
import torch

from pipesched.executor.core import CudaClock, DevicePosition, Recorder, make_clock, make_meter
from pipesched.schedules.ops import forward

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

GPU = torch.device("cuda", 0)
CYCLES, MEGABYTE = 20_000_000, 2**20


def sleep():
    torch.cuda._sleep(CYCLES)


def work_ns():
    """Return how long the work takes, by events of torch alone."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(20):  # until the clock of the device, which rests at a low rate, has risen
        sleep()
    first.record()
    sleep()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) * 1e6


def test_ops_begin_and_end_when_the_device_does_and_lie_between_the_ends_of_the_run():
    expected_ns = work_ns()
    recorder = Recorder(make_clock(GPU))
    recorder.begin(0)
    begun_ns = time.perf_counter_ns()
    for _ in range(10):
        posted = recorder.mark()
        sleep()
        recorder.add(posted, posted, recorder.mark())
    launched_ns = time.perf_counter_ns()
    torch.cuda.synchronize()
    ended_ns = time.perf_counter_ns()
    recorder.end(0)
    times = recorder.times_ns()
    assert launched_ns - begun_ns < expected_ns, "no mark waits"
    assert [end - start for _, start, end in times] == pytest.approx([expected_ns] * 10, rel=0.05)
    assert all(later[1] - earlier[2] < 100_000 for earlier, later in pairwise(times))
    assert begun_ns - 20_000 <= times[0][0]
    assert times[-1][2] <= ended_ns + 20_000


def test_two_clocks_of_two_streams_agree():
    clocks, streams = [CudaClock(GPU) for _ in range(2)], [torch.cuda.Stream(GPU) for _ in range(2)]
    for clock, stream in zip(clocks, streams, strict=True):
        with torch.cuda.stream(stream):
            clock.begin()
    marks = []
    for _ in range(20):
        with torch.cuda.stream(streams[0]):
            sleep()
            first = clocks[0].mark()
            event = torch.cuda.Event()
            event.record()
        with torch.cuda.stream(streams[1]):
            streams[1].wait_event(event)
            marks.append((first, clocks[1].mark()))
    for clock, stream in zip(clocks, streams, strict=True):
        with torch.cuda.stream(stream):
            clock.end()
    for first, second in marks:
        assert -20_000 <= clocks[1].read_ns(second) - clocks[0].read_ns(first) <= 50_000


def test_the_peak_inside_an_op_is_exact_and_each_rank_has_its_own():
    torch.cuda.empty_cache()  # a cached block may be larger than the tensor
    meters = [make_meter(GPU) for _ in range(2)]
    with meters[0].turn():
        meters[0].begin_op()
        kept = torch.empty(3 * MEGABYTE, dtype=torch.uint8, device=GPU)
        temporary = torch.empty(20 * MEGABYTE, dtype=torch.uint8, device=GPU)
        del temporary
    with meters[1].turn():
        meters[1].begin_op()
        other = torch.empty(50 * MEGABYTE, dtype=torch.uint8, device=GPU)
        assert meters[1].end_op() == (50 * MEGABYTE, 50 * MEGABYTE)
    with meters[0].turn():
        assert meters[0].end_op() == (3 * MEGABYTE, 23 * MEGABYTE)
    del kept, other


def test_the_device_stands_at_the_op_that_it_works_on_while_the_host_is_done():
    position = DevicePosition(GPU)
    for index in range(10):
        position.at(index, forward(0, index))
        sleep()
    seen = [position.oldest_open()]
    while seen[-1] is None or seen[-1] < 9:
        seen.append(position.oldest_open())
    torch.cuda.synchronize()
    assert (seen[0] or 0) < 3
    assert sorted(set(seen) - {None}) == [*range(seen[0] or 0, 10)]
