"""Several seeds in one training run, beside each seed alone."""

from dataclasses import replace

import pytest
import torch

import pipesched
from pipesched.executor.training import step_seed
from pipesched.profiles.models import build_layers, resolve_model
from pipesched.schedules.transforms import ScheduleSpec
from tests.properties import thinned

SEEDS, STEPS, BATCH = 3, 6, 8


def alone(model, stacked, schedule, seed, **how):
    """Train one of the seeds of a stacked model by itself; return losses and held-out accuracies."""
    layers = build_layers(stacked, 0, len(stacked.layers), seed=0, dtype=torch.float64)

    def built(index):
        def build():
            layer = model.layers[index]()
            own = [parameter[seed].detach() for parameter in layers[index].stacked]
            torch.nn.utils.vector_to_parameters(torch.cat([p.flatten() for p in own]), layer.double().parameters())
            return layer

        return build

    def batch(num_samples, data_seed):
        return model.batch(num_samples, step_seed(data_seed, seed))

    its = replace(model, name="alone", layers=tuple(map(built, range(len(layers)))), batch=batch, kinds=None)
    result = pipesched.train(its, schedule, **how)
    looks = [scores.accuracy for scores in result.held_out_on_the_way.values()]
    return result.losses, [*looks, result.held_out_accuracy]


MODELS = ["digits:width=8,blocks=2", "gpt:layers=2,width=8,heads=2,context=8"]


@pytest.mark.parametrize(
    ("text", "name", "optimizer"), thinned(MODELS, ["gpipe", "pipedream", "xpipe"], ["momentum", "adamw"], every=3)
)
def test_each_seed_is_trained_as_if_alone(rows, text, name, optimizer):
    model = resolve_model(text)
    schedule = ScheduleSpec(name=name, num_ranks=2, num_microbatches=2)
    how = {"num_steps": STEPS, "batch_size": BATCH, "optimizer": optimizer, "lr": 0.01, "dtype": "float64"}
    how["held_out_every"] = 3
    stacked, scores = rows("stacked_seeds").stacked(model, SEEDS)
    result = pipesched.train(stacked, schedule, **how)
    parts = schedule.run(STEPS).microbatches_per_step
    losses = torch.stack(scores.losses).view(STEPS, parts, SEEDS).mean(1)
    for seed in range(SEEDS):
        expected, looks = alone(model, stacked, schedule, seed, **how)
        assert losses[:, seed].tolist() == pytest.approx(expected, rel=1e-9)
        assert [look[seed].item() for look in scores.looks] == pytest.approx(looks)
    assert losses.sum(1).tolist() == pytest.approx(result.losses, rel=1e-9)
    assert scores.final_losses(parts).tolist() == pytest.approx(losses[-1].tolist())
