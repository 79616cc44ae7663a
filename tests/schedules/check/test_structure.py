from dataclasses import replace

import pytest

from pipesched.schedules import make_schedule
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.pipedream import pipedream
from pipesched.schedules.check import find_faults
from pipesched.schedules.ops import Compute, Overlap, Phase, backward, forward
from tests.schedules.edits import edited, faults_of, lists_of

INPUTS, WEIGHTS, AGAIN = (
    Compute(phase, 0, 0) for phase in (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT, Phase.RECOMPUTE)
)


def test_a_forward_given_twice_is_named_with_the_place_of_the_first():
    bad = edited(gpipe(2, 2), 1, lambda row: row.insert(3, forward(1, 0)))
    assert faults_of(bad, "structure") == [(1, 3, "1F0 appears twice, first at rank 1 op 0")]


def test_a_backward_on_another_rank_than_its_forward_is_named():
    rows = [[forward(0, 0)], [forward(1, 0), backward(1, 0), backward(0, 0)]]
    bad = make_schedule("x", 2, 1, rows)
    assert faults_of(bad, "structure") == [(1, 2, "0B0 is on this rank, expected on rank 0, the rank of its forward")]


@pytest.mark.parametrize("version", [-1, 2, 7])
def test_a_version_that_does_not_exist_is_named(version):
    bad = edited(pipedream(1, 2), 0, lambda row: row.__setitem__(3, forward(0, 1, version)))
    ((rank, index, text),) = faults_of(bad, "version")
    assert (rank, index) == (0, 3)
    assert f"reads version {version}, but 1 steps of stage 0 come before it" in text


def test_versions_inside_an_overlap_are_looked_at_too():
    rows = [[forward(0, 0), Overlap(forward(0, 1, 1), backward(0, 0)), backward(0, 1)]]
    assert [place[:2] for place in faults_of(make_schedule("x", 1, 2, rows), "version")] == [(0, 1)]


def test_each_missing_op_is_named():
    bad = edited(gpipe(2, 2), 0, lambda row: row.remove(backward(0, 1)))
    assert faults_of(bad, "structure") == [(0, None, "0B1 is missing")]
    empty = make_schedule("x", 1, 1, [[]])
    assert faults_of(empty, "structure") == [(None, None, "0B0 is missing"), (None, None, "0F0 is missing")]


def test_half_of_a_split_backward_is_not_enough_and_both_kinds_are_too_many():
    half = make_schedule("x", 1, 1, [[forward(0, 0), INPUTS]])
    assert faults_of(half, "structure") == [(0, None, "0W0 is missing")]
    both = make_schedule("x", 1, 1, [[forward(0, 0), INPUTS, WEIGHTS, backward(0, 0)]])
    assert [place[:2] for place in faults_of(both, "structure")] == [(0, 3)]


def test_a_recompute_comes_between_forward_and_backward():
    assert find_faults(make_schedule("x", 1, 1, [[forward(0, 0), AGAIN, backward(0, 0)]])) == ()
    late = make_schedule("x", 1, 1, [[forward(0, 0), backward(0, 0), AGAIN]])
    assert faults_of(late, "structure") == [(0, 2, "0R0 comes after its backward")]


@pytest.mark.parametrize("op", [forward(2, 0), forward(-1, 0), backward(0, 3)])
def test_numbers_outside_of_the_schedule_are_named(op):
    bad = edited(gpipe(2, 3), 1, lambda row: row.append(op))
    assert (1, 7, f"{op} is outside of 2 stages and 3 micro-batches") in faults_of(bad, "structure")


@pytest.mark.parametrize("devices", [(0,), (0, 1, 2), ()])
def test_every_rank_has_a_device(devices):
    bad = replace(gpipe(2, 1), rank_to_device=devices)
    text = f"rank_to_device has {len(devices)} entries, expected one for each of 2 ranks"
    assert faults_of(bad, "structure") == [(None, None, text)]


@pytest.mark.parametrize(
    ("text", "index", "fault"),
    [
        ("0UNSHARD 0UNSHARD 0F0 0B0 0F1 0B1", 1, "0UNSHARD comes again without 0RESHARD between"),
        ("0UNSHARD 0F0 0B0 0F1 0UNSHARD 0B1", 4, "0UNSHARD comes again without 0RESHARD between"),
        ("0UNSHARD 0F0 0RESHARD 0B0 0F1 0B1", 3, "0B0 comes without 0UNSHARD before it: the weights are sharded"),
        ("0F0 0B0 0UNSHARD 0F1 0B1", 0, "0F0 comes without 0UNSHARD before it: the weights are sharded"),
        ("0UNSHARD 0F0 0RESHARD (0F1;0B0)OVERLAP_F_B 0B1", 3, "(0F1;0B0)OVERLAP_F_B comes without 0UNSHARD before it"),
        ("0RESHARD 0F0 0B0 0F1 0B1", 0, "0RESHARD comes without 0UNSHARD and a computation of the stage before it"),
        ("0UNSHARD 0RESHARD 0F0 0B0 0F1 0B1", 1, "0RESHARD comes without 0UNSHARD and a computation of the stage"),
        ("0UNSHARD 0F0 0B0 0F1 0B1 0RESHARD 0RESHARD", 6, "0RESHARD comes without 0UNSHARD and a computation"),
        (
            "0UNSHARD 0F0 0B0 0F1 0B1 0RESHARD 0UNSHARD",
            None,
            "the last 0UNSHARD comes without a",
        ),
    ],
)
def test_the_first_op_that_finds_weights_sharded_or_gathered_at_a_wrong_time_is_named(text, index, fault):
    ((rank, at, words),) = faults_of(lists_of(text), "structure")
    assert (rank, at) == (0, index)
    assert words.startswith(fault)


@pytest.mark.parametrize(
    "text",
    [
        "0F0 0B0 0F1 0B1",
        "0UNSHARD 0F0 0B0 0F1 0B1",
        "0UNSHARD 0F0 0F1 0RESHARD 0UNSHARD 0B0 0B1 0RESHARD",
        "0UNSHARD 0F0 (0F1;0B0)OVERLAP_F_B 0B1 0REDUCE_GRAD 0RESHARD 0STEP",
    ],
)
def test_gathers_in_turns_with_reshards_have_no_findings(text):
    assert find_faults(lists_of(text)) == ()
