"""The samples of a run."""

import pytest
import torch

from pipesched.executor import ExecutionError
from pipesched.executor.training.batches import make_feeds, step_seed
from pipesched.profiles.models import resolve_model
from tests.executor.pipelines import CPU

MODEL = resolve_model("digits")


def feeds(batch_size, per_step, num_steps, seed=0, model=MODEL):
    return make_feeds(model, batch_size, per_step, per_step * num_steps, seed=seed, dtype=torch.float64, device=CPU)


def test_a_step_has_the_same_samples_however_it_is_cut():
    whole, cut = feeds(12, 1, 5), feeds(12, 4, 5)
    for which in (0, 1):
        for step in range(5):
            parts = [cut[which][4 * step + place] for place in range(4)]
            assert torch.equal(torch.cat(parts), whole[which][step])


def test_samples_are_those_of_the_model_for_the_seed_of_the_step():
    inputs, targets = feeds(8, 2, 3, seed=5)
    x, y = MODEL.batch(8, step_seed(5, 2))
    assert torch.equal(torch.cat([inputs[4], inputs[5]]), x.double())
    assert torch.equal(torch.cat([targets[4], targets[5]]), y)


def test_seeds_and_steps_have_samples_of_their_own():
    seeds = {step_seed(seed, step) for seed in range(20) for step in range(20)}
    assert len(seeds) == 400
    assert max(seeds) < 2**32


def test_samples_can_be_read_in_any_order_and_again():
    inputs, _ = feeds(4, 2, 40)
    order = [70, 0, 35, 79, 1, 0, 70]
    first = [inputs[index].clone() for index in order]
    assert all(torch.equal(a, inputs[index]) for a, index in zip(first, order, strict=True))


def test_it_is_as_long_as_the_run():
    inputs, _ = feeds(4, 2, 3)
    assert len(inputs) == 6
    assert [len(samples) for samples in inputs[3:]] == [2, 2, 2]
    with pytest.raises(IndexError, match="got 6, expected 0 to 5"):
        inputs[6]


def test_samples_that_cannot_be_cut_are_refused():
    with pytest.raises(ExecutionError, match="got 10 samples for 4 micro-batches, expected a multiple of 4; try 8"):
        feeds(10, 4, 1)


def test_a_batch_of_another_size_is_refused():
    from dataclasses import replace

    short = replace(MODEL, batch=lambda num_samples, seed: MODEL.batch(num_samples - 1, seed))
    with pytest.raises(ExecutionError, match=r"its batch has 3 samples in a tensor of .*, expected 4 in"):
        feeds(4, 1, 1, model=short)[0][0]


def test_the_rest_of_a_run_is_numbered_from_its_first_micro_batch():
    whole, _ = feeds(8, 4, 3)
    rest, _ = make_feeds(MODEL, 8, 4, 7, seed=0, dtype=torch.float64, device=CPU, first=5)
    assert len(rest) == 7
    assert all(torch.equal(rest[index], whole[5 + index]) for index in range(7))
