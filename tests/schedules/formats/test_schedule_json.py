import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import Schedule, ScheduleError, ScheduleTraits
from pipesched.schedules.builders import build
from pipesched.schedules.formats import from_json, read_schedule, to_json
from pipesched.schedules.ops import Message, Payload, Recv, Send, Step, backward, forward
from tests.properties import examples
from tests.schedules.builder_rules import refused_file
from tests.schedules.formats.random_ops import ops

TINY = """{
  "format": "pipesched.schedule",
  "version": 1,
  "name": "tiny",
  "num_stages": 2,
  "num_microbatches": 1,
  "rank_to_device": [0, 0],
  "ops": [
    ["0F0", "0SEND_F0>1", "0B0", "0STEP"],
    ["1RECV_F0<0", "1F0@1+2", "1B0"]
  ]
}
"""


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(TINY), **fields})


def test_the_text_is_the_one_in_the_page_and_reads_as_it_says():
    schedule = from_json(TINY, "tiny.json")
    assert schedule.ops[0] == (forward(0, 0), Send(Message(Payload.ACTIVATION, 0, 0), 1), backward(0, 0), Step(0))
    assert schedule.ops[1][0] == Recv(Message(Payload.ACTIVATION, 0, 0), 0)
    assert (schedule.name, schedule.num_stages, schedule.num_microbatches) == ("tiny", 2, 1)
    assert schedule.rank_to_device == (0, 0)
    assert to_json(schedule) == TINY


@st.composite
def _schedules(draw):
    num_stages, num_microbatches, num_ranks = (draw(st.integers(1, high)) for high in (6, 50, 5))
    rows = st.lists(ops(num_stages, num_microbatches, num_ranks), max_size=12).map(tuple)
    return Schedule(
        draw(st.text(max_size=8).filter(str.isprintable)),
        num_stages,
        num_microbatches,
        tuple(draw(st.lists(rows, min_size=num_ranks, max_size=num_ranks))),
        tuple(draw(st.lists(st.integers(0, 99_999), min_size=num_ranks, max_size=num_ranks))),
        is_lowered=draw(st.booleans()),
        origin=draw(st.none() | st.text(max_size=8).filter(str.isprintable)),
        traits=draw(st.builds(ScheduleTraits)),
    )


@pytest.mark.slow
@examples(25)
@given(_schedules())
def test_any_schedule_reads_back_without_loss(schedule):
    text = to_json(schedule)
    assert from_json(text, "s.json") == schedule
    rows = json.loads(text)["ops"]  # an oracle that is not our reader
    assert [len(row) for row in rows] == [len(row) for row in schedule.ops]
    text.encode()


def test_traits_travel_and_a_file_without_them_says_nothing_of_them():
    schedule = build("spectrain", 2, 4)
    document = json.loads(to_json(schedule))
    assert document["origin"] == "spectrain"
    assert document["traits"] == {"is_asynchronous": True, "prediction": "momentum"}
    before = {key: value for key, value in document.items() if key not in ("origin", "traits")}
    read = from_json(json.dumps(before), "before.json")
    assert (read.ops, read.origin, read.traits) == (schedule.ops, None, ScheduleTraits())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (changed(traits={"averages": 1}), "traits.averages: got 1, expected true or false"),
        (changed(traits={"speed": True}), "traits: got 'speed', expected only averages, is_asynchronous"),
        (changed(traits={"prediction": "guess"}), "traits.prediction: got 'guess', expected one of momentum, adam"),
        (changed(origin="a\nb"), "origin: got 'a\\nb', expected printable characters"),
        ("{", "line 1, column 2: got no JSON"),
        ("[1]", "got [1], expected a JSON object"),
        ("NaN", "got NaN"),
        (TINY.replace("1,", "1e999,", 1), "expected a finite one"),
        (TINY.replace("1,", "9" * 5000 + ",", 1), "got the integer '999"),
        (TINY.replace('"name"', '"version"'), "got the key 'version' twice"),
        (changed(format="other"), "format: got 'other'"),
        (changed(version=2), "version: got 2, expected 1"),
        (changed(version=True), "version: got True, expected 1"),
        (changed(version=1.0), "version: got 1.0, expected 1"),
        (changed(colour=1), "'colour': got an unknown field"),
        (TINY.replace('  "name": "tiny",\n', ""), "name: got no such field"),
        (changed(name=3), "name: got 3, expected type str"),
        (changed(name="two\nlines"), "name: got 'two\\nlines'"),
        (changed(num_stages=True), "num_stages: got True"),
        (changed(num_microbatches=-1), "num_microbatches: got -1"),
        (changed(num_microbatches=10**12), "num_microbatches: got 1000000000000"),
        (changed(num_stages=10**5, num_microbatches=10**5), "got 100000 * 100000"),
        (changed(rank_to_device=[0]), "got 1 devices for 2 ranks"),
        (changed(rank_to_device=[0, -1]), "rank_to_device[1]: got device -1"),
        (changed(rank_to_device=[], ops=[]), "got no rank"),
        (changed(ops={}), "ops: got {}, expected type list"),
        (changed(ops=["0F0", []]), "ops[0]: got '0F0', expected a list"),
        (changed(ops=[["0F0", 7], []]), "ops[0][1]: got 7"),
        (changed(ops=[["0F0", "0F0x"], []]), "ops[0][1]: got '0F0x'"),
        (changed(ops=[["2F0"], []]), "ops[0][0]: got stage 2, expected an integer from 0 to 1"),
        (changed(ops=[["0F1"], []]), "ops[0][0]: got micro-batch 1"),
        (changed(ops=[["(0F0;9B0)OVERLAP_F_B"], []]), "ops[0][0]: got stage 9"),
        (changed(ops=[["0SEND_F0"], []]), "ops[0][0]: got '0SEND_F0', expected the rank of the peer"),
        (changed(ops=[["0SEND_F0>2"], []]), "ops[0][0]: got peer 2"),
        (changed(ops=[["1SEND_F0>1"], []]), "ops[0][0]: got receiving stage 2"),
        (changed(ops=[["1RECV_B0<1"], []]), "ops[0][0]: got sending stage 2"),
        (changed(ops=[["5STEP"], []]), "ops[0][0]: got stage 5"),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_its_place(text, words):
    with refused_file("s.json: ", words):
        from_json(text, "s.json")


@pytest.mark.parametrize("name", ["two\nlines", "\ud800"])
def test_what_could_not_be_read_again_is_not_written(name):
    with pytest.raises(ScheduleError, match="name: got"):
        to_json(Schedule(name, 1, 1, ((forward(0, 0),),), (0,)))
    with pytest.raises(ScheduleError, match="got stage 1"):
        to_json(Schedule("s", 1, 1, ((forward(1, 0),),), (0,)))


@pytest.mark.parametrize(
    ("file_name", "text"),
    [
        ("a.json", TINY), ("a.JSON", TINY), ("a.txt", TINY), ("a", "\n " + TINY),
        ("a.csv", "0F0,0B0\n"), ("a.txt", "0F0,0B0\n"), ("a", ",0F0,0B0\n"),
    ],
)  # fmt: skip
def test_the_form_of_a_file_follows_from_its_suffix_else_from_its_content(tmp_path, file_name, text):
    path = tmp_path / file_name
    path.write_text(text, encoding="utf-8")
    assert read_schedule(path).name == ("tiny" if "tiny" in text else "a")


def test_the_suffix_outweighs_the_content(tmp_path):
    (tmp_path / "a.csv").write_text(TINY, encoding="utf-8")
    (tmp_path / "a.json").write_text("0F0,0B0\n", encoding="utf-8")
    for name, words in (("a.csv", "expected an op"), ("a.json", "got no JSON")):
        with pytest.raises(ScheduleError, match=words):
            read_schedule(tmp_path / name)
