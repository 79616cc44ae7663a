import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import HandOver, MemorySample, ScheduleError, Span, Timeline, Yardstick
from pipesched.schedules.formats.timeline_json import read_timeline, timeline_from_json, timeline_to_json
from pipesched.schedules.ops import Message, Payload, Send, forward
from tests.properties import examples
from tests.schedules.builder_rules import refused_file
from tests.schedules.formats.random_ops import damaged, ops

TINY = Timeline(
    "tiny",
    "predicted",
    (
        Span(0, forward(0, 0), 0.0, 0.1, 0.30000000000000004),
        Span(0, Send(Message(Payload.ACTIVATION, 0, 0), 1), 0.3, 5e-324, 0.3),
        Span(1, forward(1, 0), -1.5, 0.4, 1e300),
    ),
    (0, 2),
    (MemorySample(0, 0.0, (("weights", 8), ("activations", 0))), MemorySample(2, 0.1, ())),
)


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(timeline_to_json(TINY)), **fields})


@st.composite
def _timelines(draw):
    num_ranks = draw(st.integers(1, 4))
    devices = draw(st.lists(st.integers(0, 3), min_size=num_ranks, max_size=num_ranks))
    times = st.floats(allow_nan=False, allow_infinity=False)
    spans = []
    for rank in range(num_ranks):
        for op in draw(st.lists(ops(4, 9, num_ranks), max_size=5)):
            start_s, end_s = sorted((draw(times), draw(times)))
            spans.append(Span(rank, op, draw(times), start_s, end_s))
    words = st.text(max_size=8).filter(str.isprintable)
    kinds = st.dictionaries(words, st.integers(0, 2**62 - 1), max_size=3).map(lambda held: tuple(held.items()))
    samples = draw(st.lists(st.builds(MemorySample, st.sampled_from(devices), times, kinds), max_size=5))
    samples.sort(key=lambda sample: (sample.device, sample.time_s))
    return Timeline(draw(words), draw(words), tuple(spans), tuple(devices), tuple(samples))


@examples(25)
@given(_timelines())
def test_any_timeline_reads_back_to_the_same_bits(timeline):
    read = timeline_from_json(timeline_to_json(timeline), "t.json")
    assert read == timeline
    assert [s.start_s.hex() for s in read.spans] == [s.start_s.hex() for s in timeline.spans]


def test_whole_seconds_and_numpy_floats_are_written_as_floats():
    import numpy as np

    timeline = Timeline("t", "measured", (Span(0, forward(0, 0), 0, np.float64(0.1), np.float64(1.5)),), (0,))
    assert json.loads(timeline_to_json(timeline))["spans"] == [[0, "0F0", 0.0, 0.1, 1.5]]


def test_every_span_is_a_line():
    lines = timeline_to_json(TINY).splitlines()
    assert '    [0, "0F0", 0.0, 0.1, 0.30000000000000004],' in lines
    assert '    [0, 0.0, {"weights": 8, "activations": 0}],' in lines


ROW = [0, "0F0", 0.0, 0.0, 1.0]
YARDSTICK = {"device": "cpu", "num_busy": 2, "kernel_s": 0.1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (changed(format="pipesched.schedule"), "format: got 'pipesched.schedule'"),
        ('{"traceEvents": []}', "; try 'pipesched import'"),
        (changed(more=1), "'more': got an unknown field"),
        (changed(rank_to_device=[]), "rank_to_device: got no rank"),
        (changed(rank_to_device=[[0], "a"]), "rank_to_device[0]: got device [0]"),
        (changed(spans=[ROW[:4]]), "spans[0]: got [0, '0F0', 0.0, 0.0], expected a row"),
        (changed(spans=[[*ROW[:4], "1.0"]]), "spans[0]: got [0, '0F0', 0.0, 0.0, '1.0']"),
        (changed(spans=[[0, "0F", 0.0, 0.0, 1.0]]), "spans[0]: got '0F', expected an op"),
        (changed(spans=[[0, "0SEND_F0>2", 0.0, 0.0, 1.0]]), "spans[0]: got peer 2"),
        (changed(spans=[[2, *ROW[1:]]]), "spans[0]: got rank 2"),
        (changed(spans=[[1, *ROW[1:]], ROW]), "spans[1]: got rank 0 after 1"),
        (changed(spans=[[0, "0F0", 0.0, 2.0, 1.0]]), "spans[0]: got end 1.0 s before start 2.0 s"),
        (changed(memory=[[0, 0.0]]), "memory[0]: got [0, 0.0], expected a row"),
        (changed(memory=[[1, 0.0, {}]]), "memory[0]: got device 1, expected one of rank_to_device"),
        (changed(memory=[[0, 0.0, {"weights": -1}]]), "memory[0]: got bytes of 'weights' -1"),
        (changed(memory=[[0, 1.0, {}], [0, 0.0, {}]]), "memory[1]: got device 0 at 0.0 s, expected samples in order"),
        (changed(hand_overs=[[0, "0F0", 1.0]]), "hand_overs[0]: got [0, '0F0', 1.0], expected a row like"),
        (changed(hand_overs=[[3, "0F0", 1.0, 2.0]]), "hand_overs[0]: got rank 3"),
        (changed(hand_overs=[[0, "0X0", 1.0, 2.0]]), "hand_overs[0]: "),
        (changed(hand_overs=[[0, "0F0", 2.0, 1.0]]), "hand_overs[0]: got end 1.0 s before start 2.0 s"),
        (changed(yardstick={**YARDSTICK, "device": "tpu"}), "yardstick: got device 'tpu', expected cpu or cuda"),
        (changed(yardstick={**YARDSTICK, "num_busy": -1}), "yardstick: got num_busy -1"),
        (changed(yardstick={**YARDSTICK, "kernel_s": 0}), "yardstick: got 0.0 s, expected finite seconds above 0"),
        (changed(yardstick={**YARDSTICK, "more": 1}), "yardstick: got"),
        (changed(launch_s=-0.5), "launch_s: got -0.5 s, expected finite seconds, 0 or more"),
        (changed(launch_s=True), "launch_s: got True, expected type float"),
    ],
)
def test_a_fault_is_named_with_its_place(text, words):
    with refused_file("t.json: ", words):
        timeline_from_json(text, "t.json")


@pytest.mark.parametrize(
    "timeline",
    [
        Timeline("t", "measured", (Span(0, forward(0, 0), 0.0, math.nan, 1.0),), (0,)),
        Timeline("t", "measured", (Span(0, forward(0, 0), 0.0, 0.0, math.inf),), (0,)),
        Timeline("t", "measured", (), (0,), (MemorySample(0, math.inf, ()),)),
        Timeline("t", "measured", (), (0,), (MemorySample(0, 0.0, (("a", 1), ("a", 2))),)),
        Timeline("t", "measured", (), (0,), launch_s=math.nan),
        Timeline("t", "measured", (), (0,), launch_s=-1.0),
    ],
)
def test_what_could_not_be_read_again_is_not_written(timeline):
    with pytest.raises(ScheduleError, match="timeline 't': "):
        timeline_to_json(timeline)


def test_damaged_files_are_read_or_refused_in_one_line(tmp_path):
    chance, path = random.Random(0), tmp_path / "damaged.json"
    outcomes = []
    for _ in range(150):
        path.write_bytes(damaged(timeline_to_json(TINY), chance).encode())
        try:
            read_timeline(path)
            outcomes.append(True)
        except ScheduleError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017 - most are refused, some are fine
            outcomes.append(False)
    assert set(outcomes) == {True, False}


@pytest.mark.parametrize(
    "field",
    [
        {"hand_overs": (HandOver(0, forward(0, 1), 1.5, 1.625),)},
        {"yardstick": Yardstick("cpu", 2, 0.1)},
        {"launch_s": 0.0},
        {"launch_s": 5e-324},
        {"launch_s": 3.0},
    ],
)
def test_what_not_every_timeline_has_survives_json_and_is_left_out_where_there_is_none(field):
    plain = Timeline("t", "measured", (), (0,))
    assert timeline_from_json(timeline_to_json(replace(plain, **field)), "F") == replace(plain, **field)
    assert not {*field} & {*json.loads(timeline_to_json(plain))}
