"""--width and --placement, and a plan in place of all that: the same schedule, cut and trained as it says."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipesched.executor.launch import job_from_json
from pipesched.profiles.io import Plan, Predicted, save_json
from pipesched.schedules.formats import from_json
from pipesched.schedules.transforms import ScheduleSpec

MODEL = "mlp:width=8,layers=6"
PLAN = Plan(
    model=MODEL,
    schedule_spec=ScheduleSpec(name="1f1b", num_ranks=2, num_microbatches=4, width=2, placement="data", recompute=(0,)),
    partition=(2, 4),
    microbatch_size=2,
    batch_size=16,
    compression=None,
    predicted=Predicted(1.0, 16.0),
)
SAID = "-s 1f1b -p 2 -m 4 --width 2 --placement data --recompute 0"
COSTS = "--uniform f=1,b=2"


@pytest.fixture(autouse=True)
def _plans(folder):
    save_json(PLAN, folder / "plan.json")
    save_json(replace(PLAN, compression="half"), folder / "half.json")
    pipedream = ScheduleSpec(name="pipedream", num_ranks=2, width=2)
    save_json(replace(PLAN, schedule_spec=pipedream, batch_size=4), folder / "pipedream.json")
    graph = replace(PLAN, model="graph elsewhere/vgg16.graph.txt", partition=(20, 20), microbatch_size=1, batch_size=8)
    save_json(graph, folder / "graph.json")


def test_a_delayed_reduce_hides_behind_no_backward(pipesched):
    """F F B B of two stages takes 3 s, each Reduce 0.5 s: the first runs beside the second B, or before its Step."""
    layout = "-s interleaved -p 1 -m 1 -v 2 --width 2"
    costs = f"{COSTS},weight_bytes=1000 --link bandwidth_bytes_per_s=1000"
    soon, delayed = (
        json.loads(pipesched(f"simulate {layout} {costs} {option} --json").out)["makespan_s"]
        for option in ("", "--delayed-reduce")
    )
    assert (soon, delayed) == (3.5, 4.0)
    refused = pipesched(f"simulate {layout} {costs} --late-sums")
    assert (refused.code, refused.out) == (2, "")
    assert "--late-sums" in refused.err


@pytest.mark.parametrize("command", ["check", "show", f"simulate {COSTS}", f"gantt {COSTS}", "versions"])
def test_what_takes_a_schedule_takes_a_plan(pipesched, command):
    planned, said = pipesched(f"{command} --plan plan.json"), pipesched(f"{command} {SAID}")
    assert planned.code == said.code == 0
    assert planned.out == said.out != ""


def test_a_plan_without_its_machines_is_said_to_have_links_that_take_no_time(pipesched):
    line, costs = "simulate --plan plan.json --json", f"{COSTS},output_bytes=4000000"
    notes = [
        json.loads(pipesched(f"{line} {options}").out)["notes"]
        for options in (costs, f"{costs} --link bandwidth_bytes_per_s=8e6", COSTS)
    ]
    assert [len(said) for said in notes] == [1, 0, 0]
    assert "links take no time" in notes[0][0]
    assert "where a step takes 1 s by prediction" in notes[0][0]


def test_a_plan_without_costs_is_refused_with_its_model(pipesched):
    answer = pipesched("simulate --plan plan.json")
    assert (answer.code, answer.out) == (2, "")
    assert f"expected a profile of the plan's model, {MODEL}; try --profile P.json" in answer.err


def test_a_plan_given_as_lists_is_named(pipesched):
    answer = pipesched(f"simulate -f plan.json {COSTS}")
    assert (answer.code, answer.out) == (2, "")
    assert "try --plan plan.json" in answer.err


LINKED = f"{COSTS},output_bytes=4000000 --link bandwidth_bytes_per_s=8e6"  # half a second, compressed a quarter


def test_planned_messages_are_compressed(pipesched):
    half, said = (
        pipesched(f"simulate {what} {LINKED}").out for what in ("--plan half.json", f"{SAID} --compression half")
    )
    assert half == said != pipesched(f"simulate --plan plan.json {LINKED}").out


def test_the_graph_of_a_plan_may_lie_elsewhere(pipesched):
    graphs = Path(__file__).parents[2] / "profiles" / "data" / "pipedream"
    assert pipesched(f"simulate --plan graph.json --profile {graphs / 'vgg16.graph.txt'}").code == 0


def test_a_planned_run_without_a_flush_is_shown_until_it_has_settled(pipesched):
    assert "16 micro-batches" in pipesched("check --plan pipedream.json").out  # 8 steps of 2 copies


def test_a_job_of_a_plan_is_the_plan(pipesched, folder):
    assert pipesched("run --plan half.json --job job.json").code == 0
    spec = job_from_json((folder / "job.json").read_text(), "job.json")
    assert (spec.model, spec.bounds, spec.compression) == (MODEL, ((0, 2), (2, 6)), "half")
    assert spec.job.microbatch_size == 2
    schedule = from_json(spec.job.schedule, "job.json")
    assert (schedule.name, schedule.rank_to_device) == ("1f1bx2+R", (0, 2, 1, 3))
    assert pipesched("train --plan half.json --steps 7 --job train.json").code == 0
    training = job_from_json((folder / "train.json").read_text(), "train.json")
    assert training.job.schedule_spec == PLAN.schedule_spec
    assert (training.model, training.bounds, training.compression) == (MODEL, ((0, 2), (2, 6)), "half")
    assert (training.job.batch_size, training.job.num_steps) == (16, 7)
