"""Training pipelines that are averaged elastically, beside a plain loop."""

from dataclasses import replace

import pytest
import torch

from pipesched.executor.runs import TrainingSetup, train
from pipesched.executor.training.batches import step_seed
from pipesched.profiles.models import build_layers, resolve_model
from pipesched.schedules.transforms import training_run
from tests.executor.elastic import by_hand
from tests.executor.pipelines import CPU, even_bounds

NAME, BATCH = "digits:width=8,blocks=6", 8
MODEL = resolve_model(NAME)
TRAINING = TrainingSetup(
    model=MODEL,
    bounds=even_bounds(len(MODEL.layers), 2),
    batch_size=2 * BATCH,
    microbatches_per_step=8,
    optimizer="momentum",
    lr=0.05,
    seed=0,
    dtype=torch.float64,
    device=CPU,
)


@pytest.mark.parametrize("averaging", ["synchronous", "asynchronous"])
def test_losses_are_those_of_the_plain_loop_and_the_reference_is_judged(averaging):
    run = training_run("avgpipe", 2, 8, 6, pipelines=2)
    assert (run.pipelines, run.microbatches_per_step, run.microbatch_size(BATCH)) == (2, 8, 2)
    found = train(run.lists(6), replace(TRAINING, averaging=averaging))
    data = []
    for step in range(6):
        x, y = MODEL.batch(2 * BATCH, step_seed(0, step))
        data.append(list(zip(x.double().chunk(2), y.chunk(2), strict=True)))
    expected = list(by_hand(NAME, 2, data, "momentum", averaging))
    assert [scores.loss for scores in found.steps] == pytest.approx([loss for _, _, loss in expected], rel=1e-12)
    whole = build_layers(MODEL, 0, len(MODEL.layers), seed=0, dtype=torch.float64)
    torch.nn.utils.vector_to_parameters(expected[-1][1], whole.parameters())
    x, y = MODEL.held_out()
    assert found.held_out.loss == pytest.approx(MODEL.loss(whole(x.double()), y).item(), rel=1e-12)


def test_one_pipeline_trains_as_its_schedule_alone_does_bit_for_bit():
    training = replace(TRAINING, batch_size=BATCH, microbatches_per_step=4)
    runs = (training_run("avgpipe", 2, 4, 5, pipelines=1), training_run("1f1b_afp", 2, 4, 5))
    alone, plain = (train(run.lists(5), training) for run in runs)
    assert runs[0].pipelines == 1
    assert alone == plain
