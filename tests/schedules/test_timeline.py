import dataclasses

import pytest

from pipesched.schedules import MemorySample, Span, Timeline
from pipesched.schedules.ops import Message, Payload, Recv, Reduce, Send, Step, backward, forward

MESSAGE = Message(Payload.ACTIVATION, 0, 0)
SPANS = (
    Span(0, forward(0, 0), posted_s=10.0, start_s=11.0, end_s=12.0),
    Span(0, Send(MESSAGE, 1), posted_s=12.0, start_s=12.0, end_s=99.0),
    Span(0, Step(0), posted_s=12.0, start_s=12.0, end_s=12.5),
    Span(1, Recv(MESSAGE, 0), posted_s=5.0, start_s=12.0, end_s=99.0),
    Span(1, forward(1, 0), posted_s=5.0, start_s=13.0, end_s=15.0),
    Span(1, backward(1, 0), posted_s=15.0, start_s=15.0, end_s=18.0),
)
MEMORY = (MemorySample(0, 11.0, (("weights", 5), ("activations", 7))), MemorySample(3, 14.0, ()))
TIMELINE = Timeline("hand", "measured", SPANS, rank_to_device=(3, 0), memory=MEMORY)


def test_makespan_is_from_the_first_start_of_work_to_its_last_end_whatever_transfers_do():
    assert TIMELINE.start_s == 11.0
    assert TIMELINE.makespan_s == 7.0


def test_work_is_all_but_sends_and_receives():
    assert [str(span.op) for span in TIMELINE.work] == ["0F0", "0STEP", "1F0", "1B0"]


def test_work_is_what_occupies_a_device_and_the_makespan_counts_the_last_reduce_too():
    spans = (Span(0, forward(0, 0), 1.0, 1.0, 2.0), Span(0, Step(0), 2.0, 2.0, 2.0), Span(0, Reduce(0), 2.0, 2.0, 5.0))
    timeline = Timeline("hand", "predicted", spans, (0,))
    assert timeline.work == tuple(span for span in spans if span.is_work) == spans[:1]
    assert timeline.makespan_s == 4.0


def test_the_work_of_a_device_is_that_of_its_ranks_in_order_of_start():
    spans = (
        Span(0, forward(0, 0), 0.0, 0.0, 1.0),
        Span(0, backward(0, 0), 1.0, 4.0, 5.0),
        Span(1, forward(2, 0), 0.0, 2.0, 3.0),
        Span(2, forward(3, 0), 0.0, 3.0, 3.0),
    )
    timeline = Timeline("hand", "predicted", spans, (1, 1, 0))
    assert timeline.work_of_device(1) == (spans[0], spans[2], spans[1])
    assert timeline.work_of_device(0) == timeline.work_of_device(7) == ()
    assert timeline.num_stages == 4
    assert Timeline("none", "predicted", (), (0,)).num_stages == 0


class CountedSpans(tuple[Span, ...]):
    """Spans that count how often they are gone through."""

    times = 0

    def __iter__(self):
        self.times += 1
        return super().__iter__()


@pytest.mark.parametrize(
    "ask",
    [lambda t: t.work, lambda t: t.start_s, lambda t: t.makespan_s, lambda t: t.of_rank(1), lambda t: t.of_rank(2)],
    ids=["work", "start_s", "makespan_s", "of_rank", "of_no_rank"],
)
def test_what_is_asked_a_second_time_is_not_worked_out_again(ask):
    timeline = dataclasses.replace(TIMELINE, spans=CountedSpans(SPANS))
    first = ask(timeline)
    assert timeline.spans.times > 0
    timeline.spans.times = 0
    assert ask(timeline) == first
    assert timeline.spans.times == 0


def test_from_zero_moves_every_time_by_the_same_and_nothing_else():
    moved = TIMELINE.from_zero()
    assert moved.start_s == 0.0
    assert moved.makespan_s == TIMELINE.makespan_s
    assert [(s.posted_s, s.start_s, s.end_s) for s in moved.spans] == [
        (s.posted_s - 11.0, s.start_s - 11.0, s.end_s - 11.0) for s in SPANS
    ]
    assert [s.time_s for s in moved.memory] == [0.0, 3.0]
    assert [(s.rank, s.op) for s in moved.spans] == [(s.rank, s.op) for s in SPANS]
    assert [s.bytes_by_kind for s in moved.memory] == [s.bytes_by_kind for s in MEMORY]
    assert (moved.name, moved.source, moved.rank_to_device) == ("hand", "measured", (3, 0))


def test_a_timeline_without_work_takes_no_time():
    for spans in ((), SPANS[1:2]):
        empty = Timeline("empty", "predicted", spans, (0,))
        assert (empty.start_s, empty.makespan_s, empty.work) == (0.0, 0.0, ())
        assert empty.from_zero() == empty


def test_devices_are_each_named_once_in_order():
    assert dataclasses.replace(TIMELINE, rank_to_device=(3, 0, 3)).devices == (0, 3)


@pytest.mark.parametrize(("source", "is_predicted", "is_measured"),
                         [("predicted", True, False), ("measured", False, True), ("run 1", False, False)])  # fmt: skip
def test_a_timeline_says_where_its_times_come_from(source, is_predicted, is_measured):
    timeline = Timeline("gpipe", source, (), (0,))
    assert (timeline.is_predicted, timeline.is_measured) == (is_predicted, is_measured)
