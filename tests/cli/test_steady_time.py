"""Steady seconds per micro-batch, in ``simulate`` and ``compare``."""

import json
from pathlib import Path

import pytest

from pipesched.schedules.builders import CATALOGUE
from tests.cli.json_answers import data

COSTS = "--uniform f=1,b=2"
GPT = Path(__file__).parents[2] / "profiles" / "data" / "gpt-10m-epyc.json"


def steady(pipesched, line):
    return data(pipesched, f"simulate {line}")["steady_s_per_microbatch"]


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


def test_every_schedule_has_a_pace_between_its_work_and_its_makespan(pipesched):
    for row in data(pipesched, "compare --all -p 4 -m 8 --uniform f=1,i=1,w=1,step_s=0.5")["schedules"]:
        least_s = 3.0 * (5 * 4 / 3 / 5 if row["name"] == "1f1b_rr" else 1)  # of three stages the largest is 4 / 3
        assert least_s - 1e-9 <= row["steady_s_per_microbatch"] <= row["makespan_s"] / 8 + 1e-9


def test_a_step_between_batches_counts_and_one_behind_another_stage_does_not(pipesched):
    """The first stage's Step is what the next batch waits for; a file without Steps is trained with them."""
    line = "-p 2 -m 3 --uniform f=1,b=2,step_s=0.5"
    assert steady(pipesched, f"-s gpipe {line}") == pytest.approx((4 * 3 + 0.5) / 3)
    assert steady(pipesched, f"-s pipedream {line}") == pytest.approx(3.5)
    assert steady(pipesched, "-f mine.csv --uniform f=1,b=2,step_s=0.5") == pytest.approx((4 * 3 + 0.5) / 3)


def test_the_steady_bubble_counts_steps_that_a_file_leaves_to_its_caller(pipesched, folder):
    """Of 2 x 3 x 3.5 or 2 x (12 + 0.5) seconds on both devices, each computes 3 x 3 s and steps once."""
    costs = "--uniform f=1,b=2,step_s=0.5"
    gpipe = data(pipesched, f"simulate -s gpipe -p 2 -m 3 {costs}")
    file = data(pipesched, f"simulate -f mine.csv {costs}")
    assert gpipe["steady_bubble_fraction"] == pytest.approx(1 - 9.5 / 12.5)
    assert file["steady_bubble_fraction"] == pytest.approx(1 - 9.5 / 12.5)
    pipedream = data(pipesched, f"simulate -s pipedream -p 2 -m 3 {costs}")
    assert pipedream["steady_bubble_fraction"] == pytest.approx(0)


COPIES = "--uniform f=1,b=2,step_s=0.25,copy_s=0.5"
"""Under PipeDream every rank but the last keeps a version with each Step; under PipeDream-2BW every rank does."""


@pytest.mark.parametrize(
    ("name", "pace_s", "idle_share"), [("pipedream", 3.75, 0.5 / (4 * 3.75)), ("pipedream_2bw", 3 + 0.75 / 4, 0.0)]
)
def test_copies_of_weights_are_work_of_every_period_also_behind_the_last_step_of_a_run(
    pipesched, name, pace_s, idle_share
):
    simulated = data(pipesched, f"simulate -s {name} -p 4 -m 8 {COPIES}")
    (compared,) = data(pipesched, f"compare {name} -p 4 -m 8 {COPIES}")["schedules"]
    (swept,) = data(pipesched, f"sweep -s {name} -p 4 -m 8 {COPIES}")["settings"]
    for row in (simulated, compared, swept):
        assert row["steady_s_per_microbatch"] == pytest.approx(pace_s, rel=1e-12)
        assert row["steady_bubble_fraction"] == pytest.approx(idle_share, abs=1e-12)


@pytest.mark.parametrize("name", ["gpipe", "pipedream"])
def test_copies_take_as_many_more_micro_batches_in_the_same_time(pipesched, name):
    single_s, two = (steady(pipesched, f"-s {name} -p 3 -m 6 {COSTS} --width {width}") for width in (1, 2))
    assert two == pytest.approx(single_s / 2, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "settings", "expected_s"), [
        ("1f1b", "", (8 + 3) * 3 / 8), ("pipedream", "", 3.0), ("pipedream_2bw", " --set accumulate=4", 3.0),
        ("hybrid", " --set pipelined=4", 12.0), ("hybrid", "", 7.5),
    ],
)  # fmt: skip
def test_lists_from_a_file_have_the_steady_time_of_their_name(pipesched, folder, name, settings, expected_s):
    """The second half of `hybrid` has one micro-batch in the pipeline: 4 stages of 3 s, one after the other."""
    pipesched(f"show -s {name} -p 4 -m 8{settings} --out lists.json")
    assert steady(pipesched, f"-s {name} -p 4 -m 8{settings} {COSTS}") == pytest.approx(expected_s, rel=1e-12)
    assert steady(pipesched, f"-f lists.json {COSTS}") == pytest.approx(expected_s, rel=1e-12)


def test_pipelines_that_drift_have_one_steady_time_in_every_command(pipesched):
    """A simulation of its own, with ops that vary, has 33.2 ms; lockstep would have 41.25 ms, and 1F1B has it."""
    line = "-p 4 -m 16 --set pipelines=2,advance=1 --uniform f=10ms,b=20ms"
    simulated = data(pipesched, f"simulate -s avgpipe {line}")
    assert simulated["steady_s_per_microbatch"] == pytest.approx(0.0332, rel=0.01)
    assert simulated["makespan_s"] == pytest.approx(0.66)
    (compared,) = data(pipesched, f"compare avgpipe {line}")["schedules"]
    (swept,) = data(pipesched, f"sweep -s avgpipe {line}")["settings"]
    for row in (compared, swept):
        assert row["steady_s_per_microbatch"] == simulated["steady_s_per_microbatch"]
    assert compared["steady_error"] == simulated["steady_error"] < 0.02
    told = pipesched(f"simulate -s avgpipe {line}").out
    assert f" ± {simulated['steady_error']:.1%} per micro-batch" in " ".join(told.split())


@pytest.mark.parametrize("is_recomputed", [False, True])
def test_a_search_and_a_simulation_say_the_same_steady_time_of_pipelines_that_drift(pipesched, is_recomputed):
    line = f"tune {GPT} -p 2 -b 8 --microbatches 4 -n 2 --advance 1 --recompute {'yes' if is_recomputed else 'no'}"
    (row,) = (row for row in data(pipesched, line)["settings"] if row["num_pipelines"] == 2)
    told = f"-s avgpipe -p 2 -m 8 --set pipelines=2,advance=1 --profile {GPT} --microbatch-size 2"
    simulated = data(pipesched, f"simulate {told}{' --recompute all' if is_recomputed else ''}")
    for name in ("steady_s_per_microbatch", "steady_error"):
        assert row[name] == pytest.approx(simulated[name], rel=1e-9)


def test_recomputation_and_blocking_sends_are_in_it(pipesched):
    assert steady(pipesched, f"-s pipedream -p 4 -m 8 {COSTS} --recompute all") == pytest.approx(4.0)
    blocking = "-s gpipe -p 2 -m 1 --uniform f=1,b=2,output_bytes=100 --link bandwidth_bytes_per_s=100 --sends blocking"
    assert steady(pipesched, blocking) == pytest.approx(1 + 1 + 1 + 2 + 1 + 2)


def test_with_jitter_nothing_is_steady(pipesched):
    assert steady(pipesched, f"-s gpipe -p 2 -m 3 {COSTS} --jitter 0.1") is None
    assert "steady" not in pipesched(f"simulate -s gpipe -p 2 -m 3 {COSTS} --jitter 0.1").out


@pytest.mark.parametrize("name", sorted(name for name, entry in CATALOGUE.items() if entry.traits.is_asynchronous))
def test_a_longer_run_gets_longer_at_that_pace(pipesched, name):
    costs = "-p 3 --uniform f=1,i=1.25,w=0.5,step_s=0.25,output_bytes=10 --link latency_s=0.3,bandwidth_bytes_per_s=100"
    short, long = (data(pipesched, f"simulate -s {name} -m {m} {costs}")["makespan_s"] for m in (60, 120))
    assert steady(pipesched, f"-s {name} -m 12 {costs}") == pytest.approx((long - short) / 60, rel=1e-9)


def test_the_settings_of_a_search_have_the_pace_that_simulate_says(pipesched):
    line = f"tune {GPT} -b 8 -p 2 -s zbv,1f1b --input-share 0.5 --microbatches 4 --json"
    rows = json.loads(pipesched(line).out)["settings"]
    assert {row["schedule"] for row in rows} == {"zbv", "1f1b"}
    for row in rows:
        told = f"-s {row['schedule']} -p 2 -m 4 --profile {GPT} --microbatch-size 2 --input-share 0.5"
        simulated = data(pipesched, f"simulate {told}")
        for name in ("steady_s_per_microbatch", "steady_bubble_fraction"):
            assert row[name] == pytest.approx(simulated[name], rel=1e-9)


def test_a_schedule_has_its_pace_under_any_of_its_names(pipesched):
    assert steady(pipesched, f"-s PipeDream -p 4 -m 8 {COSTS}") == 3


def test_a_note_says_where_lists_are_too_long_to_be_repeated(pipesched, monkeypatch):
    monkeypatch.setattr("pipesched.simulator.tuner.setting_evaluation._MOST_CELLS", 7)
    for module in ("candidate_evaluation", "plan_search"):
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
