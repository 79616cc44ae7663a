"""Every asynchronous scheme in several processes against the plain loop of its recurrence."""

import json

import pytest
import torch
from safetensors.torch import load_file

from pipesched.executor.core import make_batch
from pipesched.profiles.models import build_layers
from pipesched.schedules.builders import build
from tests.executor.generated_list_ranks import lists
from tests.executor.job_sequence_ranks import run_module, run_together
from tests.executor.models import plain
from tests.executor.pipelines import CPU, assert_equal, job
from tests.executor.recurrences import LR, OPTIMIZERS, RULES, SCHEMES, at_least, by_layer, scheme_of, train

pytestmark = pytest.mark.distributed

OPTIMIZER_OF = {name: list(OPTIMIZERS)[k % 4] for k, name in enumerate(SCHEMES)}


def by_hand(name, d, num_microbatches, num_stages, optimizer):
    model = plain(num_stages)
    start = by_layer(build_layers(model, 0, num_stages, seed=0, dtype=torch.float64).parameters())
    batch = make_batch(model, num_microbatches, 2, seed=0, dtype=torch.float64, device=CPU)
    data = zip(batch.inputs, batch.targets, strict=True)
    scheme = scheme_of(name, d, num_microbatches)
    return train(start, range(num_stages), scheme, OPTIMIZERS[optimizer], data, RULES.get(name))


def saved(folder, num_stages):
    files = [load_file(folder / f"stage{stage}.safetensors") for stage in range(num_stages)]
    return by_layer(file[f"0.linear.{kind}"] for file in files for kind in ("weight", "bias"))


@pytest.fixture(scope="module", params=[2, 3, 4])
def ran(request, tmp_path_factory):
    """All schemes on the same processes."""
    d, folder = request.param, tmp_path_factory.mktemp("jobs")
    schedules = {name: build(name, d, at_least(24, name, d)) for name in SCHEMES}
    jobs = {
        name: job(
            schedule, f"tests.executor.models:plain:layers={schedule.num_stages}",
            optimizer=OPTIMIZER_OF[name], lr=LR, save=str(folder / name),
        )
        for name, schedule in schedules.items()
    }  # fmt: skip
    losses = run_together(jobs, d, folder)
    return d, schedules, folder, losses


@pytest.mark.parametrize("name", SCHEMES)
def test_weights_are_those_of_the_recurrence(ran, name):
    d, schedules, folder, losses = ran
    schedule = schedules[name]
    assert len(losses[name]) == schedule.num_microbatches
    expected = by_hand(name, d, schedule.num_microbatches, schedule.num_stages, OPTIMIZER_OF[name])
    assert_equal(saved(folder / name, schedule.num_stages), expected)


LAZY = (*SCHEMES, "gpipe", "dualpipe_v", "data_parallel")


@pytest.fixture(scope="module")
def generated_runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generated")
    for name in LAZY:
        (folder / f"{name}.json").write_text(json.dumps([2, 60]))
    run_module("tests.executor.generated_list_ranks", 2, folder)
    return folder


@pytest.mark.parametrize("name", LAZY)
def test_lists_that_are_made_while_they_are_read_train_the_same(generated_runs, name):
    num_stages = lists(name, 2, 60).num_stages
    losses = {}
    for path in (generated_runs / name).glob("losses*.json"):
        its_losses, objects = json.loads(path.read_text())
        losses |= its_losses
        assert max(objects) - min(objects) < 300, "what is held grows with the run"
    assert sorted(map(int, losses)) == list(range(60))
    if name in SCHEMES:
        expected = by_hand(name, 2, 60, num_stages, "momentum")
    else:  # three batches of twenty micro-batches
        model, optimizer = plain(num_stages), OPTIMIZERS["momentum"]
        start = by_layer(build_layers(model, 0, num_stages, seed=0, dtype=torch.float64).parameters())
        batch = make_batch(model, 60, 2, seed=0, dtype=torch.float64, device=CPU)
        data = zip(batch.inputs, batch.targets, strict=True)
        expected = train(start, range(num_stages), lambda k, i: (i // 20, 0, i // 20, 0, 20), optimizer, data)
    assert_equal(saved(generated_runs / name, num_stages), expected)
