"""Plans of representative schedules, executed by four processes over gloo, in float64."""

from dataclasses import replace

import pytest
import torch

from pipesched.executor.launch import RunSpec, Train
from pipesched.executor.runs import train_locally, training_of
from pipesched.executor.training.batches import step_seed
from pipesched.profiles.io import Plan, Predicted
from pipesched.profiles.models import build_layers
from pipesched.schedules.transforms import ScheduleSpec
from tests.executor.job_sequence_ranks import run_together
from tests.executor.runs.test_local_training import MODEL, plain_loop

pytestmark = pytest.mark.distributed

STEPS = 3
BATCH = 16


def a_plan(partition, microbatch_size, compression=None, **schedule_spec):
    return Plan(
        model=MODEL.name, schedule_spec=ScheduleSpec(**schedule_spec), partition=partition,
        microbatch_size=microbatch_size, batch_size=BATCH, compression=compression, predicted=Predicted(1.0, BATCH),
    )  # fmt: skip


TWO_BY_TWO = a_plan((3, 5), 4, name="1f1b", num_ranks=2, num_microbatches=2, width=2, recompute="all")
PLANS = {
    "pipelines inside, uneven, recompute": TWO_BY_TWO,
    "copies inside": replace(
        TWO_BY_TWO, schedule_spec=replace(TWO_BY_TWO.schedule_spec, placement="data", recompute=(1,))
    ),
    "four deep, uneven, split backward": a_plan((1, 3, 3, 1), 2, name="zb_h1", num_ranks=4, num_microbatches=8),
    "two stages on a rank": a_plan((1,) * 8, 2, name="zbv", num_ranks=4, num_microbatches=8),
    "copies of both directions": a_plan((6, 2), 2, name="chimera", num_ranks=2, num_microbatches=4, width=2),
    "compressed": replace(TWO_BY_TWO, compression="half"),
}
STALE = {
    "one version behind": a_plan((3, 5), 8, name="pipedream", num_ranks=2, num_microbatches=1, width=2),
    "predicted": a_plan((3, 5), 8, name="pipeoptim", num_ranks=2, num_microbatches=1, width=2),
    "two stages on a rank, two versions": a_plan((1,) * 8, 4, name="wpipe", num_ranks=4, num_microbatches=4),
    "replicas in turns": a_plan((3, 3, 2), 8, name="1f1b_rr", num_ranks=4, num_microbatches=2),
}
PLANS |= STALE


def to_job(plan):
    assert plan.run(STEPS).lists(STEPS).num_ranks == 4
    return RunSpec(
        job=Train(schedule_spec=plan.schedule_spec, num_steps=STEPS, batch_size=plan.batch_size),
        model=plan.model, bounds=plan.bounds, compression=plan.compression, dtype="float64",
        optimizer="momentum", lr=0.05, seed=3,
    )  # fmt: skip


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """All plans on the same processes."""
    return run_together({name: to_job(plan) for name, plan in PLANS.items()}, 4, tmp_path_factory.mktemp("plans"))


@pytest.mark.parametrize("name", sorted(PLANS.keys() - STALE.keys() - {"compressed"}))
def test_the_losses_are_those_of_the_model_in_one_piece(losses, name):
    assert losses[name] == pytest.approx(plain_loop(STEPS)[0], rel=1e-9)


class Halved(torch.autograd.Function):
    """A boundary between stages: what crosses it, either way, is rounded to the eleven bits of half precision."""

    @staticmethod
    def forward(ctx, x):
        return rounded(x)

    @staticmethod
    def backward(ctx, g):
        return rounded(g)


def rounded(x):
    scale = 2.0 ** (15 - torch.frexp(x.abs().max()).exponent)
    return (x * scale).half().double() / scale


def rounded_loop():
    """Train the whole model, its boundary rounded; return the losses."""
    first, last = (build_layers(MODEL, *bounds, seed=3, dtype=torch.float64) for bounds in TWO_BY_TWO.bounds)
    optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], 0.05, momentum=0.9)
    step_losses = []
    for step in range(STEPS):
        x, y = MODEL.batch(BATCH, step_seed(3, step))
        parts = [
            MODEL.loss(last(Halved.apply(first(part))), target)
            for part, target in zip(x.double().chunk(4), y.chunk(4), strict=True)
        ]
        optimizer.zero_grad()
        for loss in parts:
            loss.backward(torch.tensor(0.25, dtype=torch.float64))
        optimizer.step()
        step_losses.append(sum(loss.item() for loss in parts) / 4)
    return step_losses


def test_compressed_messages_lose_what_half_precision_loses_and_nothing_else(losses):
    assert losses["compressed"] == pytest.approx(rounded_loop(), rel=1e-9)
    assert losses["compressed"] != pytest.approx(plain_loop(STEPS)[0], rel=1e-9)


@pytest.mark.parametrize("name", STALE)
def test_copies_that_read_stale_weights_train_as_in_one_process(losses, name):
    local = train_locally(training_of(to_job(PLANS[name])))
    assert losses[name] == pytest.approx([scores.loss for scores in local.steps], rel=1e-12, abs=0)
    assert losses[name] != pytest.approx(plain_loop(STEPS)[0], rel=1e-6), "nothing is stale"
