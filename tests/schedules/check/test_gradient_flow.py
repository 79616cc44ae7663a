"""Gradients that are lost, not summed or summed twice."""

import pytest

from pipesched.schedules import Schedule, make_schedule
from pipesched.schedules.check import find_faults
from pipesched.schedules.ops import (
    Average,
    Op,
    Reduce,
    Reshard,
    Step,
    Unshard,
    backward,
    backward_input,
    backward_weight,
    forward,
)
from tests.schedules.edits import faults_of


def pair(microbatch: int) -> list[Op]:
    return [forward(0, microbatch), backward(0, microbatch)]


def replicas(*rows: list[Op]) -> Schedule:
    return make_schedule("x", 1, 2, list(rows))


def test_a_backward_after_the_last_step_is_not_applied():
    bad = make_schedule("x", 1, 2, [[*pair(0), Step(0), *pair(1)]])
    assert faults_of(bad, "structure") == [(0, 4, "0B1 comes after the last 0STEP, which should apply it")]
    split = [forward(0, 0), backward_input(0, 0), Step(0), backward_weight(0, 0)]
    texts = [text for *_, text in faults_of(make_schedule("x", 1, 1, [split]), "structure")]
    assert "0W0 comes after the last 0STEP, which should apply it" in texts


@pytest.mark.parametrize(("row", "index"), [([Step(0), *pair(0), Step(0)], 0), ([*pair(0), Step(0), Step(0)], 3)])
def test_a_step_without_a_gradient_is_named(row, index):
    assert faults_of(make_schedule("x", 1, 1, [row]), "structure") == [
        (0, index, "0STEP has no backward of its stage to apply")
    ]


def test_a_stage_that_never_steps_while_others_do_is_named():
    rows: list[list[Op]] = [[forward(0, 0), backward(0, 0), Step(0)], [forward(1, 0), backward(1, 0)]]
    assert faults_of(make_schedule("x", 2, 1, rows), "structure") == [
        (1, None, "1STEP is missing, which other stages or ranks have")
    ]
    assert faults_of(make_schedule("x", 2, 1, [row[:2] for row in rows]), "structure") == []


def test_replicas_that_step_alone_drift_apart():
    ((rank, index, text),) = faults_of(replicas([*pair(0), Step(0)], [*pair(1), Step(0)]), "structure")
    assert (rank, index) == (0, 2)
    assert text == "0STEP comes without 0REDUCE_GRAD, but the stage is on ranks 0, 1, whose weights would drift apart"


def test_pipelines_with_optimizers_of_their_own_are_averaged_all_of_them():
    first, second = ([*pair(i), Step(0), Average(0)] for i in range(2))
    assert find_faults(replicas(first, second)) == ()
    assert [place[:2] for place in faults_of(replicas(first, second[:-1]), "structure")] == [(1, None)]


def test_a_replica_without_micro_batches_reduces_and_steps_with_the_others():
    rows = [[*pair(0), *pair(1), Reduce(0), Step(0)], [Reduce(0), Step(0)]]
    assert find_faults(replicas(*rows)) == ()


def test_a_replica_that_does_not_reduce_is_named():
    rows = [[*pair(0), Reduce(0), Step(0)], [*pair(1), Step(0)]]
    ((rank, index, text),) = faults_of(replicas(*rows), "structure")
    assert (rank, index) == (1, 2)
    assert "there is 0STEP where rank 0 has 0REDUCE_GRAD" in text
    rows = [[*pair(0), Reduce(0)], pair(1)]
    assert "there is no more where rank 0 has 0REDUCE_GRAD" in faults_of(replicas(*rows), "structure")[0][2]


@pytest.mark.parametrize(
    ("order", "index", "text"),
    [
        (
            [forward(0, 1), Reduce(0), backward(0, 1), Step(0)],
            2,
            "0B1 comes between 0REDUCE_GRAD and Step: would not be",
        ),
        ([*pair(1), Step(0), Reduce(0)], 2, "0STEP comes without 0REDUCE_GRAD before it"),
        (
            [*pair(1), Reduce(0), Reduce(0), Step(0)],
            3,
            "0REDUCE_GRAD comes between 0REDUCE_GRAD and Step: would sum the",
        ),
    ],
)
def test_a_reduce_comes_once_between_the_last_backward_and_the_step(order, index, text):
    others = [op for op in order if isinstance(op, Reduce | Step)]
    bad = faults_of(replicas([*pair(0), *others], order), "structure")
    assert any((rank, at) == (1, index) and got.startswith(text) for rank, at, got in bad), bad


def test_on_a_stage_of_one_rank_a_reduce_may_come_anywhere():
    for index in range(3):
        row: list[Op] = [*pair(0), Step(0)]
        row.insert(index, Reduce(0))
        assert find_faults(make_schedule("x", 1, 1, [row])) == ()


@pytest.mark.parametrize("op", [Step(0), Step(5), Reduce(0), Average(0), Unshard(0), Reshard(1)])
def test_an_op_of_a_stage_that_the_rank_does_not_hold_is_named(op):
    here = 0 if op.stage == 1 else 1
    rows: list[list[Op]] = [[forward(stage, 0), backward(stage, 0)] for stage in (1 - here, here)]
    rows[1].append(op)
    bad = [place for place in faults_of(make_schedule("x", 2, 1, rows), "structure") if place[:2] == (1, 2)]
    assert bad == [(1, 2, f"{op} is of a stage that this rank does not compute")]
