"""Training pipelines that are averaged elastically, beside a plain loop."""

import pytest
import torch

from pipesched.executor.runs import train_locally, training_of
from pipesched.executor.training.batches import step_seed
from pipesched.profiles.models import build_layers, resolve_model
from tests.executor.checkpoint_runs import a_job
from tests.executor.elastic_loop import by_hand

NAME, BATCH = "digits:width=8,blocks=6", 8
MODEL = resolve_model(NAME)


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
    job = a_job("avgpipe", steps=6, model=NAME, averaging=averaging, training=learning, seed=0, dtype="float64")
    setup = training_of(job)
    run = setup.run
    assert (run.pipelines, run.microbatches_per_step, run.microbatch_size(BATCH)) == (2, 4, 4)
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
