from dataclasses import replace

import pytest

from pipesched.executor.runs.measured_timeline import measured_timeline
from pipesched.schedules import make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Reduce, Step
from pipesched.simulator.analysis import usage

SCHEDULE = lower(build("gpipe", 2, 1))
# rank 0: 0F0 0SEND_F0 0RECV_B0 0B0 0STEP;  rank 1: 1RECV_F0 1F0 1B0 1SEND_B0 1STEP
TIMES_NS = [
    [(100, 100, 200), (200, 200, 210), (210, 210, 220), (220, 500, 600), (600, 600, 620)],
    [(90, 90, 95), (95, 260, 300), (300, 300, 400), (400, 400, 410), (410, 410, 430)],
]


def measured(times=TIMES_NS, held=((), ()), most=None, schedule=SCHEDULE):
    return measured_timeline(schedule, times, held, most)


def ns(*seconds):
    return tuple(round(s * 1e9) for s in seconds)


def spans_of(timeline):
    """Return (posted, start, end) of each span [ns]."""
    return {str(span.op): ns(span.posted_s, span.start_s, span.end_s) for span in timeline.spans}


def test_time_begins_with_the_first_work_and_a_transfer_lasts_from_both_posts_to_the_computation_that_needs_it():
    """Spans come by rank, in the order of the lists."""
    timeline = measured()
    assert [*spans_of(timeline).items()] == [
        ("0F0", (0, 0, 100)),
        ("0SEND_F0", (100, 100, 160)),
        ("0RECV_B0", (110, 300, 400)),
        ("0B0", (120, 400, 500)),
        ("0STEP", (500, 500, 520)),
        ("1RECV_F0", (-10, 100, 160)),
        ("1F0", (-5, 160, 200)),
        ("1B0", (200, 200, 300)),
        ("1SEND_B0", (300, 300, 400)),
        ("1STEP", (310, 310, 330)),
    ]
    assert [span.rank for span in timeline.spans] == [0] * 5 + [1] * 5
    assert timeline.makespan_s == pytest.approx(520e-9)


def test_a_transfer_never_ends_before_it_starts_even_if_clocks_disagree():
    late = [TIMES_NS[0], [(90, 90, 95), (95, 190, 300), *TIMES_NS[1][2:]]]
    assert spans_of(measured(late))["1RECV_F0"][1:] == (100, 100)


def test_a_sum_begins_when_the_last_replica_has_come_to_it():
    rows = [[Reduce(0), Step(0), Reduce(0)], [Reduce(0), Step(0), Reduce(0)], [Step(1)]]
    times = [
        [(100, 100, 250), (250, 250, 260), (270, 270, 300)],
        [(200, 200, 240), (240, 240, 255), (255, 255, 310)],
        [(90, 90, 95)],
    ]
    timeline = measured_timeline(make_schedule("reductions", 2, 1, rows), times, ((), (), ()))
    sums = [span for span in timeline.spans if isinstance(span.op, Reduce)]
    instants = [ns(span.posted_s, span.start_s, span.end_s) for span in sums]
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


HELD = (1, 2, 3, 4, 5), (10, 20, 30, 40, 50)


def samples(timeline, device):
    return [(*ns(sample.time_s), sample.total_bytes) for sample in timeline.memory if sample.device == device]


def test_memory_is_sampled_after_every_op_of_each_device():
    timeline = measured(held=HELD)
    assert samples(timeline, 0) == [(100, 1), (100, 2), (110, 3), (500, 4), (520, 5)]
    assert samples(timeline, 1) == [(-10, 10), (200, 20), (300, 30), (300, 40), (330, 50)]


def test_what_is_held_inside_an_op_alone_is_held_from_its_start_to_its_end():
    timeline = measured(held=HELD, most=((1, 2, 3, 4, 9), HELD[1]))
    assert samples(timeline, 0) == [(100, 1), (100, 2), (110, 3), (500, 4), (500, 9), (520, 5)]  # the Step is from 500


def test_ranks_that_share_a_device_add_up():
    timeline = measured(held=((1,) * 5, (10,) * 5), schedule=replace(SCHEDULE, rank_to_device=(0, 0)))
    assert {sample.device for sample in timeline.memory} == {0}
    assert timeline.memory[0].total_bytes == 10
    assert timeline.memory[-1].total_bytes == 11
    assert len(timeline.memory) == 10


def test_what_a_rank_takes_from_a_post_or_a_work_to_its_next_op_is_handing_over():
    times = [[*TIMES_NS[0][:3], (220, 500, 600), (604, 604, 620)], TIMES_NS[1]]
    taken_ns = [(h.rank, str(h.op), *ns(h.end_s - h.start_s)) for h in measured(times).hand_overs]
    assert taken_ns == [
        (0, "0SEND_F0", 10), (0, "0RECV_B0", 10), (0, "0B0", 4), (1, "1RECV_F0", 5), (1, "1SEND_B0", 10),
    ]  # fmt: skip


def test_the_post_of_a_message_that_is_waited_for_is_idle_time_of_handing_over():
    idle_s = dict(next(use for use in usage(measured()) if use.device == 0).idle_by_cause_s)
    assert {cause: round(seconds * 1e9) for cause, seconds in idle_s.items() if seconds} == {
        "downstream": 200, "hand_over": 10, "transfer": 90,
    }  # fmt: skip
