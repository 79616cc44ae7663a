import pytest
import torch
from torch import nn
from torch.nn import functional

from pipesched.executor.core.layer_rng import LayerGenerators, draw_seed
from tests.executor.pipelines import CPU

X = torch.ones(2, 4)


class Noise(nn.Module):
    """Adds noise from its call number `since` on."""

    def __init__(self, since=0):
        super().__init__()
        self.since, self.calls = since, 0

    def forward(self, x):
        self.calls += 1
        return x + torch.rand_like(x) if self.calls > self.since else x


def layers():
    return nn.Sequential(nn.Linear(4, 4), Noise(), nn.ReLU(), nn.Dropout(0.5))


def begun(module, index=0, **given):
    """Return the generators of a module whose first layer is layer `index` of the model, in their first run."""
    draws = LayerGenerators(module, index, 7, CPU, **given)
    draws.begin()
    return draws


def drawn(draws, module, microbatch):
    with draws.of(microbatch):
        return module(X)


def hooked(module):
    return [index for index, layer in enumerate(module) if layer._forward_pre_hooks]


def test_a_micro_batch_draws_the_same_again_and_another_does_not():
    module = layers()
    draws = begun(module)
    first, second = drawn(draws, module, 0), drawn(draws, module, 1)
    assert torch.equal(drawn(draws, module, 0), first)
    assert not torch.equal(first, second)


def test_the_next_run_draws_other_numbers():
    module = layers()
    draws = begun(module)
    first = drawn(draws, module, 0)
    draws.begin()
    assert not torch.equal(drawn(draws, module, 0), first)


def test_numbers_do_not_depend_on_where_a_stage_begins():
    whole, parts = layers(), layers()
    parts.load_state_dict(whole.state_dict())
    two = [begun(parts[:2]), begun(parts[2:], 2)]
    expected = drawn(begun(whole), whole, 3)
    with two[0].of(3):
        x = parts[:2](X)
    torch.rand(100)  # others draw meanwhile
    with two[1].of(3):
        assert torch.equal(parts[2:](x), expected)


def test_the_numbers_of_everybody_else_are_not_disturbed():
    module = layers()
    draws = begun(module)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    for microbatch in range(3):
        drawn(draws, module, microbatch)
    assert torch.equal(torch.rand(3), expected)


def test_they_are_not_disturbed_by_a_layer_that_raises_either():
    draws = begun([nn.Identity()])
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), draws.of(0):
        torch.rand(3) / (1 // 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_only_layers_that_draw_are_seeded_after_the_first_forward():
    module = layers()
    draws = begun(module)
    assert hooked(module) == [0, 1, 2, 3]
    drawn(draws, module, 0)
    assert hooked(module) == [1, 3]
    drawn(draws, module, 1)
    assert hooked(module) == [1, 3]


def test_where_nothing_draws_nothing_is_done():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    draws = begun(module)
    drawn(draws, module, 0)
    assert hooked(module) == []
    assert draws.of(1) is draws.of(2)


def test_a_loss_that_draws_goes_on_from_the_last_layer():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    draws = begun(module)

    def loss(microbatch):
        with draws.of(microbatch):
            return functional.dropout(module(X))

    first = loss(0)
    assert hooked(module) == [1]
    assert torch.equal(loss(0), first)
    assert not torch.equal(loss(1), first)


def test_a_layer_that_a_later_one_uses_too_draws_on_there():
    noise = Noise()
    module = nn.Sequential(noise, nn.Sequential(nn.Dropout(0.5), noise))
    draws = begun(module)
    torch.manual_seed(draw_seed(7, 0, 0, 2))
    x = X + torch.rand_like(X)
    torch.manual_seed(draw_seed(7, 1, 0, 2))
    x = functional.dropout(x)
    x = x + torch.rand_like(x)
    for _ in range(2):
        assert torch.equal(drawn(draws, module, 2), x)


def test_where_forwards_are_repeated_a_layer_that_only_draws_later_is_seeded_too():
    module = nn.Sequential(Noise(since=4))
    draws = begun(module, is_repeated=True)
    for _ in range(4):
        drawn(draws, module, 0)
    assert torch.equal(drawn(draws, module, 1), drawn(draws, module, 1))


def test_a_layer_that_somebody_else_runs_draws_from_the_usual_generator():
    module = layers()
    begun(module)
    torch.manual_seed(3)
    first = module(X)
    torch.manual_seed(3)
    assert torch.equal(module(X), first)
    assert not torch.equal(module(X), first)


def test_seeds_differ_for_every_layer_run_micro_batch_and_seed():
    seeds = {draw_seed(s, layer, run, i) for s in range(3) for layer in range(4) for run in range(4) for i in range(8)}
    assert len(seeds) == 3 * 4 * 4 * 8
    assert all(0 <= seed < 2**63 for seed in seeds)
