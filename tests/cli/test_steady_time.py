"""Steady seconds per micro-batch, in ``simulate``, ``compare``, ``sweep`` and ``tune``."""

from pathlib import Path

import pytest

from tests.cli.json_answers import data

COSTS = "--uniform f=1,b=2"
GPT = Path(__file__).parents[2] / "profiles" / "data" / "gpt-10m-epyc.json"


def test_pipedream_and_gpipe_are_told_apart_by_their_pace_in_the_long_run(pipesched):
    line = f"compare pipedream,gpipe -p 4 -m 8 {COSTS}"
    rows = {row["name"]: row for row in data(pipesched, line)["schedules"]}
    assert rows["pipedream"]["makespan_s"] == rows["gpipe"]["makespan_s"] == 33
    assert rows["pipedream"]["steady_s_per_microbatch"] == 3
    assert rows["gpipe"]["steady_s_per_microbatch"] == 33 / 8
    assert rows["pipedream"]["steady_bubble_fraction"] == 0
    assert rows["gpipe"]["steady_bubble_fraction"] == rows["gpipe"]["bubble_fraction"] == pytest.approx(9 / 33)
    table = pipesched(f"{line} --wide").out
    assert "steady / micro-batch" in table
    assert all(f"│ {pace} │" in " ".join(table.split()) for pace in ("3 s", "4.125 s"))
    steady_line = "\nsteady state: 3 s per micro-batch, steady_bubble_fraction 0.00%\n"
    assert steady_line in pipesched(f"simulate -s pipedream -p 4 -m 8 {COSTS}").out


def test_the_steady_bubble_counts_steps_that_a_file_leaves_to_its_caller(pipesched, folder):
    """Of 2 x 3 x 3.5 or 2 x (12 + 0.5) seconds on both devices, each computes 3 x 3 s and steps once."""
    costs = "--uniform f=1,b=2,step_s=0.5"
    gpipe = data(pipesched, f"simulate -s gpipe -p 2 -m 3 {costs}")
    file = data(pipesched, f"simulate -f mine.csv {costs}")
    assert gpipe["steady_bubble_fraction"] == pytest.approx(1 - 9.5 / 12.5)
    assert file["steady_bubble_fraction"] == pytest.approx(1 - 9.5 / 12.5)
    pipedream = data(pipesched, f"simulate -s pipedream -p 2 -m 3 {costs}")
    assert pipedream["steady_bubble_fraction"] == pytest.approx(0)


def test_pipelines_that_drift_have_one_steady_time_in_every_command(pipesched):
    """A simulation of its own, with ops that vary, has 33.2 ms; lockstep would have 41.25 ms, and 1F1B has it."""
    line = "-p 4 -m 16 --set pipelines=2,advance=1 --uniform f=10ms,b=20ms"
    simulated = data(pipesched, f"simulate -s avgpipe {line}")
    (compared,) = data(pipesched, f"compare avgpipe {line}")["schedules"]
    (swept,) = data(pipesched, f"sweep -s avgpipe {line}")["settings"]
    for row in (simulated, compared, swept):
        assert row["steady_s_per_microbatch"] == pytest.approx(0.0332, rel=0.01)
        assert row["makespan_s"] == pytest.approx(0.66)
    assert compared["steady_error"] == simulated["steady_error"] < 0.02


def test_a_note_says_where_lists_are_too_long_to_be_repeated(pipesched, monkeypatch):
    monkeypatch.setattr("pipesched.simulator.tuner.setting_evaluation._MOST_CELLS", 7)
    for module in ("plan_judge", "plan_search"):
        monkeypatch.setattr(f"pipesched.simulator.planner.{module}.MOST_CELLS", 1)
    tuned = pipesched(f"tune {GPT} -b 8 -p 2 -s 1f1b --microbatches 4").out
    assert "steady time: lists of more than 7 stages x micro-batches are not tried" in " ".join(tuned.split())
    planned = pipesched(f"plan {GPT} -b 8 --devices 2 --depth 2 -s 1f1b --sends blocking --top 1").out
    assert "stages x micro-batches are not tried" in " ".join(planned.split())


def test_the_pace_of_pipelines_that_drift_has_its_error_behind_it_and_no_other_has_one(pipesched):
    line = f"tune {GPT} -p 2 -b 8 -m 4 -n 1,3 --advance 0"
    rows = {row["num_pipelines"]: row for row in data(pipesched, line)["settings"]}
    assert rows[1]["steady_error"] is None
    assert 0 < rows[3]["steady_error"] < 0.05
    cells = [cell.strip() for cell in pipesched(f"{line} --wide").out.replace("┃", "│").split("│")]
    (drifting,) = (cell for cell in cells if "±" in cell)
    assert drifting.endswith(f" ± {rows[3]['steady_error']:.1%}")
