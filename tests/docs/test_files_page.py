"""docs/files.md has every file format: an example that its reader takes, and the fields that its schema has."""

import json
import re

import jsonschema
import pytest

from docs.make_files import PAGE, page
from pipesched.executor.launch import job_from_json
from pipesched.executor.training import index_from_json
from pipesched.profiles.io import load_cluster, load_cost_table, load_plan, load_profile, load_run_costs
from pipesched.schedules.formats import read_schedule, read_timeline
from pipesched.workflows.file_formats import FILE_FORMATS, file_schema

TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^## ([a-z-]+)\n.*?```(?:json|csv)\n(.*?)```", TEXT, re.DOTALL | re.MULTILINE))
LOADERS = {
    "schedule": read_schedule,
    "timeline": read_timeline,
    "profile": load_profile,
    "run-costs": load_run_costs,
    "stage-costs": load_cost_table,
    "layer-costs": load_cost_table,
    "cluster": load_cluster,
    "plan": load_plan,
    "job": lambda path: job_from_json(path.read_text(), str(path)),
    "checkpoint": lambda path: index_from_json(path.read_text(), str(path)),
}


def test_the_tables_are_those_of_the_formats():
    assert page(TEXT) == TEXT, "run make generated"


def test_every_format_has_its_row_and_its_example():
    assert list(EXAMPLES) == list(FILE_FORMATS)
    assert re.findall(r"^\| \[([a-z-]+)\]", TEXT, re.MULTILINE) == list(EXAMPLES)
    assert re.findall(r"<!-- fields of ([a-z-]+) -->", TEXT) == list(EXAMPLES)


@pytest.mark.parametrize("name", LOADERS)
def test_an_example_is_read(name, tmp_path):
    path = tmp_path / f"example{FILE_FORMATS[name].suffix}"
    path.write_text(EXAMPLES[name])
    LOADERS[name](path)
    if path.suffix == ".json":
        jsonschema.validate(json.loads(EXAMPLES[name]), file_schema(name))


def test_the_lines_of_a_search_are_as_its_schema_says():
    for line in EXAMPLES["search"].splitlines():
        jsonschema.validate(json.loads(line), file_schema("search"))
