"""Every format that comes from outside, through the command that takes it: damaged, it is one line and exit code 2."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from pipesched.executor.launch import Measure, RunSpec, Train, job_to_json
from pipesched.executor.rank_command import main as run_rank
from pipesched.profiles.clusters import Device, Link, flat
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.profiles.io import Plan, Predicted, save_json
from pipesched.schedules import MemorySample, Span, Timeline
from pipesched.schedules.builders import build
from pipesched.schedules.formats import timeline_to_json, to_json
from pipesched.schedules.ops import backward, forward
from pipesched.schedules.transforms import ScheduleSpec
from tests.profiles.hand_profiles import layer, measurement, profile, split

GRAPHS = Path(__file__).parents[2] / "profiles" / "data" / "pipedream"
MARK = b"\xef\xbb\xbf"
SIMULATE = "simulate -s 1f1b -p 2 -m 2 --uniform f=1,b=2"
LINES = {
    "schedule.json": "check -f schedule.json",
    "mine.csv": "check -f mine.csv",
    "timeline.json": "gantt timeline.json",
    "profile.json": "partition profile.json -p 2",
    "graph.txt": "partition graph.txt -p 2",
    "stages.csv": "simulate -f mine.csv --stage-costs stages.csv",
    "cluster.json": f"{SIMULATE} --cluster cluster.json",
    "plan.json": "check --plan plan.json",
    "search": "tune profile.json -b 2 -p 2 -m 1,2 -n 1 --advance 0 --resume search",
}
JOBS = ("job.json", "emulated.json", "training.json")

ANSWERS = ((0, 0), (1, 0), (1, 1), (2, 1))
"""Exit code and lines on stderr: read, read and the answer is no, refused."""


@pytest.fixture
def files(folder):
    """Write one of each."""
    (folder / "schedule.json").write_text(to_json(build("pipedream", 2, 2)))
    spans = (Span(0, forward(0, 0), 0.0, 0.5, 1.5), Span(0, backward(0, 0), 1.5, 1.5, 3.0))
    timeline = Timeline("one", "predicted", spans, (0,), (MemorySample(0, 0.5, (("weights", 8),)),))
    (folder / "timeline.json").write_text(timeline_to_json(timeline))
    sizes = measurement(1, split=split()), measurement(2, split=split())
    save_json(profile(*[layer(*sizes)] * 2), folder / "profile.json")
    (folder / "graph.txt").write_text((GRAPHS / "vgg16.graph.txt").read_text())
    cluster = replace(flat(2, Link(1e-5, 1e9)), inter=Link(1e-4), links=((0, 1, Link(2e-5, 3e9)),))
    save_json(replace(cluster, devices=(Device(0.5, 10**9), Device(node=1))), folder / "cluster.json")
    schedule_spec = ScheduleSpec(
        name="avgpipe", num_ranks=2, num_microbatches=4, parameters={"pipelines": 2}, recompute=(0,)
    )
    save_json(Plan(model="mlp:layers=2", schedule_spec=schedule_spec, partition=(1, 1), microbatch_size=1, batch_size=4,
                   compression=None, predicted=Predicted(1.0, 2.0, (1.0, 2.0))), folder / "plan.json")  # fmt: skip
    lists, bounds = to_json(build("gpipe", 1, 2)), ((0, 8),)
    measured = RunSpec(job=Measure(schedule=lists), model="mlp", bounds=bounds)
    (folder / "job.json").write_text(job_to_json(measured))
    costs = StageCosts((StageCost(0.25, 0.5, output_bytes=7),), 4)
    (folder / "emulated.json").write_text(job_to_json(RunSpec(job=Measure(schedule=lists, emulate=costs))))
    trained = Train(schedule_spec=replace(schedule_spec, num_ranks=1), num_steps=2, batch_size=4)
    (folder / "training.json").write_text(job_to_json(replace(measured, job=trained)))
    return folder


@pytest.fixture
def read(files, pipesched, monkeypatch, capsys):
    """Return what reads a file by its command, and returns (code, out, err)."""
    for name, value in {"RANK": 0, "WORLD_SIZE": 5, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))  # five processes, so that a job ends when it has been read
    if LINES["search"]:
        pipesched(LINES["search"])  # writes it

    def call(name):
        if name in LINES:
            answer = pipesched(LINES[name])
            return answer.code, answer.out, answer.err
        return run_rank([name]), *capsys.readouterr()

    return call


def places(value, place=()):
    """Yield where there is anything in a document."""
    yield place
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*place, key))


def edited(document, place, value):
    if not place:
        return value
    inner = edited(document[place[0]], place[1:], value)
    if isinstance(document, dict):
        return document | {place[0]: inner}
    return [*document[: place[0]], inner, *document[place[0] + 1 :]]


WRONG = (None, True, "5", "", -1, 2**63, 10**25, 0.5, 1e300, float("nan"), float("inf"), [], {}, [[]], "\ud800", "\n")


def damaged(name, data):
    """Yield damaged copies of a file: cut short, with JSON values of other types, and nested too deep."""
    chance = random.Random(name)
    yield from (data[:length] for length in (0, 1, *chance.sample(range(2, len(data) - 2), 4)))
    if not name.endswith(".json"):
        return
    document = json.loads(data)
    everywhere = list(places(document))
    for _ in range(25):
        yield json.dumps(edited(document, chance.choice(everywhere), chance.choice(WRONG))).encode()


def nested(document):
    """Yield documents of which a value, or the whole, is nested too deeply, with and without an end."""
    key = next(iter(document.keys() - {"format", "version", "schedule_spec"}))
    for depth in (120, 1100, 100_000):
        deep = "[" * depth + "]" * depth
        yield json.dumps(document | {key: "DEEP"}).replace('"DEEP"', deep)
        yield from (deep, '{"a":' * depth + "1" + "}" * depth, "[" * depth)


@pytest.mark.parametrize("name", [*LINES, *JOBS])
def test_a_file_is_read_with_a_byte_order_mark_and_damaged_is_no_traceback(files, read, name):
    file, before = files / name, read(name)
    assert before[0] == (2 if name in JOBS else 0)
    assert "processes were started" in before[2] or name not in JOBS
    data = file.read_bytes()
    file.write_bytes(MARK + data)
    assert read(name) == before
    for text in damaged(name, data):
        file.write_bytes(text)
        code, _, err = read(name)
        assert (code, err.count("\n")) in ANSWERS, text
    for text in nested(json.loads(data)) if name.endswith(".json") else ():
        file.write_text(text)
        code, out, err = read(name)
        assert (code, out, err.count("\n"), name in err) == (2, "", 1, True), err
