"""A fast sample of what `benchmarks/faults.py` counts: nothing of it may be otherwise than promised."""

import gc
import json
import os
import re
import sys
from pathlib import Path

import pytest

import pipesched
from tests.processes import run

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Return the lines of each row, and the answers of the command on rows that hold and rows that do not.

    They come from one new process: a fork of this one, whose threads have run, may hang.
    """
    page = tmp_path_factory.mktemp("faults") / "page.md"
    done = run_program(f"""
import json, sys
from contextlib import redirect_stdout
import faults
from fault_rows import damaged_input, hostile_files, training_kills
from fault_rows.row import Row
training_kills.STEPS = 100
rows = {{training_kills: 1, damaged_input: 17, hostile_files: 1}}
told = {{row.__name__.split(".")[1]: [*row.ROW.lines(count)] for row, count in rows.items()}}
def row(title, is_kept, is_beside=False):
    def lines(count):
        yield f"{{count}} tried"
        return is_kept
    return Row(title, "none", 2, lines, is_beside)
faults.ROWS = {{"a": row("A", False), "b": row("B", True), "c": row("C", False, True), "d": row("D", True, True)}}
sys.argv = ["faults.py", "--out", {str(page)!r}]
with redirect_stdout(sys.stderr):
    codes = [faults.main()]
    sys.argv += ["--rows=b,d"]
    codes += [faults.main()]
print(json.dumps(told | {{"codes": codes}}))
""")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) | {"errors": done.stderr, "page": page.read_text()}


def run_program(program):
    found_in = os.pathsep.join([str(BENCHMARKS), *sys.path])
    return run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": found_in})


def test_the_exit_code_says_that_a_row_did_not_hold_and_a_line_which(told):
    assert told["codes"] == [1, 0]
    assert "faults: a, c: not as promised\n" in told["errors"]
    assert [line for line in told["page"].splitlines() if line.startswith("# ")] == ["# A", "# B", "# C", "# D"]


def test_damaged_files_of_every_format_and_damaged_command_lines_are_answered_in_a_line(told):
    assert "As promised: 24 of 24." in told["damaged_input"]


def test_hostile_files_of_every_format_do_nothing(told):
    lines = told["hostile_files"]
    (cells,) = (line.split("|") for line in lines if line.startswith("| a pickle"))
    assert cells[-2].strip() == "0", lines


@pytest.mark.distributed
def test_faults_of_a_run_end_as_promised_at_a_rank_and_op_that_chance_picks():
    """All kinds but seven of `tests/executor` and `tests/cli`; the promised times are longer: the machine is busy."""
    done = run_program("""
import random
from fault_rows import fault_kinds, rank_faults, workers
place = fault_kinds.PLACES[0]
elsewhere = ("kill", "raise", "exit", "nan", "exception of a layer")
elsewhere += ("SIGKILL to the launcher", "SIGINT to the launcher")
kinds = [(seed, kind) for seed, kind in enumerate(fault_kinds.kinds_of(place)) if kind not in elsewhere]
workers.load_torch()
def tried(index):
    seed, kind = kinds[index]
    return rank_faults.outcome_of(kind, place, random.Random(seed), patience=10.0).wrong
for (_, kind), wrong in zip(kinds, workers.worked_off(tried, len(kinds), 2)):
    print(kind, wrong, sep=": ")
""")
    assert done.returncode == 0, done.stderr
    told = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert len(told) >= 7
    assert {kind: wrong for kind, wrong in told.items() if wrong} == {}


def test_a_training_that_is_killed_and_goes_on_ends_with_the_same_bytes(told):
    lines = told["training_kills"]
    assert any(re.match(r"Equal: (\d+) of \1, after 1 kills", line) for line in lines), lines
    assert "At most 40 steps lost: 1 of 1." in lines


def test_a_command_writes_the_same_bytes_under_other_hash_seeds(tmp_path):
    line = "compare gpipe,1f1b,zbv -p 2 -m 4 --uniform f=1,i=1,w=1 --json --out".split()  # noqa: SIM905
    outputs = set()
    for seed in ("1", "2"):
        (tmp_path / seed).mkdir()
        command = [sys.executable, "-m", "pipesched", *line, "x.html"]
        done = run(command, cwd=tmp_path / seed, env=os.environ | {"PYTHONHASHSEED": seed})
        assert done.returncode == 0, done.stderr
        outputs.add((done.stdout, (tmp_path / seed / "x.html").read_bytes()))
    assert len(outputs) == 1


@pytest.mark.distributed
def test_sixteen_ranks_run_on_few_cores():
    lists = pipesched.build("1f1b", 16, 16)
    result = pipesched.run(lists, pipesched.uniform(16, forward_s=1e-3, backward_s=1e-3), iterations=1)
    assert {span.rank for span in result.timeline.spans} == set(range(16))


def test_a_training_holds_nothing_more_after_many_steps():
    """Every object that Python's collector knows of counts; all losses are in one."""
    held = {}

    def on_step(step, scores):
        if step in (50, 200):
            gc.collect()
            held[step] = len(gc.get_objects())

    lists, given = pipesched.build("1f1b", 2, 1), {"batch_size": 1, "optimizer": "momentum"}
    pipesched.train("mlp:layers=2,width=2", lists, num_steps=201, on_step=on_step, **given)
    assert held[200] <= held[50] + 20
