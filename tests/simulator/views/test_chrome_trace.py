import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import MemorySample, Span, Timeline
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.interleaved import interleaved
from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.builders.pipedream import pipedream
from pipesched.schedules.ops import (
    Average,
    Compute,
    Message,
    Overlap,
    Payload,
    Phase,
    Recv,
    Reduce,
    Send,
    Step,
    backward,
    forward,
)
from pipesched.simulator import SimulationError
from pipesched.simulator.views import to_trace
from tests.hand_timelines import play, shaken
from tests.properties import examples
from tests.trace_rules import check_trace


def events(text, *kinds):
    return [event for event in json.loads(text)["traceEvents"] if event["ph"] in kinds]


def lanes(text):
    return {e["tid"]: (e["pid"], e["args"]["name"]) for e in events(text, "M") if e["name"] == "thread_name"}


def test_a_reduction_has_a_lane_of_its_own_beside_the_computations():
    text = to_trace(
        timeline(
            Span(0, backward(0, 0), 0.0, 0.0, 1.0),
            Span(0, Reduce(0), 1.0, 1.0, 4.0),
            Span(0, forward(0, 1), 1.0, 1.0, 2.0),
            Span(0, Step(0), 4.0, 4.0, 5.0),
        )
    )
    names = lanes(text)
    assert {event["name"]: names[event["tid"]] for event in events(text, "X")} == {
        "B 0": (1, "compute"), "Reduce 0": (1, "reduce"), "F 1": (1, "compute"), "Step 0": (1, "compute")
    }  # fmt: skip


def test_a_late_recompute_has_a_name_and_a_category_of_its_own():
    late = Compute(Phase.RECOMPUTE, 0, 2, is_late=True)
    text = to_trace(timeline(Span(0, late, 0.0, 1.0, 2.0), Span(0, backward(0, 2), 2.0, 2.0, 4.0)))
    shown = [(event["name"], event["cat"]) for event in events(text, "X")]
    assert shown == [("LATE_R 2", "late_recompute"), ("B 2", "backward")]


def timeline(*spans, memory=(), num_ranks=1, source="predicted"):
    return Timeline("by hand", source, tuple(spans), tuple(range(num_ranks)), memory)


@pytest.mark.parametrize("build", [gpipe, one_f_one_b, interleaved, pipedream])
@pytest.mark.parametrize("transfer_s", [0.0, 0.25, 3.0])
def test_traces_of_known_schedules_keep_every_rule(build, transfer_s):
    text = to_trace(play(build(4, 8), transfer_s))
    assert check_trace(text) == []


def test_predicted_and_measured_share_a_file_and_the_processes():
    predicted = play(one_f_one_b(3, 5), 0.1)
    text = to_trace(predicted, shaken(predicted))
    assert check_trace(text) == []
    assert {"compute (predicted)", "compute (measured)"} <= {name for pid, name in lanes(text).values() if pid == 2}
    assert {e["pid"] for e in events(text, "X")} == {1, 2, 3}


def test_every_span_is_one_slice_of_its_length():
    line = play(one_f_one_b(3, 4), 0.5)
    slices = events(to_trace(line), "X")
    assert sorted((e["pid"] - 1, e["ts"], e["dur"]) for e in slices) == sorted(
        (s.rank, s.start_s * 1e6, (s.end_s - s.start_s) * 1e6) for s in line.spans
    )


def test_an_arrow_goes_from_the_maker_through_send_and_recv_to_the_user():
    text = to_trace(play(gpipe(2, 1), 0.5))
    lane = lanes(text)
    first = [e for e in events(text, "s", "t", "f") if e["id"] == 1]
    assert [(e["ph"], *lane[e["tid"]]) for e in first] == [
        ("s", 1, "compute"), ("t", 1, "send"), ("t", 2, "recv"), ("f", 2, "compute"),
    ]  # fmt: skip
    assert [e["ts"] for e in first] == [999_999.999, 1_000_000.0, 1_000_000.0, 1_500_000.0]


def test_every_message_between_ranks_has_an_arrow():
    text = to_trace(play(interleaved(4, 8, 2), 0.0))
    assert len(events(text, "s")) == 2 * 8 * (8 - 1)


def test_transfers_in_flight_together_get_lanes_of_their_own():
    text = to_trace(play(gpipe(2, 4), transfer_s=2.5))
    assert check_trace(text) == []
    assert {"send", "send 2", "send 3", "recv", "recv 2", "recv 3"} <= {name for _, name in lanes(text).values()}


def test_slices_without_length_stay_in_their_lane_unless_two_meet():
    step, average = Span(0, Step(0), 1.0, 1.0, 1.0), Span(0, Average(0), 1.0, 1.0, 1.0)
    around = [Span(0, forward(0, 0), 0.0, 0.0, 1.0), Span(0, forward(0, 1), 1.0, 1.0, 2.0)]
    alone = to_trace(timeline(around[0], step, around[1]))
    both = to_trace(timeline(around[0], step, average, around[1]))
    assert check_trace(alone) == check_trace(both) == []
    assert [name for _, name in lanes(alone).values()] == ["compute"]
    assert [name for _, name in lanes(both).values()] == ["compute", "compute 2"]


def test_touching_spans_touch_after_rounding():
    cuts = [i / 3e9 + i * 1e-7 for i in range(200)]
    spans = [Span(0, forward(0, i), a, a, b) for i, (a, b) in enumerate(pairwise(cuts))]
    text = to_trace(timeline(*spans))
    assert check_trace(text) == []
    assert len(lanes(text)) == 1


def test_clocks_that_differ_cost_an_arrow_and_no_rule():
    message = Message(Payload.ACTIVATION, 0, 0)
    spans = [
        Span(0, forward(0, 0), 5.0, 5.0, 6.0), Span(0, Send(message, 1), 6.0, 6.0, 7.0),
        Span(1, Recv(message, 0), 0.0, 1.0, 2.0), Span(1, forward(1, 0), 2.0, 2.0, 3.0),
    ]  # fmt: skip
    text = to_trace(timeline(*spans, num_ranks=2))
    assert check_trace(text) == []
    assert events(text, "s") == []


def test_memory_counts_from_the_first_instant_and_names_its_unit():
    samples = (
        MemorySample(0, -3.0, (("weights", 1 << 20),)),
        MemorySample(0, 0.5, (("weights", 3 << 20), ("grads", 1 << 19))),
    )
    text = to_trace(timeline(Span(0, forward(0, 0), 0.0, 0.0, 1.0), memory=samples))
    assert check_trace(text) == []
    assert [(e["ts"], e["args"]) for e in events(text, "C")] == [
        (0.0, {"weights_MiB": 1.0, "grads_MiB": 0.0}),
        (500_000.0, {"weights_MiB": 3.0, "grads_MiB": 0.5}),
    ]


def test_processes_say_rank_device_and_stages():
    text = to_trace(play(interleaved(2, 2, 2)))
    names = [e["args"]["name"] for e in events(text, "M") if e["name"] == "process_name"]
    assert names == ["rank 0 / device 0 / stage 0,2", "rank 1 / device 1 / stage 1,3"]


def test_an_overlap_and_a_reduce_are_slices_too():
    spans = [Span(0, Overlap(forward(0, 1), backward(0, 0)), 0.0, 0.0, 3.0), Span(0, Reduce(0), 3.0, 3.0, 4.0)]
    text = to_trace(timeline(*spans))
    assert check_trace(text) == []
    assert [e["name"] for e in events(text, "X")] == ["F 1 + B 0", "Reduce 0"]


def test_no_timeline_makes_an_empty_trace():
    assert json.loads(to_trace())["traceEvents"] == []


@examples(30)
@given(data=st.data())
def test_any_timeline_keeps_every_rule(data):
    instants = st.integers(-20, 20).map(lambda n: n * 1e-9)
    spans = []
    for rank in range(3):
        for microbatch in range(3):
            there, back = (Message(Payload.ACTIVATION, stage, microbatch) for stage in (rank - 1, rank))
            for op in (Recv(there, rank - 1), forward(rank, microbatch), Send(back, rank + 1), Step(rank)):
                start_s, end_s = sorted((data.draw(instants), data.draw(instants)))
                spans.append(Span(rank, op, start_s, start_s, end_s))
    assert check_trace(to_trace(timeline(*spans, num_ranks=3))) == []


# a validator that finds nothing proves nothing: each of its rules is broken once

GOOD = to_trace(play(one_f_one_b(2, 2), 0.5))


def assert_finds(plant, fault):
    trace = json.loads(GOOD)
    plant(trace["traceEvents"])
    assert any(fault in message for message in check_trace(json.dumps(trace, ensure_ascii=False)))


@pytest.mark.parametrize(
    ("first_of", "change", "fault"),
    [
        ("X", {"ph": "B"}, "unknown ph"),
        ("X", {"pid": 0}, "idle process"),
        ("X", {"tid": 0}, "tid is 0"),
        ("X", {"ts": 0.0001}, "whole nanoseconds"),
        ("X", {"ts": -1.0}, "whole nanoseconds"),
        ("X", {"dur": 3e6}, "overlaps"),
        ("X", {"name": "forward 0"}, "several colours"),
        ("X", {"tid": 99}, "has no name"),
        ("X", {"pid": 2}, "in several processes"),
        ("s", {"id": 99}, "read as"),
        ("s", {"cat": "p2p"}, "several names or categories"),
        ("s", {"ts": 9e9}, "in no slice"),
        ("f", {"bp": "x"}, "bp"),
        ("C", {"args": {"weights_MiB": "1"}}, "numbers"),
        ("C", {"ts": 0.001}, "no initial value"),
        ("C", {"args": {"other_MiB": 1.0}}, "series change"),
        ("thread_name", {"args": {"name": "send"}}, "several lanes"),
        ("process_name", {"args": {"name": "device 0"}}, "expected rank 0"),
        ("process_name", {"name": "process_labels"}, "process 1 has no name"),
        ("process_sort_index", {"args": {"sort_index": 7}}, "order of the ranks"),
    ],
)
def test_the_validator_finds_a_planted_fault(first_of, change, fault):
    assert_finds(lambda events: next(e for e in events if first_of in (e["ph"], e["name"])).update(change), fault)


def test_the_validator_finds_two_slices_without_length_at_one_instant():
    def plant(events):
        first = next(e for e in events if e["ph"] == "X")
        events[:] = [e for e in events if e["tid"] != first["tid"] or e["ph"] == "M"]
        events += [{**first, "dur": 0.0}, {**first, "dur": 0.0}]

    assert_finds(plant, "overlaps")


def test_the_validator_finds_an_arrow_that_is_read_before_its_slice():
    assert_finds(lambda events: events.sort(key=lambda event: event["ph"] != "f"), "in no slice")


def test_the_validator_finds_escapes_and_numbers_that_json_lacks():
    assert check_trace(GOOD) == []
    assert any("escaped" in message for message in check_trace(GOOD.replace("F 0", "\\u03c6 0")))
    assert any("not JSON" in message for message in check_trace(GOOD.replace('"dur":', '"dur":NaN,"x":', 1)))


def test_times_beyond_what_perfetto_counts_are_refused_in_one_line():
    with pytest.raises(SimulationError, match=r"^trace: got 1e\+300 s, expected less than 9\.22337e\+09; try smaller"):
        to_trace(Timeline("long", "predicted", (Span(0, forward(0, 0), 0.0, 0.0, 1e300),), (0,)))
