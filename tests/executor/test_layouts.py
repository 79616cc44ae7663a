"""Copies of a pipeline train as one pipeline with larger micro-batches does, in float64."""

import pytest
import torch

from pipesched.executor.core import Batch
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.transforms import recompute, replicate
from tests.executor import models
from tests.executor.pipelines import Local, assert_equal, whole_gradients
from tests.properties import thinned
from tests.schedules.edits import without_steps

PER_STEP = {"pipedream_2bw": 4, "wpipe": 4, "1f1b_rr": 2}
ASYNCHRONOUS = [name for name, entry in CATALOGUE.items() if entry.traits.is_asynchronous]


@pytest.mark.parametrize(
    ("name", "width"),
    thinned(["1f1b", "interleaved", "zb_h1", "dualpipe", "chimera", "data_parallel"], [2, 3]),
)
def test_gradients_are_those_of_the_whole_model_on_every_copy(name, width):
    schedule = recompute(replicate(build(name, 2, 4), width), stages=[0])
    model = models.dropping(layers=schedule.num_stages)
    run = Local(without_steps(schedule), model).run()
    expected = whole_gradients(model, 4 * width)
    for index, (first, last) in enumerate(run.bounds):
        copies = run.replicas(index)
        assert len(copies) % width == 0
        for stage in copies:
            assert_equal((p.grad for p in stage.module.parameters()), expected[2 * first : 2 * last])


def joined(batch, num_microbatches, width, per_step):
    """Put together what the copies do at the same time: micro-batch i of each."""
    together = []
    for i in range(num_microbatches):
        first = (i // per_step) * width * per_step + i % per_step
        together.append([first + copy * per_step for copy in range(width)])
    return Batch(
        *(tuple(torch.cat([data[i] for i in row]) for row in together) for data in (batch.inputs, batch.targets))
    )


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_an_asynchronous_run_of_copies_is_that_of_one_with_larger_micro_batches(name):
    schedule, width = build(name, 4, 16), 2
    given = {"optimizer": "adamw", "lr": 0.005}
    copies = Local(replicate(schedule, width), models.plain(schedule.num_stages), size=1, **given)
    large = Local(schedule, models.plain(schedule.num_stages), size=width, **given)
    large.batch = joined(copies.batch, 16, width, PER_STEP.get(name, 1))
    start = [parameter.clone() for parameter in large.parameters]
    copies.run()
    large.run()
    assert all((a - b).abs().max() > 1e-3 for a, b in zip(start, large.parameters, strict=True))
    for index in range(schedule.num_stages):
        for stage in copies.replicas(index):
            assert_equal(stage.module.parameters(), large.stage(index).module.parameters())
