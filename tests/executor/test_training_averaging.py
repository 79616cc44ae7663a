"""Training pipelines that are averaged elastically, beside a plain loop."""

import pytest
import torch

from pipesched.executor.launch import RunSpec, Train
from pipesched.executor.runs import train_locally, training_of
from pipesched.executor.training.batches import step_seed
from pipesched.profiles.models import build_layers, resolve_model
from pipesched.schedules.transforms import ScheduleSpec
from tests.executor.elastic_loop import by_hand
from tests.executor.pipelines import even_bounds

NAME, BATCH = "digits:width=8,blocks=6", 8
MODEL = resolve_model(NAME)


def training(num_steps, name="avgpipe", num_microbatches=4, averaging="asynchronous", learning=None, **parameters):
    schedule_spec = ScheduleSpec(name=name, num_ranks=2, num_microbatches=num_microbatches, parameters=parameters)
    spec = RunSpec(
        job=Train(schedule_spec=schedule_spec, num_steps=num_steps, batch_size=BATCH, **learning or {}),
        model=NAME,
        bounds=even_bounds(len(MODEL.layers), 2),
        optimizer="momentum",
        lr=0.05,
        dtype="float64",
        averaging=averaging,
    )
    return training_of(spec, MODEL)


@pytest.mark.parametrize(
    ("learning", "rate"),
    [
        ({}, lambda step: 1.0),
        (
            {"lr_schedule": "step", "lr_milestones": [3, 5], "lr_warmup": 1},
            lambda k: [0.5, 1, 1, 0.1, 0.1, 0.01, 0.0][k],
        ),
    ],
    ids=["constant", "falling"],
)
@pytest.mark.parametrize("averaging", ["synchronous", "asynchronous"])
def test_losses_are_those_of_the_plain_loop_and_the_reference_is_judged(averaging, learning, rate):
    setup = training(6, num_microbatches=8, averaging=averaging, learning=learning, pipelines=2)
    run = setup.run
    assert (run.pipelines, run.microbatches_per_step, run.microbatch_size(BATCH)) == (2, 8, 2)
    result = train_locally(setup)
    data = []
    for step in range(6):
        x, y = MODEL.batch(2 * BATCH, step_seed(0, step))
        data.append(list(zip(x.double().chunk(2), y.chunk(2), strict=True)))
    expected = list(by_hand(NAME, 2, data, "momentum", averaging, rate))
    assert [scores.loss for scores in result.steps] == pytest.approx([loss for _, _, loss in expected], rel=1e-12)
    whole = build_layers(MODEL, 0, len(MODEL.layers), seed=0, dtype=torch.float64)
    torch.nn.utils.vector_to_parameters(expected[-1][1], whole.parameters())
    x, y = MODEL.held_out()
    assert result.held_out.loss == pytest.approx(MODEL.loss(whole(x.double()), y).item(), rel=1e-12)


def test_one_pipeline_trains_as_its_schedule_alone_does_bit_for_bit():
    setups = (training(5, pipelines=1), training(5, "1f1b_afp"))
    alone, plain = (train_locally(setup) for setup in setups)
    assert setups[0].run.pipelines == 1
    assert alone == plain
