"""Gradient clipping over all stages: PyTorch's `clip_grad_norm_` on the whole model in float64 is the oracle."""

import pytest
import torch

import pipesched
from pipesched.executor import ExecutionError
from pipesched.executor.core import ModuleStage
from pipesched.profiles.costs import uniform
from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import build
from pipesched.schedules.ops import Reduce, Step, Summed, computes
from pipesched.schedules.transforms import ScheduleSpec, replicate, with_step_barrier
from tests.executor.pipelines import Local, assert_equal, whole_model

MODEL = "mlp:layers=16,width=8"
CLIPPED, LOOSE = 0.05, 1e6


def whole_weights(num_samples, max_norm, num_steps, lr=0.05):
    """Return the weights of the whole model after some steps on the same batch."""
    module, inputs, targets, loss = whole_model(MODEL, num_samples)
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss(module(inputs), targets).backward()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), max_norm)
        assert (norm > max_norm) == (max_norm == CLIPPED), "one norm clips, the other does not"
        optimizer.step()
    return [parameter.detach() for parameter in module.parameters()]


def weights_of(run):
    stages = [run.replicas(index) for index in range(run.schedule.num_stages)]
    for replicas in stages:
        for other in replicas[1:]:
            assert_equal(other.module.parameters(), replicas[0].module.parameters(), relative=0)
    return [parameter.detach() for replicas in stages for parameter in replicas[0].module.parameters()]


CASES = [(name, CLIPPED) for name in ("gpipe", "1f1b", "interleaved", "zbv", "chimera", "dualpipe", "data_parallel")]


@pytest.mark.parametrize(("name", "max_norm"), [*CASES, ("1f1b", LOOSE), ("chimera", LOOSE)])
def test_all_stages_are_clipped_by_the_norm_of_the_whole_model(name, max_norm):
    lists = with_step_barrier(build(name, 4, 8))
    run = Local(lists, MODEL, clip_grad_norm=max_norm).run(times=2)
    assert_equal(weights_of(run), whole_weights(16, max_norm, 2))


def test_copies_of_a_pipeline_are_clipped_by_the_norm_of_the_sum():
    lists = with_step_barrier(replicate(build("interleaved", 2, 4), 2))
    run = Local(lists, MODEL, clip_grad_norm=CLIPPED).run()
    assert_equal(weights_of(run), whole_weights(16, CLIPPED, 1))


def test_a_barrier_without_a_norm_to_clip_to_changes_nothing():
    plain, barred = (Local(lists, MODEL).run() for lists in (build("zbv", 2, 4), with_step_barrier(build("zbv", 2, 4))))
    assert_equal(weights_of(barred), weights_of(plain), relative=0)


def test_no_stage_steps_before_all_have_ended_their_backwards(monkeypatch):
    run = Local(with_step_barrier(build("zb_h2", 3, 4)), MODEL, clip_grad_norm=1.0)
    num_begun = []
    update = ModuleStage.update

    def updated(stage, op):
        num_begun.append(sum(bool(computes(run.schedule.ops[rank][index])) for rank, index in run.heard))
        update(stage, op)

    monkeypatch.setattr(ModuleStage, "update", updated)
    run.run()
    assert num_begun == [3 * 3 * 4] * 3


@pytest.mark.distributed
def test_a_measured_run_has_the_barrier():
    result = pipesched.run(
        build("zb_h2", 2, 4), pipesched.Setup(uniform(2, 0.01, 0.02, 0.01, 0.01)), clip_grad_norm=1.0
    )
    norms = [span for span in result.timeline.spans if span.op == Reduce(span.rank, Summed.NORM)]
    steps = [span for span in result.timeline.spans if isinstance(span.op, Step)]
    works = [span.end_s for span in result.timeline.spans if computes(span.op)]
    assert len(norms) == len(steps) == 2
    assert min(span.start_s for span in steps) >= max(works)


def test_lists_without_a_barrier_are_not_clipped():
    with pytest.raises(ExecutionError, match="clip_grad_norm: got 1 with schedule 1f1b, expected steps that wait"):
        Local(build("1f1b", 2, 4), MODEL, clip_grad_norm=1.0)


def test_a_training_without_a_flush_is_not_clipped():
    with pytest.raises(ScheduleError, match="got a barrier before the steps, expected a schedule with a flush"):
        pipesched.train(MODEL, ScheduleSpec(name="pipedream", num_ranks=2, num_microbatches=2), clip_grad_norm=1.0)
