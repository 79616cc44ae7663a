"""Gradients that are lost, not summed or summed twice."""

import pytest

from pipesched.schedules.ops import Average, Reduce, Reshard, Step, Unshard
from tests.schedules.edits import faults_of, lists_of

UNAPPLIED = "comes after the last 0STEP, which should apply it"
NOTHING = "0STEP has no backward of its stage to apply"
ALONE = "0STEP comes without 0REDUCE_GRAD, but the stage is on ranks 0, 1, whose weights would drift apart"
ORDER = "where rank 0 has 0REDUCE_GRAD, expected the same order on all its replicas"
TWICE = "0REDUCE_GRAD comes between 0REDUCE_GRAD and Step: would sum the same gradients again"
FAULTS = [
    (["0F0 0B0 0STEP 0F1 0B1"], [(0, 4, f"0B1 {UNAPPLIED}")]),
    (["0F0 0I0 0STEP 0W0"], [(0, 2, NOTHING), (0, 3, f"0W0 {UNAPPLIED}")]),
    (["0STEP 0F0 0B0 0STEP"], [(0, 0, NOTHING)]),
    (["0F0 0B0 0STEP 0STEP"], [(0, 3, NOTHING)]),
    (["0F0 0B0 0STEP", "1F0 1B0"], [(1, None, "1STEP is missing, which other stages or ranks have")]),
    (["0F0 0B0", "1F0 1B0"], []),
    # replicas
    (["0F0 0B0 0STEP", "0F1 0B1 0STEP"], [(0, 2, ALONE)]),
    (["0F0 0B0 0STEP 0AVERAGE", "0F1 0B1 0STEP 0AVERAGE"], []),
    (["0F0 0B0 0STEP 0AVERAGE", "0F1 0B1 0STEP"], [(1, None, "0AVERAGE is missing, which other ranks 0, 1 have")]),
    (["0F0 0B0 0F1 0B1 0REDUCE_GRAD 0STEP", "0REDUCE_GRAD 0STEP"], []),
    (
        ["0F0 0B0 0REDUCE_GRAD 0STEP", "0F1 0B1 0STEP"],
        [(1, 2, f"among the Reduces and Steps of stage 0 there is 0STEP {ORDER}")],
    ),
    (
        ["0F0 0B0 0REDUCE_GRAD", "0F1 0B1"],
        [(1, None, f"among the Reduces and Steps of stage 0 there is no more {ORDER}")],
    ),
    (
        ["0F0 0B0 0REDUCE_GRAD 0STEP", "0F1 0REDUCE_GRAD 0B1 0STEP"],
        [(1, 2, "0B1 comes between 0REDUCE_GRAD and Step: would not be summed")],
    ),
    (
        ["0F0 0B0 0STEP 0REDUCE_GRAD", "0F1 0B1 0STEP 0REDUCE_GRAD"],
        [(rank, 3, f"0REDUCE_GRAD {UNAPPLIED}") for rank in range(2)]
        + [(rank, 2, "0STEP comes without 0REDUCE_GRAD before it") for rank in range(2)],
    ),
    (
        ["0F0 0B0 0REDUCE_GRAD 0REDUCE_GRAD 0STEP", "0F1 0B1 0REDUCE_GRAD 0REDUCE_GRAD 0STEP"],
        [(0, 3, TWICE), (1, 3, TWICE)],
    ),
    # on a stage of one rank a Reduce may come anywhere
    (["0REDUCE_GRAD 0F0 0B0 0STEP"], []),
    (["0F0 0REDUCE_GRAD 0B0 0STEP"], []),
    (["0F0 0B0 0REDUCE_GRAD 0STEP"], []),
]


@pytest.mark.parametrize(("rows", "faults"), FAULTS)
def test_gradients_that_are_lost_or_not_summed_once_are_named(rows, faults):
    assert faults_of(lists_of(*rows), "structure") == faults


@pytest.mark.parametrize("op", [Step(0), Step(5), Reduce(0), Average(0), Unshard(0), Reshard(1)])
def test_an_op_of_a_stage_that_the_rank_does_not_hold_is_named(op):
    rows = ["0F0 0B0", f"1F0 1B0 {op}"] if op.stage != 1 else ["1F0 1B0", f"0F0 0B0 {op}"]
    bad = [place for place in faults_of(lists_of(*rows), "structure") if place[:2] == (1, 2)]
    assert bad == [(1, 2, f"{op} is of a stage that this rank does not compute")]
