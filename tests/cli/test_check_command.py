"""``check``: the verdict, the grid with the places marked, and the backends."""

import json
import re
from itertools import cycle
from pathlib import Path

import pytest

from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.check import BACKENDS
from pipesched.schedules.formats import to_json
from pipesched.schedules.lowering import lower

DEADLOCK = (
    "rank 0 op 1: 0B0 waits forever for 1B0 of rank 1 (op 3), which comes after 1F1 (op 0), "
    "which waits for 0F1 of rank 0 (op 2), which comes after 0B0 (op 1): a circle"
)


def words(text):
    """Return the lines with each run of spaces as one; what begins with spaces goes on with the line before."""
    return [" ".join(line.split()) for line in re.sub(r"\n +", " ", text).splitlines()]


def test_a_deadlock_is_told_once_as_a_circle_and_marked_in_the_grid(pipesched):
    answer = pipesched("check -f dead.csv")
    assert (answer.code, answer.err) == (1, "")
    lines = words(answer.out)
    assert lines[0] == f"dead: {DEADLOCK}"
    assert lines[2:4] == ["rank 0 0F0 >0B0< >0F1< 0B1 0STEP", "rank 1 >1F1< 1B1 1F0 >1B0< 1STEP"]
    assert " ".join(lines).count("waits forever") == 1
    assert max(map(len, answer.out.splitlines())) <= 80
    assert all(" deadlocks " in line for line in lines[5:])


def test_a_schedule_says_on_which_backends_it_is_safe(pipesched):
    answer = pipesched("check -s 1f1b -p 2 -m 2")
    assert answer.code == 0
    lines = words(answer.out)
    assert lines[2] == "with the Sends and Recvs that pipesched, or PyTorch for its runtime, adds:"
    assert [line.split()[:2] for line in lines[3:]] == [[backend, "safe"] for backend in BACKENDS]


@pytest.mark.parametrize(("backend", "code"), [("gloo", 0), ("nccl", 0), ("nccl-pair", 1), ("buffered", 0)])
def test_the_exit_code_is_that_of_the_backend_asked_for(pipesched, backend, code):
    Path("lists.json").write_text(to_json(lower(one_f_one_b(2, 2))))
    answer = pipesched(f"check -f lists.json --backend {backend}")
    assert answer.code == code
    assert (">0RECV_B0<" in answer.out) == bool(code)
    assert pipesched(f"check -s gpipe -p 2 -m 2 --backend {backend}").code == 0


def test_data_hold_the_circle_link_by_link(pipesched):
    answer = pipesched("check -f dead.csv --json")
    assert answer.code == 1
    data = json.loads(answer.out)
    assert data["runs"] is False
    (finding,) = data["findings"]
    assert (finding["kind"], finding["rank"], finding["op"]) == ("progress", 0, 1)
    assert [(link["rank"], link["op"], link["text"], link["next"]) for link in finding["deadlock"]["links"]] == [
        (0, 1, "0B0", "needs"), (1, 3, "1B0", "after"), (1, 0, "1F1", "needs"), (0, 2, "0F1", "after")
    ]  # fmt: skip
    assert finding["deadlock"]["is_circle"] is True
    assert {name: entry["safe"] for name, entry in data["backends"].items()}["buffered"] is False


def test_on_a_terminal_marks_are_colours(pipesched, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    grid = next(line for line in pipesched("check -f dead.csv").out.splitlines() if line.startswith("rank 0"))
    assert grid.startswith("rank 0  0F0")
    assert ">0B0<" not in grid
    assert grid.count("\x1b[1;7;31m") == 2


CANNOT_RUN = {
    "dead.csv": "rank 0 op 1: 0B0",
    "unmatched.json": "rank 0 op 2: 0RECV_B0",
    "missing.json": "1B1",
}
COSTS, MODEL = "--uniform f=1,b=2", "mlp:layers=4,width=8"
ALIKE = (
    "versions -f {}", f"simulate -f {{}} {COSTS}", f"gantt -f {{}} {COSTS}", f"gantt -f {{}} {COSTS} --out x.png",
    f"trace -f {{}} {COSTS} --out x.json", f"compare {{}} {COSTS}", f"compare gpipe,{{}} -p 2 -m 2 {COSTS} --out x.csv",
    f"run -f {{}} {COSTS}", f"run -f {{}} {COSTS} --job x.json", f"run -f {{}} --model {MODEL} --out x.json",
    f"verify {MODEL} -f {{}} --out x", f"train {MODEL} -f {{}} --steps 2 --batch-size 4 --out x.json",
    f"train {MODEL} -f {{}} --steps 2 --batch-size 4 --distributed", f"train {MODEL} -f {{}} --steps 2 --job x.json",
)  # fmt: skip


@pytest.fixture
def cannot_run(folder, no_ranks):
    """Add lists that cannot run, each for another reason."""
    rows = {
        "unmatched": (1, [["0F0", "0SEND_F0>1", "0RECV_B0<1", "0B0", "0STEP"], ["1RECV_F0<0", "1F0", "1B0", "1STEP"]]),
        "missing": (2, [["0F0", "0B0", "0F1", "0B1", "0STEP"], ["1F0", "1B0", "1STEP"]]),
    }
    for name, (num_microbatches, ops) in rows.items():
        document = {"format": "pipesched.schedule", "version": 1, "name": name, "num_stages": 2,
                    "num_microbatches": num_microbatches, "rank_to_device": [0, 1], "ops": ops}  # fmt: skip
        (folder / f"{name}.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize(("line", "file"), [*zip(ALIKE, cycle(CANNOT_RUN))])
def test_lists_that_cannot_run_are_the_answer_no_in_every_command(pipesched, cannot_run, line, file):
    before = sorted(cannot_run.rglob("*"))
    answer = pipesched(line.format(file))
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"pipesched: {file}: {file.split('.')[0]}: {CANNOT_RUN[file]} ")
    assert answer.err.count("\n") == 1
    assert sorted(cannot_run.rglob("*")) == before


@pytest.mark.parametrize("file", ["dead.csv", "missing.json"])
def test_communication_that_cannot_be_put_in_is_the_answer_no(pipesched, cannot_run, file):
    answer = pipesched(f"show -f {file} --format csv-comms --out x.csv")
    assert (answer.code, answer.out) == (1, "")
    assert "1B" in answer.err
    assert not (cannot_run / "x.csv").exists()


def test_of_several_that_are_compared_one_that_cannot_run_has_a_row_where_all_are_asked_for(pipesched, cannot_run):
    answer = pipesched("compare --all dead.csv -p 2 -m 4 --uniform f=1,i=1,w=1 --json")
    assert answer.code == 0
    row = next(row for row in json.loads(answer.out)["schedules"] if row["name"] == "dead.csv")
    assert DEADLOCK in row["reason"]
