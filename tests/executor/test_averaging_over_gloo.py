"""Elastic averaging in several processes, which share the memory of their device's reference."""

import pytest
import torch
from safetensors.torch import load_file

from pipesched.executor.core import make_batch
from pipesched.profiles.models import resolve_model
from tests.executor.elastic_loop import by_hand, vector
from tests.executor.elastic_ranks import CASES, ITERATIONS, NUM_MICROBATCHES, SIZE
from tests.executor.job_sequence_ranks import run_module
from tests.executor.pipelines import CPU, MLP, assert_equal

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("averaged")
    run_module("tests.executor.elastic_ranks", 4, folder)
    return folder


def saved(folder, index, ranks, iteration, kind):
    files = [load_file(folder / f"{index}.{rank}.{iteration}") for rank in ranks]
    return vector(file[f"{kind}{i}"] for file in files for i in range(len(file) // 2))


@pytest.mark.parametrize("index", range(len(CASES)), ids=["-".join(map(str, case)) for case in CASES])
def test_models_and_reference_are_those_of_the_plain_loop_and_the_reference_is_their_mean(folder, index):
    k, n, optimizer, averaging = CASES[index]
    batch = make_batch(resolve_model(MLP), NUM_MICROBATCHES, SIZE, seed=0, dtype=torch.float64, device=CPU)
    inputs, targets = (torch.cat(list(part)).chunk(n) for part in (batch.inputs, batch.targets))
    data = [list(zip(inputs, targets, strict=True))] * ITERATIONS
    tolerance = 1e-12 if optimizer in ("sgd", "momentum") else 1e-9  # Adam divides by tiny gradients
    for iteration, (models, reference, _) in enumerate(by_hand(MLP, n, data, optimizer, averaging)):
        pipelines = [range(pipeline * k, (pipeline + 1) * k) for pipeline in range(n)]
        weights = [saved(folder, index, ranks, iteration, "model") for ranks in pipelines]
        references = [saved(folder, index, ranks, iteration, "reference") for ranks in pipelines]
        assert all(torch.equal(references[0], other) for other in references)
        assert_equal([sum(weights) / n], references[:1], relative=1e-12)
        assert_equal(weights, models, relative=tolerance)
        assert_equal(references[:1], [reference], relative=tolerance)
