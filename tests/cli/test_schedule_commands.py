"""``list``, ``show`` and ``check``."""

import json
from importlib.metadata import version

from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.formats import from_json, read_schedule


def test_list_has_every_schedule_as_table_and_as_data(pipesched):
    table = pipesched("list").out
    assert all(name in table for name in CATALOGUE)
    assert [row["name"] for row in json.loads(pipesched("list --json").out)["schedules"]] == list(CATALOGUE)


def test_list_shows_defaults_with_their_type_and_dots_where_the_counts_decide(pipesched):
    table = pipesched("list").out
    assert all(text in table for text in ("advance=1]", "f=1.0", "limit=.."))
    rows = {row["name"]: row for row in json.loads(pipesched("list --json").out)["schedules"]}
    defaults = {parameter["name"]: parameter["default"] for parameter in rows["zb_auto"]["parameters"]}
    assert defaults == {"f": 1.0, "i": 1.0, "w": 1.0, "c": 0.0, "limit": None, "kept": 1.0}


def test_whole_numbers_and_others_reach_the_builder(pipesched):
    assert pipesched("show -s zb_auto -p 3 -m 6 --set f=1.5 --set limit=4,c=0.25").out.strip() == str(
        build("zb_auto", 3, 6, f=1.5, limit=4.0, c=0.25)
    )
    assert pipesched("show -s 1f1b_afp -p 3 -m 6 --set advance=2").out.strip() == str(
        build("1f1b_afp", 3, 6, advance=2)
    )


def test_show_prints_the_grid(pipesched):
    assert pipesched("show -s gpipe -p 2 -m 2").out == "rank 0  0F0 0F1 0B0 0B1\nrank 1  1F0 1F1 1B0 1B1\n"


def test_a_file_that_cannot_run_is_shown_with_a_warning(pipesched, folder):
    answer = pipesched("show -f dead.csv --out again.json")
    assert (answer.code, answer.out, answer.err.count("\n")) == (0, "", 1)
    assert answer.err.startswith("pipesched: warning: dead.csv: rank 0 op 1: ")
    assert from_json((folder / "again.json").read_text(), "it").ops == read_schedule(folder / "dead.csv").ops
    assert pipesched("show -f mine.csv").err == ""


def test_names_of_pytorch_are_read_in_any_case_and_the_schedule_keeps_ours(pipesched):
    name, own = "Interleaved1F1B", "interleaved"
    for line in (
        "show",
        "check",
        "versions",
        "simulate --json --uniform f=1,i=1,w=1",
        "compare --json --uniform f=1,i=1,w=1",
    ):
        pytorch_answer, answer = (pipesched(f"{line} -s {given} -p 2 -m 4") for given in (name.lower(), own))
        assert pytorch_answer == answer
        assert answer.code == 0
    assert pipesched(f"show -s {name} -p 2 -m 4").out == pipesched(f"show -s {own} -p 2 -m 4").out


def test_one_schedule_under_two_names_is_compared_once(pipesched):
    answer = pipesched("compare GPipe,gpipe,ScheduleGPipe -p 2 -m 4 --uniform f=1,b=2 --json")
    assert [row["name"] for row in json.loads(answer.out)["schedules"]] == ["gpipe"]


def test_list_shows_other_names_and_stages_per_rank(pipesched):
    assert "Interleaved1F1B" in pipesched("list --wide").out
    rows = {row["name"]: row for row in json.loads(pipesched("list --json").out)["schedules"]}
    assert "ScheduleInterleaved1F1B" in rows["interleaved"]["aliases"]
    assert [rows[name]["chunks"] for name in ("gpipe", "zbv", "hanayo", "interleaved")] == [1, 2, 4, None]


def test_chunks_of_several_schedules_are_those_of_one_at_least(pipesched):
    line = "compare -p 2 -m 4 --uniform f=1,i=1,w=1 --json"
    assert pipesched(f"{line} gpipe,zbv -v 2") == pipesched(f"{line} gpipe,zbv")
    assert pipesched(f"{line} gpipe,hanayo -v 2").code == 2
    assert pipesched(f"{line} gpipe,hanayo -v 2 --set waves=1").code == 0


def test_the_version_is_that_of_the_installed_package(pipesched):
    assert pipesched("--version") == (0, f"{version('pipesched')}\n", "")
    assert pipesched("simulate -h").out == pipesched("simulate --help").out
