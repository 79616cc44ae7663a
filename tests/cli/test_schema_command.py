"""``pipesched schema``."""

import json

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
