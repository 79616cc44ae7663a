"""Elastic averaging against a plain loop, all ranks in this process."""

from dataclasses import replace

import pytest
import torch

from pipesched.executor import ExecutionError
from pipesched.executor.core import averagers, begin, execute_rank
from pipesched.schedules import make_schedule, repeat
from pipesched.schedules.builders import build
from pipesched.schedules.ops import Average, Step, backward, forward
from tests.executor.elastic_loop import by_hand, vector
from tests.executor.pipelines import MLP, Local, assert_equal
from tests.properties import thinned

FORMS = ("synchronous", "asynchronous")
OPTIMIZERS = ("momentum", "adamw")
COUNTS = [(1, 4), (2, 3), (4, 2)]
"""K ranks of N pipelines."""


def model_of(run, k, pipeline):
    """Return the weights of a pipeline's whole model."""
    ranks = run.ranks[pipeline * k : (pipeline + 1) * k]
    return vector(p for rank in ranks for stage in rank.stages.values() for p in stage.module.parameters())


def reference_of(run, k):
    return vector(tensor for rank in run.ranks[:k] for stage in rank.stages.values() for tensor in held(stage))


def held(stage):
    return stage.averager._reference


def data(run, pipelines, iterations):
    """Return the data of each pipeline: its own N-th of the micro-batches, every time the same."""
    inputs, targets = (torch.cat(list(part)).chunk(pipelines) for part in (run.batch.inputs, run.batch.targets))
    return [list(zip(inputs, targets, strict=True))] * iterations


@pytest.mark.parametrize(("count", "optimizer", "averaging"), thinned(COUNTS, OPTIMIZERS, FORMS))
def test_the_models_and_the_reference_are_those_of_the_plain_loop_and_the_reference_is_their_mean(
    count, optimizer, averaging
):
    k, n = count
    run = Local(build("avgpipe", k, 2 * n, pipelines=n), optimizer=optimizer, averaging=averaging)
    tolerance = 1e-12 if optimizer in ("sgd", "momentum") else 1e-9  # Adam divides by tiny gradients
    for models, reference, _ in by_hand(MLP, n, data(run, n, 4), optimizer, averaging):
        run.run()
        weights = [model_of(run, k, pipeline) for pipeline in range(n)]
        assert_equal([sum(weights) / n], [reference_of(run, k)], relative=1e-12)
        assert_equal(weights, models, relative=tolerance)
        assert_equal([reference_of(run, k)], [reference], relative=tolerance)
        assert not torch.equal(weights[0], weights[1])


@pytest.mark.parametrize(("optimizer", "averaging"), thinned(OPTIMIZERS, FORMS))
def test_one_pipeline_is_plain_training_bit_for_bit(optimizer, averaging):
    alone = Local(build("avgpipe", 3, 4, pipelines=1), optimizer=optimizer, averaging=averaging).run(times=3)
    plain = Local(build("1f1b_afp", 3, 4), optimizer=optimizer).run(times=3)
    assert all(torch.equal(a, b) for a, b in zip(alone.parameters, plain.parameters, strict=True))


def test_at_any_time_reference_and_mean_differ_by_what_one_iteration_has_changed_so_far():
    k, n, times = 2, 3, 4
    run = Local(repeat(build("avgpipe", k, 2 * n, pipelines=n), times).held(), optimizer="momentum")
    stages = [[run.ranks[pipeline * k + s].stages[s] for pipeline in range(n)] for s in range(k)]
    after = {}  # the weights of a stage and pipeline after so many iterations
    differed = []

    def look(*_):
        for s, pipelines in enumerate(stages):
            now = [vector(stage.parameters) for stage in pipelines]
            done = [stage.averager._num_averages for stage in pipelines]
            for p in range(n):
                after.setdefault((s, p, done[p]), now[p])
            assert max(done) <= min(done) + 1
            changed = sum(x - after[s, p, min(done)] for p, x in enumerate(now)) / n
            difference = sum(now) / n - vector(held(pipelines[0]))
            torch.testing.assert_close(difference, changed, rtol=0, atol=1e-13)
            differed.append(changed.abs().max().item() > 1e-6)

    run.ranks = [replace(rank, at=look) for rank in run.ranks]
    run.run()
    assert any(differed)
    look()
    assert not any(differed[-k:]), "all updates are in the reference"


def pipelines_of(*iterations):
    """Return pipelines of one stage, each of so many iterations of a micro-batch."""
    rows, first = [], 0
    for count in iterations:
        rows.append([op for i in range(count) for op in (forward(0, first + i, i), backward(0, first + i, i), *UPDATE)])
        first += count
    return make_schedule("pipelines", 1, first, rows, (0,) * len(rows))


UPDATE = (Step(0), Average(0))


@pytest.mark.parametrize(("averaging", "before"), [("synchronous", "0AVERAGE"), ("asynchronous", "0STEP")])
def test_a_pipeline_waits_for_one_that_is_behind(averaging, before):
    """By no iteration, or by more than one."""
    run = Local(pipelines_of(3, 3), averaging=averaging)
    first = run.ranks[0]
    begin(first)
    waiting = next(execute_rank(first, run.batch))
    assert str(waiting) == f"rank 0 at {before} waits for the other pipelines of the stage"
    assert len(first.recorder) == {"synchronous": 3, "asynchronous": 6}[averaging]


def test_pipelines_of_unequal_numbers_of_iterations_are_a_deadlock_by_name():
    with pytest.raises(ExecutionError, match="deadlock: rank 0 at 0AVERAGE waits for the other pipelines"):
        Local(pipelines_of(2, 1), averaging="synchronous").run()


def test_all_steps_since_the_last_average_are_one_update():
    rows = [[forward(0, 2 * n), backward(0, 2 * n), Step(0), forward(0, 2 * n + 1, 1), backward(0, 2 * n + 1, 1),
             *UPDATE] for n in range(2)]  # fmt: skip
    run = Local(make_schedule("pipelines", 1, 4, rows, (0, 0))).run(times=3)
    weights = [model_of(run, 1, pipeline) for pipeline in range(2)]
    assert_equal([sum(weights) / 2], [reference_of(run, 1)])


def test_an_average_without_a_step_is_refused_with_its_op():
    rows = [[forward(0, n), backward(0, n), Average(0)] for n in range(2)]
    with pytest.raises(ExecutionError, match=r"rank 0 failed at 0AVERAGE: stage 0 has not stepped since .*; add one"):
        Local(make_schedule("pipelines", 1, 2, rows, (0, 0))).run()


def test_pipelines_on_several_devices_are_refused():
    schedule = build("avgpipe", 2, 4)
    with pytest.raises(ExecutionError, match="0AVERAGE: got its ranks 0, 2 on devices 0, 2, expected one"):
        averagers(replace(schedule, rank_to_device=(0, 1, 2, 3)))


def test_a_settled_model_is_the_reference():
    run = Local(build("avgpipe", 2, 4)).run(times=2)
    assert all(stage.averager.settle() for rank in run.ranks for stage in rank.stages.values())
    assert all(torch.equal(model_of(run, 2, pipeline), reference_of(run, 2)) for pipeline in range(2))
