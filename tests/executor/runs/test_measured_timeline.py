from dataclasses import replace

import pytest

from pipesched.executor.runs.measured_timeline import measured_timeline
from pipesched.schedules import Span, make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Recv, Reduce, Send, Step
from pipesched.simulator.analysis import usage

SCHEDULE = lower(build("gpipe", 2, 1))
# rank 0: 0F0 0SEND_F0 0RECV_B0 0B0 0STEP;  rank 1: 1RECV_F0 1F0 1B0 1SEND_B0 1STEP
TIMES_NS = [
    [(100, 100, 200), (200, 200, 210), (210, 210, 220), (220, 500, 600), (600, 600, 620)],
    [(90, 90, 95), (95, 260, 300), (300, 300, 400), (400, 400, 410), (410, 410, 430)],
]


def spans(times=TIMES_NS, held=((), ())):
    timeline = measured_timeline(SCHEDULE, times, held)
    return timeline, {str(span.op): span for span in timeline.spans}


def test_the_lists_are_as_the_test_draws_them():
    assert [[str(op) for op in row] for row in SCHEDULE.ops] == [
        ["0F0", "0SEND_F0", "0RECV_B0", "0B0", "0STEP"],
        ["1RECV_F0", "1F0", "1B0", "1SEND_B0", "1STEP"],
    ]


def ns(span):
    return tuple(round(seconds * 1e9) for seconds in (span.posted_s, span.start_s, span.end_s))


def test_time_begins_with_the_first_work():
    timeline, by_name = spans()
    assert ns(by_name["0F0"]) == (0, 0, 100)
    assert ns(by_name["1RECV_F0"])[0] == -10
    assert timeline.makespan_s == pytest.approx(520e-9)


def test_a_transfer_lasts_from_both_posts_to_the_computation_that_needs_it():
    _, by_name = spans()
    assert ns(by_name["0SEND_F0"]) == (100, 100, 160)
    assert ns(by_name["1RECV_F0"]) == (-10, 100, 160)
    assert ns(by_name["1SEND_B0"]) == (300, 300, 400)
    assert ns(by_name["0RECV_B0"]) == (110, 300, 400)


def test_a_transfer_never_ends_before_it_starts_even_if_clocks_disagree():
    late = [TIMES_NS[0], [(90, 90, 95), (95, 190, 300), *TIMES_NS[1][2:]]]
    _, by_name = spans(late)
    assert ns(by_name["1RECV_F0"])[1:] == (100, 100)


def test_a_sum_begins_when_the_last_replica_has_come_to_it():
    rows = [[Reduce(0), Step(0), Reduce(0)], [Reduce(0), Step(0), Reduce(0)], [Step(1)]]
    times = [
        [(100, 100, 250), (250, 250, 260), (270, 270, 300)],
        [(200, 200, 240), (240, 240, 255), (255, 255, 310)],
        [(90, 90, 95)],
    ]
    timeline = measured_timeline(make_schedule("reductions", 2, 1, rows), times, ((), (), ()))
    instants = [ns(span) for span in timeline.spans if isinstance(span.op, Reduce)]
    zero = instants[0][0] - 100
    assert [tuple(t - zero for t in span) for span in instants] == [
        (100, 200, 250),
        (270, 270, 300),
        (200, 200, 240),
        (255, 270, 310),
    ]


def test_a_sum_never_begins_after_its_end_even_if_clocks_disagree():
    rows = [[Reduce(0)], [Reduce(0)]]
    timeline = measured_timeline(
        make_schedule("reductions", 1, 1, rows), [[(100, 100, 150)], [(200, 200, 240)]], ((), ())
    )
    assert [span.start_s <= span.end_s for span in timeline.spans] == [True, True]


def test_spans_come_by_rank_then_in_the_lists_order():
    timeline, _ = spans()
    assert [(span.rank, span.op) for span in timeline.spans] == [
        (rank, op) for rank, row in enumerate(SCHEDULE.ops) for op in row
    ]


def test_work_keeps_the_times_that_were_measured():
    timeline, _ = spans()
    measured = [times for row in TIMES_NS for times in row]
    for span, times in zip(timeline.spans, measured, strict=True):
        if not isinstance(span.op, Send | Recv):
            assert ns(span) == tuple(t - 100 for t in times)
            assert isinstance(span, Span)


def test_memory_is_sampled_after_every_op_of_each_device():
    timeline, _ = spans(held=((1, 2, 3, 4, 5), (10, 20, 30, 40, 50)))
    by_device = {
        device: [(round(s.time_s * 1e9), s.total_bytes) for s in timeline.memory if s.device == device]
        for device in (0, 1)
    }
    assert by_device[0] == [(100, 1), (100, 2), (110, 3), (500, 4), (520, 5)]
    assert by_device[1] == [(-10, 10), (200, 20), (300, 30), (300, 40), (330, 50)]


def test_what_is_held_inside_an_op_alone_is_held_from_its_start_to_its_end():
    held, most = ((1, 2, 3, 4, 5), (10, 20, 30, 40, 50)), ((1, 2, 3, 4, 9), (10, 20, 30, 40, 50))
    timeline = measured_timeline(SCHEDULE, TIMES_NS, held, most)
    samples = [(round(s.time_s * 1e9), s.total_bytes) for s in timeline.memory if s.device == 0]
    assert samples == [(100, 1), (100, 2), (110, 3), (500, 4), (500, 9), (520, 5)]  # the Step is from 500 to 520


def test_ranks_that_share_a_device_add_up():
    timeline = measured_timeline(replace(SCHEDULE, rank_to_device=(0, 0)), TIMES_NS, ((1,) * 5, (10,) * 5))
    assert {sample.device for sample in timeline.memory} == {0}
    assert timeline.memory[0].total_bytes == 10
    assert timeline.memory[-1].total_bytes == 11
    assert len(timeline.memory) == 10


def test_what_a_rank_takes_from_a_post_or_a_work_to_its_next_op_is_handing_over():
    times = [[*TIMES_NS[0][:3], (220, 500, 600), (604, 604, 620)], TIMES_NS[1]]
    timeline, _ = spans(times)
    taken_ns = [(h.rank, str(h.op), round((h.end_s - h.start_s) * 1e9)) for h in timeline.hand_overs]
    assert taken_ns == [
        (0, "0SEND_F0", 10), (0, "0RECV_B0", 10), (0, "0B0", 4), (1, "1RECV_F0", 5), (1, "1SEND_B0", 10),
    ]  # fmt: skip


def test_the_post_of_a_message_that_is_waited_for_is_idle_time_of_handing_over():
    timeline, _ = spans()
    idle_s = dict(next(use for use in usage(timeline) if use.device == 0).idle_by_cause_s)
    assert {cause: round(seconds * 1e9) for cause, seconds in idle_s.items() if seconds} == {
        "downstream": 200, "hand_over": 10, "transfer": 90,
    }  # fmt: skip
