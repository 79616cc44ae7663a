"""Plans of representative schedules, executed by four processes over gloo, in float64."""

from dataclasses import replace

import pytest

from pipesched.executor.launch import RunSpec, Train
from pipesched.executor.runs import train_locally, training_of
from pipesched.profiles.io import Plan, Predicted
from pipesched.profiles.models import resolve_model
from pipesched.schedules.transforms import ScheduleSpec
from tests.executor.job_sequence_ranks import run_together
from tests.executor.pipelines import plain_loop

pytestmark = pytest.mark.distributed

MODEL = resolve_model("mlp:layers=8,width=8")
STEPS, BATCH = 3, 16


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
}
OTHERWISE = {
    "one version behind": a_plan((3, 5), 8, name="pipedream", num_ranks=2, num_microbatches=1, width=2),
    "predicted": a_plan((3, 5), 8, name="pipeoptim", num_ranks=2, num_microbatches=1, width=2),
    "two stages on a rank, two versions": a_plan((1,) * 8, 4, name="wpipe", num_ranks=4, num_microbatches=4),
    "replicas in turns": a_plan((3, 3, 2), 8, name="1f1b_rr", num_ranks=4, num_microbatches=2),
    "compressed": replace(TWO_BY_TWO, compression="half"),
    "averaged": a_plan((3, 5), 8, name="avgpipe", num_ranks=2, num_microbatches=2, parameters={"pipelines": 2}),
    "clipped": replace(
        TWO_BY_TWO, schedule_spec=replace(TWO_BY_TWO.schedule_spec, placement="data", step_barrier=True)
    ),
    "clipped, two stages on a rank": a_plan(
        (2,) * 4, 2, name="interleaved", num_ranks=2, num_microbatches=4, width=2, step_barrier=True
    ),
}
PLANS |= OTHERWISE


FIELDS = {"averaged": {"averaging": "synchronous"}} | {
    name: {"clip_grad_norm": 0.05} for name in ("clipped", "clipped, two stages on a rank")
}
"""Fields of a job that no plan has."""


def to_job(name):
    plan = PLANS[name]
    assert plan.run(STEPS).lists(STEPS).num_ranks == 4
    return RunSpec(
        job=Train(schedule_spec=plan.schedule_spec, num_steps=STEPS, batch_size=plan.batch_size),
        model=plan.model, bounds=plan.bounds, compression=plan.compression, dtype="float64",
        optimizer="momentum", lr=0.05, seed=3, **FIELDS.get(name, {}),
    )  # fmt: skip


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """All plans on the same processes."""
    return run_together({name: to_job(name) for name in PLANS}, 4, tmp_path_factory.mktemp("plans"))


@pytest.mark.parametrize("name", sorted(PLANS.keys() - OTHERWISE.keys()))
def test_the_losses_are_those_of_the_model_in_one_piece(losses, name):
    assert losses[name] == pytest.approx(plain_loop(MODEL, STEPS)[0], rel=1e-9)


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_trains_otherwise_than_the_plain_loop_does_so_as_in_one_process(losses, name):
    """With stale weights, averaged, with clipped gradients or with messages in half precision."""
    local = train_locally(training_of(to_job(name)))
    assert losses[name] == pytest.approx([scores.loss for scores in local.steps], rel=1e-12, abs=0)
    assert losses[name] != pytest.approx(plain_loop(MODEL, STEPS)[0], rel=1e-9)
