"""A run of a plan stands beside what the plan predicted."""

from dataclasses import replace

import pytest

from pipesched.executor.runs import Measured
from pipesched.profiles.io import Plan, Predicted
from pipesched.questions import ScheduleCounts
from pipesched.schedules import MemorySample
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import ScheduleSpec
from pipesched.workflows.arguments import read_schedule_argument
from pipesched.workflows.measuring import result_of
from tests.hand_timelines import play, shaken

PLAN = Plan(
    model="mlp:width=8,layers=4",
    schedule_spec=ScheduleSpec(name="gpipe", num_ranks=2, num_microbatches=3),
    partition=(1, 3),
    microbatch_size=4,
    batch_size=12,
    compression=None,
    predicted=Predicted(10.0, 1.2, memory_bytes=(500.0, 300.0), bubble_fraction=0.25),
)


def result(plan, memory=()):
    source = read_schedule_argument(plan)
    timeline = replace(shaken(play(lower(source.schedule), 0.5)), memory=memory)
    return result_of(source, Measured(timeline, (timeline.makespan_s,), ()))


def test_makespan_bubble_and_memory_are_set_beside_the_plan():
    memory = (MemorySample(0, 0.0, (("weights", 400),)), MemorySample(1, 0.0, (("weights", 300),)))
    run = result(PLAN, memory)
    quantities = {(row["quantity"], row["device"]): row for row in run.to_dict()["planned"]["quantities"]}
    makespan = quantities["makespan_s", None]
    assert (makespan["predicted"], makespan["measured"]) == (10.0, run.timeline.makespan_s)
    assert makespan["error"] == pytest.approx(10.0 / run.timeline.makespan_s - 1)
    assert quantities["bubble_fraction", None]["predicted"] == 0.25
    assert [quantities["peak_memory_bytes", device]["error"] for device in (0, 1)] == [pytest.approx(0.25), 0.0]


def test_the_parts_of_the_error_add_up_to_it_and_the_works_of_a_run_as_planned_are_no_part():
    run = result(PLAN)
    makespan = run.to_dict()["planned"]["split"]["parts"][0]
    assert makespan["costs_s"] + makespan["hand_over_s"] + makespan["rest_s"] == pytest.approx(makespan["error_s"])
    assert makespan["error_s"] == pytest.approx(10.0 - run.timeline.makespan_s)
    with_works_s = 10.0 - makespan["costs_s"]
    as_planned = result(replace(PLAN, predicted=replace(PLAN.predicted, seconds=with_works_s)))
    assert as_planned.to_dict()["planned"]["split"]["parts"][0]["costs_s"] == pytest.approx(0.0, abs=1e-12)


def test_of_a_plan_without_a_flush_a_short_run_says_no_pace():
    run = result(replace(PLAN, schedule_spec=replace(PLAN.schedule_spec, name="pipedream_2bw")))
    assert "makespan_s" not in {row["quantity"] for row in run.to_dict()["planned"]["quantities"]}
    assert "steady-state time of a long run" in run.planned.table().caption


def test_the_table_of_a_notebook_has_both():
    assert "as planned and as measured" in result(PLAN)._repr_html_()
    unplanned = read_schedule_argument("gpipe", ScheduleCounts(num_ranks=2, num_microbatches=3))
    timeline = replace(play(lower(unplanned.schedule)), source="measured")
    assert "planned" not in result_of(unplanned, Measured(timeline, (1.0,), ())).to_dict()
