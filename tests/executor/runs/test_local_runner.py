from dataclasses import replace

import pytest

from pipesched.executor import ExecutionError
from pipesched.schedules import PredictionRule, make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.formats import from_json, to_json
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute, Message, Payload, Phase, Recv, Send, Step, backward, forward
from tests.executor.pipelines import MLP, Local, assert_equal, whole_model


def test_gradients_are_gone_after_a_step():
    assert all(p.grad is None for p in Local(build("1f1b", 2, 3)).run().parameters)


def test_the_losses_are_those_of_each_micro_batch():
    run = Local(build("gpipe", 3, 4)).run()
    module, inputs, targets, loss = whole_model(MLP, 8)
    expected = {i: loss(module(inputs[2 * i : 2 * i + 2]), targets[2 * i : 2 * i + 2]).item() for i in range(4)}
    assert run.stage(2).losses() == pytest.approx(expected, rel=1e-14)
    assert run.stage(0).losses() == {}


GPIPE, ONE_F_ONE_B = lower(build("gpipe", 2, 1)), lower(build("1f1b", 2, 4))
SEND = Send(Message(Payload.ACTIVATION, 0, 0), 1)


def without(schedule, *names):
    """Return a schedule without the Sends of these names."""
    return replace(schedule, lists=tuple(tuple(op for op in row if str(op) not in names) for row in schedule.ops))


WRONG = [
    (
        without(GPIPE, "0SEND_F0", "1SEND_B0"),
        "deadlock: rank 0 at 0B0 waits for the gradient 0 of stage 1, "
        "rank 1 at 1F0 waits for the activation 0 of stage 0$",
    ),
    # only ranks that need the missing message stop
    (
        without(ONE_F_ONE_B, "0SEND_F2"),
        r"rank 1 failed at 1F2 \(micro-batch 2\): 1RECV_F2: rank 0 sends 0SEND_F3 at this place of the channel",
    ),
    (
        make_schedule(
            "made later", 2, 1,
            [[SEND, forward(0, 0), backward(0, 0)], [Recv(SEND.message, 0), forward(1, 0), backward(1, 0)]],
        ),
        r"rank 0 failed at 0SEND_F0 \(micro-batch 0\): .*no such activation",
    ),
    (
        replace(GPIPE, lists=((*GPIPE.ops[0], Step(1)), GPIPE.ops[1])),
        r"rank 0 failed at 1STEP: got an op of stage 1, expected a stage of this rank \(0\)",
    ),
    (
        make_schedule("no forward", 1, 1, [[backward(0, 0), forward(0, 0)]]),
        r"rank 0 failed at 0B0 \(micro-batch 0\): .*no forward",
    ),
    (
        make_schedule("own", 1, 1, [[Compute(Phase.FORWARD, 0, 0, lookahead=1), backward(0, 0)]]),
        "schedule own: got ops that look ahead, .*set `prediction` to one of",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("schedule", "told"), WRONG)
def test_lists_that_cannot_run_are_named_with_ranks_and_ops(schedule, told):
    with pytest.raises(ExecutionError, match=f"^{told}"):
        Local(schedule, lowering=lambda lists: lists).run()


def test_a_schedule_from_a_file_looks_ahead_by_its_own_rule_whatever_it_is_called():
    named = build("spectrain", 2, 6)
    renamed = from_json(to_json(replace(named, name="mine")), "mine.json")
    runs = [Local(schedule, optimizer="momentum").run() for schedule in (named, renamed)]
    assert_equal(runs[1].parameters, runs[0].parameters, relative=0)
    assert renamed.traits.prediction is PredictionRule.MOMENTUM
