"""PyTorch's own lowering is the oracle: the same lists."""

from itertools import groupby
from types import SimpleNamespace

import pytest

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.builders.zbv import zbv
from pipesched.schedules.check import find_faults
from pipesched.schedules.formats.torch_csv import read_csv, read_csv_text, write_csv, write_csv_comms
from pipesched.schedules.lowering import lower, lower_for_torch
from pipesched.schedules.ops import Recv, Reduce, Reshard, Step, Unshard, stages_of
from pipesched.schedules.semantics import Communication, progress
from tests.schedules.formats.csv_support import halves
from tests.schedules.torch_schedules import constructed, loop, vee
from tests.torch_releases import runtime_of_2_13

GENERATORS = [
    ("ScheduleLoopedBFS", loop(4, 2)),
    ("ScheduleLoopedBFS", loop(4, 5)),
    ("ScheduleInterleaved1F1B", loop(4, 3)),
    ("ScheduleInterleaved1F1B", loop(4, 6)),
    ("ScheduleInterleavedZeroBubble", loop(4, 4)),
    ("ScheduleZBVZeroBubble", vee(4)),
    ("ScheduleDualPipeV", vee(4)),
]
SAYABLE = halves(4, 16)[0]


def in_order(texts):
    """Put Reshards that stand side by side in order: PyTorch takes them from a set."""
    runs = groupby(texts, key=lambda text: "RESHARD" in text)
    return [text for is_reshard, run in runs for text in (sorted(run) if is_reshard else run)]


def assert_same(lowered, actions):
    for rank, row in enumerate(lowered.ops):
        texts = [str(op) for op in row if not isinstance(op, Step)]
        assert in_order(texts) == in_order([str(action) for action in actions[rank]])


@pytest.mark.parametrize(("kind", "stages"), GENERATORS)
def test_pytorchs_lists_are_lowered_as_pytorch_does(tmp_path, kind, stages):
    torch_schedule = constructed(kind, 4, 8, stages)
    torch_schedule._dump_csv(str(tmp_path / "theirs.csv"), format="compute_only")
    assert_same(lower_for_torch(read_csv(tmp_path / "theirs.csv")), torch_schedule.pipeline_order_with_comms)


@pytest.mark.parametrize("schedule", SAYABLE.values(), ids=lambda schedule: schedule.name)
def test_our_lists_are_lowered_as_pytorch_does_and_are_safe_on_its_communicators(tmp_path, schedule):
    lowered = lower_for_torch(schedule)
    runtime = constructed("_PipelineScheduleRuntime", 4, 16, list(stages_of(schedule.ops[0])))
    (tmp_path / "ours.csv").write_bytes(write_csv(schedule).encode())
    runtime._load_csv(str(tmp_path / "ours.csv"), format="compute_only")
    assert_same(lowered, runtime.pipeline_order_with_comms)
    assert not find_faults(lowered)
    for communication in Communication:
        assert not progress(lowered, communication).blocked, communication


def test_one_stage_is_gathered_once_and_reduced_after_its_last_backward():
    assert write_csv_comms(lower_for_torch(gpipe(2, 1))).splitlines() == [
        "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD",
        "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD",
    ]


@pytest.mark.parametrize("schedule", [one_f_one_b(1, 3), one_f_one_b(3, 4)], ids=["one rank", "three ranks"])
def test_what_is_there_already_stays(schedule):
    once = lower_for_torch(schedule)
    assert lower_for_torch(once) == once
    assert [[op for op in row if isinstance(op, Step)] for row in once.ops] == [[Step(k)] for k in range(len(once.ops))]


def test_lists_with_messages_get_the_reduce_that_they_lack_and_nothing_else():
    lowered = lower(one_f_one_b(3, 4))
    for rank, (row, before) in enumerate(zip(lower_for_torch(lowered).ops, lowered.ops, strict=True)):
        assert [op for op in row if not isinstance(op, Reduce)] == list(before)
        texts = [str(op) for op in row]
        assert texts.index(f"{rank}REDUCE_GRAD") == texts.index(f"{rank}STEP") - 1
        assert not any(isinstance(op, Unshard | Reshard) for op in row)


def test_a_reduce_follows_the_sends_of_its_stages_gradients():
    row = lower_for_torch(lower(one_f_one_b(2, 1))).ops[1]
    assert [str(op) for op in row if not isinstance(op, Recv)] == ["1F0", "1B0", "1SEND_B0", "1REDUCE_GRAD", "1STEP"]


def test_lists_that_cannot_finish_are_refused_with_the_reason():
    dead = read_csv_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "dead.csv")
    with pytest.raises(ScheduleError, match=r"dead: cannot be lowered: rank 0 .*0B0"):
        lower_for_torch(dead)


def test_pytorch_takes_losses_by_their_order_so_the_last_stage_must_run_its_forwards_in_order():
    """When this fails, PyTorch finds the loss of a micro-batch by its number: let `check_losses` go."""
    runtime = constructed("ScheduleLoopedBFS", 1, 2, [0])
    runtime._internal_losses = ["the first to be computed, of micro-batch 1"]
    assert runtime._maybe_get_loss(SimpleNamespace(is_last=True), 0) == runtime._internal_losses[0]


@runtime_of_2_13
def test_the_receives_that_pytorch_defers_cross_in_a_v_and_we_say_so(tmp_path):
    """`defer_pp_recv=True` of 2.13: over gloo ZBV's gradients come out wrong without a word."""
    runtime = constructed("_PipelineScheduleRuntime", 2, 4, vee(2))
    runtime._defer_pp_recv = True
    path = tmp_path / "zbv.csv"
    path.write_bytes(write_csv(zbv(2, 4)).encode())
    runtime._load_csv(str(path))
    runtime._dump_csv(str(path))
    findings = find_faults(read_csv(path))
    assert any(finding.kind == "matching" and "RECV" in str(finding) for finding in findings)
