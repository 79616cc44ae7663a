"""Schemas of files accept what is written, and refuse what the readers refuse for its shape, judged by `jsonschema`."""

import copy
import csv
import json
from dataclasses import fields, replace
from pathlib import Path

import jsonschema
import pytest

import pipesched
from pipesched.executor.launch import Measure, RunSpec, Train, job_from_json, job_to_json
from pipesched.executor.training import CheckpointIndex, FileDigest, RunIdentity, index_from_json, index_text
from pipesched.profiles.clusters import Device, Link
from pipesched.profiles.costs import SharingPrice, Variation, uniform
from pipesched.profiles.io import cluster_text, load_cost_table, profile_text, read_cluster, run_costs_text
from pipesched.profiles.io.plan_json import plan_text, read_plan
from pipesched.profiles.io.profile_json import read_profile
from pipesched.profiles.io.run_costs_json import read_run_costs
from pipesched.schedules.formats import from_json, timeline_to_json, to_json
from pipesched.schedules.formats.timeline_json import timeline_from_json
from pipesched.schedules.transforms import ScheduleSpec, recompute
from pipesched.workflows.file_formats import FILE_FORMATS, file_schema
from tests.hand_runs import run_by_hand
from tests.profiles.hand_profiles import layer, measurement, profile, split

DATA = Path(__file__).parents[3] / "profiles" / "data"
DECILES = tuple(0.5 + 0.1 * index for index in range(11))


def validator(name):
    schema = file_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def hand_profile():
    layers = [layer(), layer(measurement(split=split())), layer(measurement(), work=None)]
    return replace(profile(*layers), variation=Variation(DECILES, DECILES), sharing=(SharingPrice(2, DECILES),))


def hand_cluster():
    link = Link(1e-5, 1e9, send_s=1e-6, send_s_per_byte=1e-12, post_s=1e-6, receive_s=1e-6)
    two = replace(pipesched.flat(2), inter=link, nics=((0,), (1,)), links=((0, 1, link),))
    return replace(two, devices=(Device(0.5, 10**9, 0, 1e-6), Device()))


def hand_plan():
    search = pipesched.plan(hand_profile(), batch_size=4, num_devices=2, schedules=["1f1b", "zb_h1"])
    assert search.plan is not None
    return search.plan


def costs_of_run():
    run = run_by_hand(pipesched.build("1f1b", 2, 2), 0.1, 0.1)
    return pipesched.costs_from_runs([run], profile=hand_profile()).costs


def timeline_with_memory():
    costs = pipesched.DeviceCost(forward_s=1.0, backward_s=2.0, saved_bytes=8, weight_bytes=4, output_bytes=2)
    cluster = pipesched.flat(2, Link(0.1, send_s=0.1, receive_s=0.1))
    return pipesched.simulate(pipesched.build("1f1b", 2, 2), pipesched.Setup(costs, cluster)).timeline


SPEC = ScheduleSpec(name="avgpipe", num_ranks=2, num_microbatches=2, parameters={"pipelines": 2})
MEASURED = Measure(
    schedule=to_json(pipesched.build("gpipe", 2, 2)),
    emulate=uniform(2, 0.1, 0.2),
    cluster=cluster_text(pipesched.flat(2), "c"),
)
FALLING = Train(
    schedule_spec=SPEC, num_steps=9, batch_size=4, lr_schedule="step", lr_milestones=(3, 6), lr_factor=0.5, lr_warmup=2
)
INDEX = CheckpointIndex(
    format="pipesched-checkpoint",
    version=1,
    steps=2,
    every=2,
    keep=1,
    run=RunIdentity(**{field.name: "1" for field in fields(RunIdentity)}),
    files={"losses.safetensors": FileDigest(num_bytes=1, sha256="0" * 64)},
)
WRITTEN = {
    "schedule": [to_json(recompute(pipesched.build("pipedream", 2, 2)))],
    "timeline": [timeline_to_json(timeline_with_memory())],
    "profile": [profile_text(hand_profile(), "p")],
    "run-costs": [run_costs_text(costs_of_run(), "r")],
    "cluster": [cluster_text(hand_cluster(), "c")],
    "plan": [plan_text(hand_plan(), "p")],
    "checkpoint": [index_text(INDEX)],
    "job": [
        job_to_json(RunSpec(job=MEASURED)),
        job_to_json(RunSpec(job=Train(schedule_spec=SPEC, num_steps=2, batch_size=4), model="mlp", bounds=((0, 4),))),
        job_to_json(RunSpec(job=FALLING, model="mlp", bounds=((0, 4),))),
    ],
}
READERS = {
    "schedule": from_json,
    "timeline": timeline_from_json,
    "profile": read_profile,
    "run-costs": read_run_costs,
    "cluster": read_cluster,
    "plan": read_plan,
    "job": job_from_json,
    "checkpoint": index_from_json,
}
TOGETHER = {
    "run-costs": {"variation", "yardstick", "stages.0.work.F"},
    "job": {
        "job.emulate",
        "model",
        "is_finite_checked",
        "has_green_contexts",
        "weights",
        "job.is_nesterov",
        "job.lr_schedule",
        "job.lr_milestones",
    },
}
"""Fields that readers refuse because of another: the version, a stage without a forward, a job of no model."""


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in WRITTEN.items() for text in texts])
def test_what_is_written_is_accepted(name, text):
    READERS[name](text, name)
    validator(name).validate(json.loads(text))


@pytest.mark.parametrize("name", ["1f1b", "zbv", "dualpipe", "spectrain", "avgpipe", "1f1b_rr"])
def test_every_kind_of_list_is_accepted(name):
    validator("schedule").validate(json.loads(to_json(pipesched.build(name, 4, 8))))


@pytest.mark.parametrize("path", [*sorted(DATA.glob("*.json")), *sorted((DATA / "machines").glob("*.json"))], ids=str)
def test_files_of_the_package_are_accepted(path):
    validator("cluster" if path.parent.name == "machines" else "profile").validate(json.loads(path.read_text()))


def places(value, place=()):
    """Yield the place of everything in a document; of a list its first member stands for all."""
    if place:
        yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*place, key))


def changed(document, place, value, name=None):
    """Return the document with a value in a place, or beside it under a name; without the value if it is None."""
    document = copy.deepcopy(document)
    parent = document
    *outer, last = place
    for key in outer:
        parent = parent[key]
    if value is None:
        del parent[last]
    else:
        parent[name or last] = value
    return document


def damaged(document, place):
    """Yield each fault and a document with it; `place` in a list stands for the members of the list."""
    if isinstance(place[-1], str):
        yield "missing", changed(document, place, None)
        yield "more", changed(document, place, 1, "no_such_field")
    for wrong, value in (("an object", {"no": 1}), ("a flag", True), ("text", "?")):
        yield wrong, changed(document, place, value)


def is_read(name, document):
    try:
        READERS[name](json.dumps(document), "file")
    except ValueError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_what_readers_refuse_for_its_shape_is_refused(name):
    schema, refused, accepted = validator(name), set(), set()
    for document in map(json.loads, WRITTEN[name]):
        for place in places(document):
            for wrong, document_with_it in damaged(document, place):
                if not is_read(name, document_with_it):
                    (accepted if schema.is_valid(document_with_it) else refused).add((".".join(map(str, place)), wrong))
    assert {place for place, _ in accepted} == TOGETHER.get(name, set())
    assert len(refused) > 20


LARGE_NUMBERS = {"-400 digits": "-1" + "0" * 400, "5000 digits": "9" * 5000}


@pytest.mark.parametrize("digits", LARGE_NUMBERS.values(), ids=LARGE_NUMBERS)
@pytest.mark.parametrize("name", READERS)
def test_readers_refuse_numbers_beyond_any_float_in_one_line(name, digits):
    refused = 0
    for document in map(json.loads, WRITTEN[name]):
        for place in places(document):
            text = json.dumps(changed(document, place, "DIGITS"))  # `json` writes no integer of 5000 digits
            try:
                READERS[name](text.replace('"DIGITS"', digits), "file")
            except ValueError as error:
                assert type(error).__module__.startswith("pipesched."), (place, error)  # noqa: PT017 -- or it is read
                assert "\n" not in str(error)  # noqa: PT017
                refused += 1
    assert refused > 10


@pytest.mark.parametrize("digits", LARGE_NUMBERS.values(), ids=LARGE_NUMBERS)
@pytest.mark.parametrize("column", ["stage", "forward_s", "backward_s", "saved_bytes", "overlap"])
def test_tables_refuse_numbers_beyond_any_float_in_one_line(tmp_path, column, digits):
    cells = {"forward_s": "1", "backward_s": "2", "saved_bytes": "3", "overlap": "0"} | {column: digits}
    path = tmp_path / "costs.csv"
    path.write_text(f"{','.join(cells)}\n{','.join(cells.values())}\n")
    with pytest.raises(pipesched.ProfileError) as told:
        load_cost_table(path)
    assert "\n" not in str(told.value)


def test_a_layer_may_have_a_number_of_any_length_as_its_name(tmp_path):
    names = ("1" * 400, "2" * 5000)
    path = tmp_path / "costs.csv"
    path.write_text("layer,forward_s,backward_s\n" + "".join(f"{name},1,2\n" for name in names))
    assert load_cost_table(path).names == tuple(name[:200] for name in names)


@pytest.mark.parametrize("rows", ["stage", "layer"])
@pytest.mark.parametrize(
    ("table", "fits"),
    [
        ("forward_s,backward_s\n1,2\n", True),
        ("forward_s,backward_s,saved_bytes,overlap\n1,2,30,0.5\n", True),
        ("forward_s,backward_s,backward_input_s,backward_weight_s\n1,,1,1\n", True),
        ("forward_s,backward_input_s,backward_weight_s,recompute_s\n1,1,1,\n", True),
        ("forward_s\n1\n", False),
        ("backward_s\n1\n", False),
        ("forward_s,backward_s,backward_input_s\n1,2,1\n", False),
        ("forward_s,backward_s,backward_input_s,backward_weight_s\n1,,1,\n", False),
        ("forward_s,backward_s\n-1,2\n", False),
        ("forward_s,backward_s\n?,2\n", False),
        ("forward_s,backward_s,saved_bytes\n1,2,1.5\n", False),
        ("forward_s,backward_s,saved_bytes\n1,2,\n", False),
        ("forward_s,backward_s,overlap\n1,2,1.5\n", False),
        ("forward_s,backward_s,colour\n1,2,3\n", False),
    ],
)
def test_tables_are_accepted_as_their_reader_does(tmp_path, rows, table, fits):
    header, row, *_ = table.splitlines()
    path = tmp_path / "costs.csv"
    path.write_text(f"stage,{header}\n0,{row}\n" if rows == "stage" else table)
    cells = [
        {name: None if not cell else float(cell) if cell != "?" else cell for name, cell in row.items()}
        for row in csv.DictReader(path.read_text().splitlines())
    ]
    assert validator(f"{rows}-costs").is_valid(cells) is fits
    if fits:
        load_cost_table(path)
    else:
        with pytest.raises(pipesched.ProfileError):
            load_cost_table(path)


def test_lines_of_a_search_are_accepted_and_others_refused(tmp_path):
    journal = tmp_path / "search.jsonl"
    pipesched.tune(hand_profile(), batch_size=4, num_devices=2, pipelines=[1], microbatches=[4], resume=journal)
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    schema = validator("search")
    assert len(lines) > 1
    assert all(map(schema.is_valid, lines))
    head, outcome, *_ = lines
    for wrong in ({**head, "version": 1}, {"format": head["format"]}, {**outcome, "setting": {}}, {**outcome, "no": 1}):
        assert not schema.is_valid(wrong)


def test_lines_of_a_sweep_are_accepted(tmp_path):
    costs = pipesched.DeviceCost(1.0, 2.0)
    pipesched.sweep(["1f1b"], costs, num_ranks=[2], num_microbatches=[2, 4], resume=tmp_path / "sweep.jsonl")
    lines = (tmp_path / "sweep.jsonl").read_text().splitlines()
    assert len(lines) == 3
    assert all(validator("search").is_valid(json.loads(line)) for line in lines)


def undescribed(schema):
    """Yield the fields without a sentence."""
    records = schema.get("anyOf", [schema.get("items", schema)])
    for record in (*records, *schema.get("$defs", {}).values()):
        yield from (name for name, field in record.get("properties", {}).items() if "description" not in field)


@pytest.mark.parametrize("name", FILE_FORMATS)
def test_every_field_is_explained(name):
    assert list(undescribed(file_schema(name))) == []


def test_an_unknown_format_is_refused():
    with pytest.raises(pipesched.ArgumentError, match="expected one of schedule, timeline"):
        file_schema("plans")
