"""Every synchronous schedule in several processes against the model in one piece, in float64."""

import pytest
import torch
from safetensors.torch import load_file

from pipesched.executor.runs import whole_model_losses
from pipesched.profiles.models import build_layers, resolve_model
from pipesched.schedules.transforms import recompute
from tests.executor.job_sequence_ranks import run_together
from tests.executor.pipelines import SYNCHRONOUS, any_schedule, assert_equal, job, whole_gradients

pytestmark = pytest.mark.distributed


def as_it_is(schedule):
    return schedule


VARIANTS = (("plain", as_it_is), ("dropping", recompute))
"""Model and transform: of two and of four ranks, a schedule runs one with each number."""


@pytest.fixture(scope="module", params=[2, 4])
def ran(request, tmp_path_factory):
    """All jobs on the same processes: plain SGD with rate 1, so that the weights tell the gradients."""
    num_ranks, folder = request.param, tmp_path_factory.mktemp("jobs")
    jobs = {}
    for k, name in enumerate(SYNCHRONOUS):
        schedule = any_schedule(name, num_ranks, seed=0)
        model, transform = VARIANTS[(k + num_ranks // 2) % 2]
        text = f"tests.executor.models:{model}:layers={schedule.num_stages}"
        jobs[name] = job(transform(schedule), text, lr=1.0, timeout_s=60.0, save=str(folder / name))
    return jobs, run_together(jobs, num_ranks, folder)


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_losses_and_gradients_are_those_of_the_whole_model(ran, name):
    jobs, losses = ran
    todo = jobs[name]
    assert losses[name] == pytest.approx(whole_model_losses(todo), rel=1e-12)
    model, num_stages = resolve_model(todo.model), len(todo.bounds)
    files = [load_file(f"{todo.save}/stage{stage}.safetensors") for stage in range(num_stages)]
    before = build_layers(model, 0, num_stages, seed=0, dtype=torch.float64)
    gradients = [
        weight.detach() - file[f"0.{key}"]
        for layer, file in zip(before, files, strict=True)
        for key, weight in layer.named_parameters()
    ]
    assert_equal(gradients, whole_gradients(model, len(losses[name])))
