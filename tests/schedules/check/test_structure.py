from dataclasses import replace

import pytest

from pipesched.schedules import make_schedule
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.pipedream import pipedream
from pipesched.schedules.check import find_faults
from pipesched.schedules.ops import backward, forward
from tests.schedules.edits import edited, faults_of, lists_of

GATHERED = "0UNSHARD comes again without 0RESHARD between: the weights are gathered already"
SHARDED = "comes without 0UNSHARD before it: the weights are sharded"
EARLY = "0RESHARD comes without 0UNSHARD and a computation of the stage before it"
FAULTS = [
    (["0F0 0F1 0B0 0B1", "1F0 1F1 1F0 1B0 1B1"], (1, 2, "1F0 appears twice, first at rank 1 op 0")),
    (["0F0", "1F0 1B0 0B0"], (1, 2, "0B0 is on this rank, expected on rank 0, the rank of its forward")),
    (["0F0 0F1 0B0", "1F0 1F1 1B0 1B1"], (0, None, "0B1 is missing")),
    (["0F0 0I0"], (0, None, "0W0 is missing")),
    (["0F0 0I0 0W0 0B0"], (0, 3, "0B0 appears beside I or W, expected either B, or I and W")),
    (["0F0 0B0 0R0"], (0, 2, "0R0 comes after its backward")),
    # the first op that finds weights sharded or gathered at a wrong time
    (["0UNSHARD 0UNSHARD 0F0 0B0 0F1 0B1"], (0, 1, GATHERED)),
    (["0UNSHARD 0F0 0B0 0F1 0UNSHARD 0B1"], (0, 4, GATHERED)),
    (["0UNSHARD 0F0 0RESHARD 0B0 0F1 0B1"], (0, 3, f"0B0 {SHARDED}")),
    (["0F0 0B0 0UNSHARD 0F1 0B1"], (0, 0, f"0F0 {SHARDED}")),
    (["0UNSHARD 0F0 0RESHARD (0F1;0B0)OVERLAP_F_B 0B1"], (0, 3, f"(0F1;0B0)OVERLAP_F_B {SHARDED}")),
    (["0RESHARD 0F0 0B0 0F1 0B1"], (0, 0, EARLY)),
    (["0UNSHARD 0RESHARD 0F0 0B0 0F1 0B1"], (0, 1, EARLY)),
    (["0UNSHARD 0F0 0B0 0F1 0B1 0RESHARD 0RESHARD"], (0, 6, EARLY)),
    (
        ["0UNSHARD 0F0 0B0 0F1 0B1 0RESHARD 0UNSHARD"],
        (0, None, "the last 0UNSHARD comes without a computation of the stage after it"),
    ),
]


@pytest.mark.parametrize(("rows", "fault"), FAULTS)
def test_an_op_that_is_missing_or_at_a_wrong_place_is_named(rows, fault):
    assert faults_of(lists_of(*rows), "structure") == [fault]


@pytest.mark.parametrize(
    "text",
    [
        "0F0 0R0 0B0",
        "0UNSHARD 0F0 0B0 0F1 0B1",
        "0UNSHARD 0F0 0F1 0RESHARD 0UNSHARD 0B0 0B1 0RESHARD",
        "0UNSHARD 0F0 (0F1;0B0)OVERLAP_F_B 0B1 0REDUCE_GRAD 0RESHARD 0STEP",
    ],
)
def test_recomputes_before_backwards_and_gathers_in_turns_with_reshards_have_no_findings(text):
    assert find_faults(lists_of(text)) == ()


@pytest.mark.parametrize("version", [-1, 2, 7])
def test_a_version_that_does_not_exist_is_named(version):
    bad = edited(pipedream(1, 2), 0, lambda row: row.__setitem__(3, forward(0, 1, version)))
    ((rank, index, text),) = faults_of(bad, "version")
    assert (rank, index) == (0, 3)
    assert f"reads version {version}, but 1 steps of stage 0 come before it" in text


def test_versions_inside_an_overlap_are_looked_at_too():
    bad = lists_of("0F0 (0F1@1;0B0)OVERLAP_F_B 0B1")
    assert [place[:2] for place in faults_of(bad, "version")] == [(0, 1)]


def test_all_ops_of_an_empty_list_are_missing():
    empty = make_schedule("x", 1, 1, [[]])
    assert faults_of(empty, "structure") == [(None, None, "0B0 is missing"), (None, None, "0F0 is missing")]


@pytest.mark.parametrize("op", [forward(2, 0), forward(-1, 0), backward(0, 3)])
def test_numbers_outside_of_the_schedule_are_named(op):
    bad = edited(gpipe(2, 3), 1, lambda row: row.append(op))
    assert (1, 7, f"{op} is outside of 2 stages and 3 micro-batches") in faults_of(bad, "structure")


@pytest.mark.parametrize("devices", [(0,), (0, 1, 2), ()])
def test_every_rank_has_a_device(devices):
    bad = replace(gpipe(2, 1), rank_to_device=devices)
    text = f"rank_to_device has {len(devices)} entries, expected one for each of 2 ranks"
    assert faults_of(bad, "structure") == [(None, None, text)]
