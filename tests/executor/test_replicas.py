"""A stage on several ranks: its gradients are summed, and its weights stay the same everywhere."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from pipesched.executor import ExecutionError
from pipesched.executor.core import gradients as buckets
from pipesched.executor.core.gradients import loss_scales
from pipesched.executor.emulation import emulated_stages
from pipesched.executor.runs import launch
from pipesched.executor.transport import LocalTransport, Mailroom
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.profiles.models import Model
from pipesched.schedules import make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Reduce, Step, backward, backward_input, backward_weight, forward
from tests.executor import models
from tests.executor.job_sequence_ranks import run_module
from tests.executor.pipelines import Local, assert_equal, job, whole_gradients, whole_model
from tests.schedules.edits import reduced_early, without_steps

REPLICATED = ["chimera", "dualpipe", "gems", "data_parallel"]


def bits(stage):
    return [parameter.detach() for parameter in stage.module.parameters()]


def same(run):
    """Whether all replicas of every stage have the same weights to the last bit."""
    return all(
        torch.equal(a, b)
        for index in range(run.schedule.num_stages)
        for other in run.replicas(index)[1:]
        for a, b in zip(bits(run.replicas(index)[0]), bits(other), strict=True)
    )


@pytest.mark.parametrize("name", REPLICATED)
def test_replicas_begin_alike_and_stay_alike_to_the_last_bit_and_hold_other_micro_batches(name):
    run = Local(build(name, 4, 8), models.dropping(layers=4), optimizer="adamw")
    assert same(run)
    before = [parameter.clone() for parameter in run.parameters]
    run.run(times=3)
    assert same(run)
    assert all(not torch.equal(a, b) for a, b in zip(before, run.parameters, strict=True))
    losses = [stage.losses() for stage in run.replicas(run.schedule.num_stages - 1)]
    assert len(losses) > 1
    assert sorted(i for replica_losses in losses for i in replica_losses) == list(range(8))


def test_a_rank_without_any_micro_batch_steps_along():
    rows = [[forward(0, 0), backward(0, 0), Reduce(0), Step(0)], [Reduce(0), Step(0), forward(0, 1)]]
    run = Local(make_schedule("idle", 1, 2, rows), models.plain(layers=3), optimizer="adamw").run()
    assert same(run)


def test_the_mean_is_over_the_micro_batches_of_each_step():
    first = [backward(0, 0), backward_input(0, 1), backward_weight(0, 1), Reduce(0), Step(0), backward(0, 4), Reduce(0)]
    second = [backward(0, 2), Reduce(0), Step(0), backward(0, 5), backward(0, 6), Reduce(0), Step(0)]
    assert loss_scales(make_schedule("two steps", 1, 7, [first, second])) == dict.fromkeys((0, 1, 2, 4, 5, 6), 1 / 3)


def test_ranks_that_do_not_reduce_a_stage_take_the_mean_each_for_itself():
    # pipelines beside each other, each with its own optimizer
    rows = [[backward(0, 0), backward(0, 1), Step(0)], [backward(0, 2), Step(0)]]
    assert loss_scales(make_schedule("beside", 1, 3, rows)) == {0: 0.5, 1: 0.5, 2: 1}


class SometimesUsed(nn.Module):
    """Uses one parameter never, another only where the first number of its input is positive."""

    def __init__(self):
        super().__init__()
        self.always, self.never, self.sometimes = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        y = self.always(x)
        return self.sometimes(y) if x[0, 0] > 0 else y


def sometimes():
    def batch(num_samples, seed):
        x = torch.randn(num_samples, 4, generator=torch.Generator().manual_seed(seed))
        x[:2, 0], x[2:4, 0] = 1.0, -1.0  # micro-batch 0, on rank 0, uses it, 1 does not
        return x, x.flip(1)

    return Model("sometimes", (SometimesUsed,), ("a",), functional.mse_loss, batch)


def test_a_parameter_that_one_replica_did_not_use_counts_as_zero_and_one_that_none_used_has_no_gradient():
    run = Local(without_steps(build("data_parallel", 2, 2)), sometimes()).run()
    expected = whole_gradients(sometimes(), 2)
    for stage in run.replicas(0):
        got = [p.grad for p in stage.module.parameters()]
        assert [g is None for g in got] == [g is None for g in expected] == [False] * 2 + [True] * 2 + [False] * 2
        assert_equal((g for g in got if g is not None), (g for g in expected if g is not None))


def test_many_buckets_are_summed_one_after_the_other(monkeypatch):
    monkeypatch.setattr(buckets, "_BUCKET_BYTES", 100)
    model = models.dropping(layers=5)
    run = Local(without_steps(build("data_parallel", 4, 4)), model).run()
    assert len(list(run.replicas(0)[0].terms(Reduce(0)))) == 10
    for stage in run.replicas(0):
        assert_equal((p.grad for p in stage.module.parameters()), whole_gradients(model, 4))
    assert not run.room.terms


def crossed():
    """Two stages on both ranks, which sum them and step in different orders."""
    return with_updates([Reduce(0), Step(0), Reduce(1), Step(1)], [Reduce(1), Step(1), Reduce(0), Step(0)])


def with_updates(*updates):
    """Chimera on two ranks, which then do this."""
    schedule = lower(build("chimera", 2, 4))
    rows = [[*(op for op in row if not isinstance(op, Reduce | Step)), *new]
            for row, new in zip(schedule.ops, updates, strict=True)]  # fmt: skip
    return replace(schedule, lists=tuple(map(tuple, rows)))


def test_sums_and_steps_in_different_orders_are_a_deadlock_with_ranks_and_ops():
    with pytest.raises(ExecutionError) as raised:
        Local(crossed(), models.plain(layers=2)).run()
    assert str(raised.value) == (
        "deadlock: rank 0 at 0STEP waits for the other replicas of the stage, "
        "rank 1 at 1STEP waits for the other replicas of the stage"
    )


def test_a_reduce_posts_and_its_sum_is_taken_at_the_step_or_at_the_end_of_the_list():
    """So the orders of the Reduces may differ, and what comes between Reduce and Step reads the old weights."""
    plain = Local(lower(build("chimera", 2, 4)), models.dropping(layers=2)).run(times=2)
    other = with_updates([Reduce(0), Reduce(1), Step(1), Step(0)], [Reduce(1), Reduce(0), Step(0), Step(1)])
    run = Local(other, models.dropping(layers=2)).run(times=2)
    assert all(torch.equal(a, b) for a, b in zip(run.parameters, plain.parameters, strict=True))
    expected = whole_gradients(models.dropping(layers=2), 4)
    for at in (0, 1):
        rows = [[Reduce(at), Reduce(1 - at)], [Reduce(1), Reduce(0)]]
        run = Local(with_updates(*rows), models.dropping(layers=2)).run()
        for rank in range(2):
            stages = [run.replicas(stage)[rank] for stage in range(2)]
            assert_equal((p.grad for stage in stages for p in stage.module.parameters()), expected)


def test_from_reduce_to_step_the_gradients_are_held_once():
    """In the buckets: the parameters have none until the reductions are over."""
    held = []
    run = Local(with_updates(*[[Reduce(0), Reduce(1), Step(0), Step(1)]] * 2), models.plain(layers=2))

    def look(rank, index, _):
        parameters = [p for stage in rank.stages.values() for p in stage.module.parameters()]
        held.append((rank.ops[index - 1], {p.grad is None for p in parameters}))

    run.ranks = [replace(rank, at=partial(look, rank)) for rank in run.ranks]
    run.run()
    assert [nothing for op, nothing in held if op == Reduce(1)] == [{True}] * 2


def test_a_mailroom_that_was_not_told_of_the_replicas_says_so():
    with pytest.raises(ExecutionError, match="pass the `summands`"):
        LocalTransport(0, Mailroom()).reduce(Reduce(0), torch.zeros(1))


def test_reducers_are_the_ranks_that_reduce_a_stage_in_order_of_the_stages():
    rows = [[Reduce(3), Reduce(1)], [], [Reduce(1)], [Reduce(3), Reduce(3)]]
    assert make_schedule("reductions", 4, 1, rows).reducers == {1: (0, 2), 3: (0, 3)}


def test_emulated_replicas_move_as_many_bytes_as_the_weights_have():
    costs = StageCosts((StageCost(0.0, 0.0, weight_bytes=1000),), origin="by hand")
    (stage,) = emulated_stages([forward(0, 0)], costs, "sleep").values()
    (bucket,) = stage.terms(Reduce(0))
    flat = bucket.flatten()
    assert (flat.dtype, flat.nbytes) == (torch.uint8, 1001)
    bucket.unflatten(flat)


def test_costs_whose_ops_overlap_are_not_emulated():
    costs = StageCosts((StageCost(0.1, 0.1),), origin="by hand", overlap=0.5)
    with pytest.raises(ExecutionError, match=r"\(by hand\): got overlap 0.5, expected 0 for emulation"):
        emulated_stages([forward(0, 0)], costs, "sleep")


# over gloo


@pytest.mark.distributed
def test_the_sum_of_processes_is_the_same_to_the_last_bit_on_each_of_them(tmp_path):
    first, *others = run_module("tests.executor.all_reduce_ranks", 3, tmp_path)
    assert len(first.splitlines()) == 2 * 5 * 3  # staged or not, dtypes, lengths
    assert others == [first] * 2


@pytest.mark.distributed
def test_processes_train_replicas_as_the_whole_model_is_trained_and_one_writes_them(tmp_path):
    schedule = reduced_early(build("chimera", 2, 4))
    assert not all(isinstance(op, Reduce | Step) for op in schedule.ops[0][-4:])
    run = launch(job(schedule, iterations=3, save=str(tmp_path)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stage0.safetensors", "stage1.safetensors"]
    module, inputs, targets, loss = whole_model("mlp:layers=6,width=8", 8)
    plain = torch.optim.SGD(module.parameters(), 0.05)
    for _ in range(3):
        plain.zero_grad()
        loss(module(inputs), targets).backward()
        plain.step()
    files = [load_file(tmp_path / f"stage{stage}.safetensors") for stage in range(2)]
    parameters = [file[key] for file in files for key in sorted(file, key=lambda key: (key[0], key.endswith("bias")))]
    assert_equal(parameters, (p.detach() for p in module.parameters()))
    assert len(run.losses) == 4
    # a sum begins when both have come to it
    reduces = [span for span in run.timeline.spans if isinstance(span.op, Reduce)]
    for stage in range(2):
        pair = [span for span in reduces if span.op.stage == stage]
        assert len(pair) == 2
        assert pair[0].start_s == pair[1].start_s == max(span.posted_s for span in pair)
