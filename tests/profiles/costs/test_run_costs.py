"""The costs of a schedule's stages from spreads that are known."""

from dataclasses import replace

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster, Device, Link, flat
from pipesched.profiles.costs import RunCosts, RunStage, StageCost, spread_of
from pipesched.schedules.builders import build
from pipesched.schedules.ops import backward, backward_input, backward_weight, forward
from pipesched.schedules.transforms import recompute

WORK = {"F": 1.0, "B": 2.0, "Step": 0.5}


def runs(*works, profiled=None, **fields):
    """Return costs of stages that took these seconds every time."""
    stages = tuple(RunStage({kind: spread_of([s]) for kind, s in work.items()}, profiled) for work in works)
    usual = {"hand_over": {}, "message": None, "warmup": 0}
    return RunCosts(("run.json",), stages, **(usual | fields))


def spreads(**seconds):
    return {kind: spread_of([s]) for kind, s in seconds.items()}


def test_seconds_are_the_means():
    costs = replace(runs(WORK), stages=(RunStage({"F": spread_of([1.0, 6.5, 1.5]), "B": spread_of([3.0, 4.0])}),))
    stage = costs.stage_costs(build("gpipe", 1, 2)).stages[0]

    assert (stage.forward_s, stage.backward_s) == (3.0, 3.5)


def test_a_recompute_takes_what_it_took_or_else_a_forward():
    schedule = recompute(build("gpipe", 2, 2))
    again = replace(forward(1, 0), phase=type(forward(1, 0).phase).RECOMPUTE)

    assert runs(WORK, WORK | {"R": 0.75}).stage_costs(schedule).seconds(again) == 0.75
    assert runs(WORK, WORK).stage_costs(schedule).seconds(again) == 1.0


def test_machines_hand_over_as_the_runs_did():
    costs = runs(WORK, hand_over=spreads(Op=0.1, Send=0.2, Recv=0.3, Take=0.4), message=spread_of([1.0]))
    cluster = costs.on_machines(Cluster((Device(memory_bytes=8), Device()), Link()))

    assert cluster.devices == (Device(memory_bytes=8, op_s=0.1), Device(op_s=0.1))
    assert cluster.link(0, 1) == Link(latency_s=0.6, send_s=0.2, post_s=0.3, receive_s=0.4)
    assert cluster.link(1, 1) == cluster.link(0, 1)


def test_posts_that_were_interrupted_do_not_count_but_those_that_take_long_as_a_rule_do():
    interrupted = runs(WORK, hand_over={"Send": spread_of([0.1] * 9 + [9.0] * 2)})
    assert interrupted.on_machines(flat(2)).link(0, 1) == Link(send_s=pytest.approx(0.1))

    slow_now_and_then = runs(WORK, hand_over={"Send": spread_of([0.1] * 6 + [0.4] * 5)})
    assert slow_now_and_then.on_machines(flat(2)).link(0, 1).send_s == pytest.approx(0.1 + 0.3 * 2.5 / 6)


def test_runs_that_say_nothing_of_messages_hand_over_in_no_time():
    assert runs(WORK).on_machines(flat(2)).link(0, 1) == Link()


def test_neighbours_are_added_up_for_fewer_stages():
    known = StageCost(0.0, output_bytes=7, saved_bytes=10, weight_bytes=3)
    costs = runs(WORK, {"F": 2.0, "B": 4.0, "Step": 1.0}, WORK, WORK, profiled=known)
    first, second = costs.stage_costs(build("gpipe", 2, 2)).stages

    assert (first.forward_s, first.backward_s, first.step_s) == (3.0, 6.0, 1.5)
    assert (first.output_bytes, first.saved_bytes, first.weight_bytes) == (7, 20, 6)
    assert second.forward_s == 2.0


def test_more_stages_are_refused_unless_stages_may_be_split():
    costs = runs(WORK, WORK)
    schedule = build("interleaved", 2, 2, 2)

    with pytest.raises(ProfileError, match=r"run\.json.* got schedule interleaved of 4 stages, expected 2 as in the"):
        costs.stage_costs(schedule)
    parts = replace(costs, splits_stages=True).stage_costs(schedule).stages
    assert [(part.forward_s, part.backward_s, part.step_s) for part in parts] == [(0.5, 1.0, 0.25)] * 4


def test_a_split_stage_hands_on_what_it_hands_on_whole():
    costs = replace(runs(WORK, WORK), splits_stages=True)
    stages = [
        replace(stage, profiled=StageCost(0.0, output_bytes=num, output_gradient_bytes=num and 3))
        for stage, num in zip(costs.stages, (8, 0), strict=True)
    ]
    parts = replace(costs, stages=tuple(stages)).stage_costs(build("interleaved", 2, 2, 2)).stages

    assert [part.output_bytes for part in parts] == [8, 8, 8, 0]
    assert [part.output_gradient_bytes for part in parts] == [3, 3, 3, 0]


def test_stages_that_do_not_divide_are_refused():
    with pytest.raises(ProfileError, match="of 3 stages, expected 2 as in the runs, or a divisor or a multiple"):
        replace(runs(WORK, WORK), splits_stages=True).stage_costs(build("gpipe", 3, 2))


def test_i_and_w_that_nobody_ran_are_shares_of_b_in_the_profile():
    profiled = StageCost(9.0, 10.0, backward_input_s=6.0, backward_weight_s=5.0, step_s=7.0, output_bytes=3)
    costs = runs(WORK, WORK, profiled=profiled).stage_costs(build("zb_h1", 2, 2))

    assert costs.seconds(backward_input(1, 0)) == pytest.approx(1.2)
    assert costs.seconds(backward_weight(1, 0)) == pytest.approx(1.0)
    assert (costs.stages[1].forward_s, costs.stages[1].step_s, costs.stages[1].output_bytes) == (1.0, 0.5, 3)


def test_i_and_w_that_were_run_are_not_those_of_the_profile():
    profiled = StageCost(9.0, 10.0, backward_input_s=6.0, backward_weight_s=5.0)
    costs = runs(WORK | {"I": 0.25, "W": 0.5}, profiled=profiled).stage_costs(build("zb_h1", 1, 2))

    assert (costs.seconds(backward_input(0, 0)), costs.seconds(backward_weight(0, 0))) == (0.25, 0.5)


def test_a_supposed_share_splits_b_and_the_first_stage_has_no_i():
    costs = replace(runs(WORK, WORK), assumed_input_share=0.25).stage_costs(build("zb_h1", 2, 2))

    assert [costs.seconds(backward_input(stage, 0)) for stage in range(2)] == [0.0, 0.5]
    assert [costs.seconds(backward_weight(stage, 0)) for stage in range(2)] == [2.0, 1.5]


def test_a_whole_backward_is_i_and_w_where_only_they_were_run():
    costs = runs({"F": 1.0, "I": 0.5, "W": 0.75}).stage_costs(build("gpipe", 1, 2))

    assert costs.seconds(backward(0, 0)) == 1.25


def test_a_phase_that_was_not_seen_is_told_with_what_to_do():
    costs = runs(WORK, WORK).stage_costs(build("zb_h1", 2, 2))

    with pytest.raises(
        ProfileError,
        match=r"^op 1I0: got no seconds of I on stage 1 in the costs \(of run\.json, with F, B, Step\), expected "
        "seconds for this op; add a run of a schedule that has it, as zb_h1 has I and W, or give `profile` beside the "
        "runs$",
    ):
        costs.seconds(backward_input(1, 0))
