"""``pipesched schema``."""

import json

import pytest

from pipesched.workflows.file_formats import FILE_FORMATS, file_schema


def test_a_schema_is_printed_or_written(pipesched, folder):
    printed = pipesched("schema plan").out
    assert json.loads(printed) == file_schema("plan")
    assert pipesched("schema plan --out plan.schema.json").code == 0
    assert (folder / "plan.schema.json").read_text() == printed


def test_all_are_written_into_a_folder_and_named(pipesched, folder):
    answer = pipesched("schema --all --out .")
    assert answer.out == ""
    assert pipesched.wrote == [", ".join(f"{name}.schema.json" for name in FILE_FORMATS)]
    assert {json.loads(path.read_text())["title"].split()[1] for path in folder.glob("*.schema.json")} == {
        *FILE_FORMATS
    }


def test_the_formats_are_listed(pipesched):
    assert all(name in pipesched("schema").out for name in FILE_FORMATS)
    assert list(json.loads(pipesched("schema --json").out)["files"]) == list(FILE_FORMATS)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("schema plans", "got 'plans', expected one of 'schedule', 'timeline'"),
        ("schema --all", "--all: got no --out, expected --out with a folder"),
        ("schema --all --out nowhere", "--all: got --out nowhere, expected --out with a folder"),
        ("schema plan --all --out .", "--all: got plan too"),
        ("schema --out plan.json", "--out: got it without NAME"),
        ("schema plan --out plan.yaml", "plan.yaml: got suffix '.yaml', expected .json"),
    ],
)
def test_what_cannot_be_asked_is_one_line(pipesched, line, said):
    answer = pipesched(line)
    assert answer.code == 2
    assert said in answer.err
