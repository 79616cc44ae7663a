"""How many micro-batches a step takes is read off the lists."""

from collections import Counter

import pytest

from pipesched.schedules import PredictionRule, ScheduleError, make_schedule
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.ops import Reduce, Step
from pipesched.schedules.transforms.training_run import repeated_run, training_run, with_steps

RANKS, MICROBATCHES, STEPS = 4, 8, 6
EVERY_MICROBATCH = ("pipedream", "vanilla_1f1b", "spectrain", "xpipe", "pipeoptim", "stale_weights", "hybrid")


def steps_of_each_stage(lists):
    """Return the numbers of Steps that the replicas of each stage have."""
    counts = {}
    for ops in lists.lists:
        for stage, count in Counter(op.stage for op in ops if isinstance(op, Step)).items():
            counts.setdefault(stage, set()).add(count)
    return counts


@pytest.mark.parametrize("name", CATALOGUE)
def test_all_stages_step_once_in_a_step_that_has_as_many_microbatches_as_the_lists_accumulate(name):
    run = training_run(name, RANKS, MICROBATCHES, STEPS)
    expected = 1 if name in EVERY_MICROBATCH else 2 if name == "1f1b_rr" else MICROBATCHES
    assert run.microbatches_per_step == expected
    lists = run.lists(STEPS)
    assert lists.num_microbatches == STEPS * expected
    counts = {stage: {STEPS} for stage in range(lists.num_stages)}
    if name == "1f1b_rr":  # two replicas of the first stage take turns, so that the others step twice as often
        counts |= {1: {2 * STEPS}, 2: {2 * STEPS}}
    assert steps_of_each_stage(lists) == counts


def test_accumulate_can_be_given():
    assert training_run("wpipe", RANKS, MICROBATCHES, STEPS, accumulate=4).microbatches_per_step == 4


def test_parameters_may_count_in_steps_of_the_run():
    run = training_run("hybrid", 2, 1, 100, pipelined=60)
    assert run.lists(100).num_microbatches == 100


def ops_of(lists, num_microbatches):
    """Return what each rank does with the first micro-batches."""
    rows = [[op for op in ops if not isinstance(op, Step)] for ops in lists.lists]
    return [[op for op in row if op.microbatch < num_microbatches] for row in rows]


@pytest.mark.parametrize("pipelined", [0, 3, 60])
def test_the_beginning_of_a_run_is_pipelined_as_far_as_the_whole_run_is(pipelined):
    run = training_run("hybrid", 3, 1, 100, pipelined=pipelined)
    assert run.beginning(10).num_microbatches == 10
    assert ops_of(run.beginning(10), 10) == ops_of(run.lists(100), 10)


def test_no_more_can_be_counted_over_a_run_than_it_has():
    run = training_run("hybrid", 2, 1, 100, pipelined=60)
    with pytest.raises(ScheduleError, match="got pipelined 60, expected 0 to 59"):
        run.lists(59)
    for num_microbatches, pipelined in ((1, 101), (8, 101), (8, 801)):  # a step of hybrid is one micro-batch, whole
        with pytest.raises(ScheduleError, match=f"got pipelined {pipelined}, expected 0 to 100, .*=50$"):
            training_run("hybrid", 2, num_microbatches, 100, pipelined=pipelined)


def test_the_beginning_of_a_repeated_list_is_as_many_whole_lists_as_it_takes():
    run = repeated_run(build("pipedream", 2, 6))
    assert [run.beginning(steps).num_microbatches for steps in (1, 6, 7, 12)] == [6, 6, 12, 12]


def test_the_lists_of_a_run_know_their_rule_of_prediction():
    runs = {name: training_run(name, RANKS, MICROBATCHES, STEPS) for name in ("xpipe", "pipedream")}
    rules = {name: run.lists(STEPS).traits.prediction for name, run in runs.items()}
    assert rules == {"xpipe": PredictionRule.ADAM, "pipedream": None}
    assert repeated_run(build("xpipe", 2, 4)).lists(4).traits.prediction is PredictionRule.ADAM


def test_lists_with_several_steps_are_repeated_whole():
    run = repeated_run(build("pipedream", 2, 6))
    assert run.microbatches_per_step == 1
    assert run.lists(12).num_microbatches == 12
    with pytest.raises(ScheduleError, match="got 8 steps, expected a multiple of 6, the steps of its lists; try 6"):
        run.lists(8)
    with pytest.raises(ScheduleError, match="got 5 steps, expected a multiple of 6, the steps of its lists; try 6"):
        run.lists(5)


def test_lists_that_step_unevenly_are_refused():
    ops = build("1f1b", 1, 3).ops[0]
    uneven = (*ops[:2], Step(0), *ops[2:])
    with pytest.raises(
        ScheduleError, match="got 0STEP on rank 0 after 1, 2 micro-batches, and 0 micro-batches after the last"
    ):
        repeated_run(make_schedule("mine", 1, 3, [list(uneven)]))
    with pytest.raises(ScheduleError, match="after 1 micro-batches, and 2 micro-batches after the last"):
        repeated_run(make_schedule("mine", 1, 3, [list(uneven[:-1])]))


def test_a_stage_that_never_steps_is_named():
    schedule = build("gpipe", 2, 2)
    rows = [list(schedule.ops[0]), [op for op in schedule.ops[1] if not isinstance(op, Step)]]
    with pytest.raises(ScheduleError, match="got no 1STEP on rank 1"):
        repeated_run(make_schedule("mine", 2, 2, rows))


def test_a_list_without_steps_gets_one_of_each_stage_at_its_end():
    schedule = with_steps(
        make_schedule("mine", 2, 1, [list(build("gpipe", 2, 1).ops[0][:2]), list(build("gpipe", 2, 1).ops[1][:2])])
    )
    assert [row[-1] for row in schedule.ops] == [Step(0), Step(1)]
    assert with_steps(schedule) is schedule
    assert repeated_run(schedule).microbatches_per_step == 1


def test_replicas_sum_before_they_step():
    schedule = build("data_parallel", 2, 2)
    bare = make_schedule(
        "mine", 1, 2, [[op for op in row if not isinstance(op, Step | Reduce)] for row in schedule.ops]
    )
    assert [row[-2:] for row in with_steps(bare).ops] == [(Reduce(0), Step(0))] * 2
