from dataclasses import replace
from itertools import pairwise

import pytest
from torch.profiler import ProfilerActivity, profile

from pipesched.executor import ExecutionError
from pipesched.executor.core import Waiting
from pipesched.schedules import make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import (
    Compute,
    Message,
    Overlap,
    Payload,
    Recv,
    Reshard,
    Send,
    Step,
    Unshard,
    backward,
    forward,
)
from pipesched.schedules.transforms import recompute
from tests.executor.pipelines import Local


def test_times_are_recorded_for_every_op_in_order():
    run = Local(build("1f1b", 3, 4)).run(times=2)
    for rank in run.ranks:
        times = rank.recorder.times_ns()
        assert len(times) == len(rank.ops)
        assert all(posted <= start <= end for posted, start, end in times)
        assert all(before[2] <= after[0] for before, after in pairwise(times))


def test_what_only_pytorch_shards_is_nothing_to_do():
    rows = [[Unshard(0), forward(0, 0), backward(0, 0), Reshard(0), Step(0)]]
    assert Local(make_schedule("sharded", 1, 1, rows)).run().stage(0).weights.version == 1


def test_the_two_of_an_overlap_run_one_after_the_other_once_both_have_their_messages():
    rows = [
        [forward(0, 0), forward(0, 1), backward(0, 0), backward(0, 1)],
        [forward(1, 0), Overlap(forward(1, 1), backward(1, 0)), backward(1, 1)],
    ]
    run, ran = Local(make_schedule("overlapped", 2, 2, rows)), []
    stage = run.stage(1)
    compute = stage.compute
    stage.compute = lambda op, received, target: ran.append(str(op)) or compute(op, received, target)
    run.run()
    assert ran == ["1F0", "1F1", "1B0", "1B1"]
    (index,) = (i for i, op in enumerate(run.schedule.ops[1]) if isinstance(op, Overlap))
    assert len(run.ranks[1].recorder.times_ns()[index]) == 3


def test_an_overlap_waits_for_the_messages_of_both_before_either_runs():
    # rank 0 sends F1 only when it has B0, which rank 1 could give before: but not inside an Overlap
    by_turns = lower(build("naive", 2, 2))
    f0, b0, f1, b1 = (op for op in by_turns.ops[1] if isinstance(op, Compute))
    sends = {str(op): op for op in by_turns.ops[1] if isinstance(op, Send | Recv)}
    row = (sends["1RECV_F0"], f0, sends["1RECV_F1"], Overlap(b0, f1), sends["1SEND_B0"], b1, sends["1SEND_B1"])
    with pytest.raises(ExecutionError) as raised:
        Local(replace(by_turns, lists=(by_turns.ops[0], row))).run()
    assert str(raised.value) == (
        "deadlock: rank 0 at 0B0 waits for the gradient 0 of stage 1, "
        "rank 1 at (1B0;1F1)OVERLAP_F_B waits for the activation 1 of stage 0"
    )


@pytest.mark.filterwarnings("ignore:.*CUDA is not available", "ignore:.*set acc_events")  # torch 2.11
def test_a_profiler_sees_both_halves_a_recompute_and_a_sum():
    run = Local(recompute(build("chimera", 2, 4)))
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        run.run()
    names = {event.name for event in profiled.events() if event.name.startswith("PP:")}
    assert names >= {f"PP:{op}" for row in run.schedule.ops for op in row}
    assert "PP:0REDUCE_GRAD" in names


def test_a_rank_that_waits_says_for_what():
    waiting = Waiting(1, backward(1, 3), Message(Payload.GRADIENT, 2, 3))
    assert str(waiting) == "rank 1 at 1B3 waits for the gradient 3 of stage 2"


def test_stages_of_one_rank_hand_over_without_a_message():
    schedule = lower(build("interleaved", 1, 2, num_chunks=3))
    assert schedule.is_lowered
    assert schedule.ops == build("interleaved", 1, 2, num_chunks=3).ops
    assert Local(schedule).run().stage(2).losses().keys() == {0, 1}


@pytest.mark.parametrize("error", [KeyError, SystemExit])
def test_whatever_a_layer_raises_is_named_with_its_op(error):
    run = Local(build("gpipe", 2, 3))

    def fail(module, args):
        fail.calls += 1
        if fail.calls == 3:
            raise error("no")

    fail.calls = 0
    run.stage(1).module.register_forward_pre_hook(fail)
    with pytest.raises(ValueError, match=r"rank 1 failed at 1F2 \(micro-batch 2\): ") as raised:
        run.run()
    assert isinstance(raised.value.__cause__, error)
