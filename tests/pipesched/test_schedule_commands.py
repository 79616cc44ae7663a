"""``list``, ``show`` and ``check``."""

import json

import pytest

from schedules.catalogue import CATALOGUE, build
from schedules.formats.schedule_json import from_json, read_schedule
from schedules.lower import lower


def test_list_has_every_schedule_as_table_and_as_data(pipesched):
    table = pipesched("list").out
    assert all(name in table for name in CATALOGUE)
    assert [row["name"] for row in json.loads(pipesched("list --json").out)] == list(CATALOGUE)


def test_a_schedule_that_can_run_is_fine(pipesched):
    answer = pipesched("check --schedule-file mine.csv")
    assert (answer.code, answer.err) == (0, "")
    assert "2 ranks, 2 stages, 3 micro-batches" in answer.out


def test_a_deadlock_is_the_answer_no_with_rank_and_op(pipesched):
    answer = pipesched("check -f dead.csv")
    assert (answer.code, answer.err) == (1, "")
    assert answer.out.startswith("dead: rank 0 op 1: 0B0 waits forever")
    answer = pipesched("check -f dead.csv --json")
    assert answer.code == 1
    found = json.loads(answer.out)
    assert found["runs"] is False
    assert {key: found["findings"][0][key] for key in ("rank", "op")} == {"rank": 0, "op": 1}


def test_show_prints_the_grid(pipesched):
    assert pipesched("show -s gpipe -p 2 -m 2").out == "rank 0  0F0 0F1 0B0 0B1\nrank 1  1F0 1F1 1B0 1B1\n"


@pytest.mark.parametrize("name", CATALOGUE)
def test_json_reads_back_as_the_same_schedule(pipesched, name):
    assert from_json(pipesched(f"show -s {name} -p 2 -m 4 --format json").out, "out") == build(name, 2, 4)


@pytest.mark.parametrize("name", [name for name, entry in CATALOGUE.items() if not entry.is_asynchronous])
@pytest.mark.parametrize("form", ["csv", "csv-comms"])
def test_csv_loads_back_through_schedule_file(pipesched, folder, name, form):
    assert pipesched(f"show -s {name} -p 2 -m 4 --format {form} --out again.csv").out == ""
    made = build(name, 2, 4)
    assert read_schedule(folder / "again.csv").ops == (made if form == "csv" else lower(made)).ops
    assert pipesched("check -f again.csv").code == 0
    alike = [json.loads(pipesched(f"simulate {which} --uniform f=1,b=2 --json").out)["makespan_s"]
             for which in ("-f again.csv", f"-s {name} -p 2 -m 4")]  # fmt: skip
    assert alike[0] == alike[1]


def test_pytorch_reads_our_compute_only_csv(pipesched, folder):
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    pipesched("show -s 1f1b -p 2 -m 4 --format csv --out ours.csv")
    rows = [line.split(",") for line in (folder / "ours.csv").read_text().splitlines()]
    actions = [[torch_schedules._Action.from_str(cell) for cell in row] for row in rows]
    assert [[str(action) for action in row] for row in actions] == rows
