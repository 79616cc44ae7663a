from dataclasses import replace

import pytest

from pipesched.executor import ExecutionError
from pipesched.schedules import PredictionRule, make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.formats import from_json, to_json
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute, Message, Payload, Phase, Recv, Send, Step, backward, forward
from tests.executor.pipelines import MLP, Local, assert_equal, whole_model


def as_it_is(schedule):
    return schedule


def test_gradients_are_gone_after_a_step():
    assert all(p.grad is None for p in Local(build("1f1b", 2, 3)).run().parameters)


def test_the_losses_are_those_of_each_micro_batch():
    run = Local(build("gpipe", 3, 4)).run()
    module, inputs, targets, loss = whole_model(MLP, 8)
    expected = {i: loss(module(inputs[2 * i : 2 * i + 2]), targets[2 * i : 2 * i + 2]).item() for i in range(4)}
    assert run.stage(2).losses() == pytest.approx(expected, rel=1e-14)
    assert run.stage(0).losses() == {}


def test_a_deadlock_is_named_with_ranks_and_ops():
    good = lower(build("gpipe", 2, 1))
    without_send = tuple(tuple(op for op in row if not isinstance(op, Send)) for row in good.ops)
    with pytest.raises(ExecutionError) as raised:
        Local(replace(good, lists=without_send)).run()
    assert str(raised.value) == (
        "deadlock: rank 0 at 0B0 waits for the gradient 0 of stage 1, "
        "rank 1 at 1F0 waits for the activation 0 of stage 0"
    )


def test_a_missing_send_stops_only_those_who_need_it():
    good = lower(build("1f1b", 2, 4))
    rows = list(good.ops)
    rows[0] = tuple(op for op in rows[0] if str(op) != "0SEND_F2")
    message = r"rank 1 failed at 1F2 \(micro-batch 2\): 1RECV_F2: rank 0 sends 0SEND_F3 at this place of the channel"
    with pytest.raises(ExecutionError, match=message):
        Local(replace(good, lists=tuple(rows))).run()


def test_a_send_of_something_not_made_is_named():
    send = Send(Message(Payload.ACTIVATION, 0, 0), 1)
    recv = Recv(send.message, 0)
    rows = [[send, forward(0, 0), backward(0, 0)], [recv, forward(1, 0), backward(1, 0)]]
    with pytest.raises(ExecutionError, match=r"rank 0 failed at 0SEND_F0 \(micro-batch 0\): .*no such activation"):
        Local(make_schedule("wrong", 2, 1, rows)).run()


def test_a_step_of_a_stage_that_is_elsewhere_is_named():
    schedule = lower(build("gpipe", 2, 1))
    rows = ((*schedule.ops[0], Step(1)), schedule.ops[1])
    with pytest.raises(ExecutionError, match="rank 0 failed at 1STEP: stage 1 is not on this rank, which holds 0"):
        Local(replace(schedule, lists=rows)).run()


def test_a_backward_without_its_forward_is_named():
    rows = [[backward(0, 0), forward(0, 0)]]
    with pytest.raises(ExecutionError, match=r"rank 0 failed at 0B0 \(micro-batch 0\): .*no forward"):
        Local(make_schedule("wrong", 1, 1, rows), lowering=as_it_is).run()


def test_looking_ahead_is_refused_if_nobody_says_how():
    rows = [[Compute(Phase.FORWARD, 0, 0, lookahead=1), backward(0, 0)]]
    with pytest.raises(ExecutionError, match=r"schedule own: got ops that look ahead, .*name a prediction, one of"):
        Local(make_schedule("own", 1, 1, rows))


def test_a_schedule_from_a_file_looks_ahead_by_its_own_rule_whatever_it_is_called():
    named = build("spectrain", 2, 6)
    renamed = from_json(to_json(replace(named, name="mine")), "mine.json")
    runs = [Local(schedule, optimizer="momentum").run() for schedule in (named, renamed)]
    assert_equal(runs[1].parameters, runs[0].parameters, relative=0)
    assert renamed.traits.prediction is PredictionRule.MOMENTUM
