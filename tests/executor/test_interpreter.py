from itertools import pairwise

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from executor.interpreter import Waiting
from schedules.catalogue import build
from schedules.lower import lower
from schedules.op import Average, Message, Payload, Recv, Reduce, Reshard, Send, Step, Unshard
from schedules.schedule import backward, forward, make_schedule
from tests.executor.pipelines import Local


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_a_profiler_sees_every_computation_by_its_name():
    found = Local(build("1f1b", 2, 2))
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        found.run()
    names = {event.name for event in profiled.events() if event.name.startswith("PP:")}
    expected = {str(op) for row in found.schedule.ops for op in row if not isinstance(op, Send | Recv)}
    assert names == {f"PP:{name}" for name in expected}
    assert {"PP:0F0", "PP:1B1", "PP:1STEP"} <= names


def test_every_op_is_announced_in_order_before_it_runs():
    found = Local(build("gpipe", 3, 2)).run()
    for rank, ops in enumerate(found.schedule.ops):
        assert [index for who, index in found.heard if who == rank] == list(range(len(ops)))


def test_times_are_recorded_for_every_op_in_order():
    found = Local(build("1f1b", 3, 4)).run(times=2)
    for rank in found.ranks:
        times = rank.recorder.times_ns()
        assert len(times) == len(rank.ops)
        assert all(posted <= start <= end for posted, start, end in times)
        assert all(before[2] <= after[0] for before, after in pairwise(times))


def test_what_only_pytorch_shards_is_nothing_to_do():
    rows = [[Unshard(0), forward(0, 0), backward(0, 0), Reshard(0), Step(0)]]
    assert Local(make_schedule("sharded", 1, 1, rows)).run().stage(0).weights.version == 1


@pytest.mark.parametrize("op", [Reduce(0), Average(0)])
def test_what_needs_replicas_is_refused(op):
    rows = [[forward(0, 0), backward(0, 0), op]]
    with pytest.raises(ValueError, match=f"rank 0 failed at {op}: .*not executed yet"):
        Local(make_schedule("replicas", 1, 1, rows)).run()


def test_a_rank_that_waits_says_for_what():
    waiting = Waiting(1, backward(1, 3), Message(Payload.GRADIENT, 2, 3))
    assert str(waiting) == "rank 1 at 1B3 waits for the gradient 3 of stage 2"


def test_stages_of_one_rank_hand_over_without_a_message():
    schedule = lower(build("interleaved", 1, 2, num_chunks=3))
    assert not schedule.is_lowered
    assert Local(schedule).run().stage(2).losses().keys() == {0, 1}


@pytest.mark.parametrize("error", [TypeError, KeyError, AssertionError, ZeroDivisionError])
def test_whatever_a_layer_raises_is_named_with_its_op(error):
    found = Local(build("gpipe", 2, 3))

    def fail(module, args):
        fail.calls += 1
        if fail.calls == 3:
            raise error("no")

    fail.calls = 0
    found.stage(1).module.register_forward_pre_hook(fail)
    with pytest.raises(ValueError, match=r"rank 1 failed at 1F2 \(micro-batch 2\): ") as raised:
        found.run()
    assert isinstance(raised.value.__cause__, error)


def test_dropout_draws_anew_for_every_micro_batch():
    torch.manual_seed(0)
    losses = Local(build("gpipe", 1, 2), "gpt:layers=1,width=16,heads=2,context=8,dropout=0.5").run().stage(0).losses()
    assert losses[0] != losses[1]
