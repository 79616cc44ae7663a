"""Profiles of layers with several tensors between them: bytes by hand, gradients of autograd."""

from functools import partial

import torch
from torch import nn

from pipesched.profiles.costs import BoundaryStorage
from pipesched.profiles.io import load_profile, save_json
from pipesched.profiles.measuring import ProfilerSettings, profile_model
from pipesched.profiles.measuring.layer_chain import LayerChain
from pipesched.profiles.models import Model, build_layers

WIDTH = 4


class Begin(nn.Module):
    """Make a hidden state, a mask, a missing tensor and positions."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.linear(x).relu(), x > 0, None, torch.arange(len(x))


class Block(nn.Module):
    """Change the hidden state under the mask; carry the rest, and in the first block the state itself."""

    def __init__(self, skips):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.skips = skips

    def forward(self, value):
        hidden, mask, *others = value
        changed = self.linear(hidden).masked_fill(mask, 0.0)
        return (changed, mask, *others, *([hidden] if self.skips else []))


class Order(nn.Module):
    """Only exchange tensors, and give one of them twice, once as a view."""

    def forward(self, value):
        hidden, mask, none, positions, skip = value
        return skip.sin(), mask, hidden.view(-1), none, positions, hidden


class Join(nn.Module):
    """Keep tensors of earlier layers for the first time."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, value):
        skip, _, flat, _, positions, hidden = value
        return (hidden * skip + flat.view_as(hidden)) * self.scale + positions[:, None]


class First(nn.Module):
    def forward(self, value):
        return value[0]


def weighted_loss(y, targets):
    near, weights = targets
    return ((y - near).square().mean(-1) * weights).mean()


def _batch(n, seed):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, WIDTH, generator=random), (torch.randn(n, WIDTH, generator=random), torch.rand(n))


def model_of(*layers):
    return Model("several", layers, tuple(map(str, range(len(layers)))), weighted_loss, _batch)


def several():
    blocks = (partial(Block, True), *[partial(Block, False)] * 2)
    return model_of(Begin, *blocks, Order, Join, partial(nn.Linear, WIDTH, WIDTH), nn.Tanh)


def profiled(model, path):
    """Profile a model with micro-batches of 3; return the profile as it is read back from a file."""
    save_json(profile_model(model, ProfilerSettings(microbatch_sizes=[3], repeats=1, warmup=1)), path)
    return load_profile(path)


def test_the_bytes_of_carried_tensors_are_those_counted_by_hand_and_survive_a_file(tmp_path):
    layers = profiled(model_of(Begin, partial(Block, True), nn.Identity, First), tmp_path / "profile.json").layers
    hidden, mask, positions = 3 * WIDTH * 4, 3 * WIDTH, 3 * 8
    begin, block, same, last = (layer.measurements[0] for layer in layers)
    assert (begin.input_bytes, begin.output_bytes) == (hidden, hidden + mask + positions)
    assert (block.input_bytes, block.output_bytes) == (begin.output_bytes, 2 * hidden + mask + positions)
    assert same.boundary == tuple(
        BoundaryStorage(num_bytes, place, place, is_saved=False)
        for place, num_bytes in enumerate([hidden, mask, positions, hidden])
    )
    assert begin.boundary == (
        BoundaryStorage(hidden, 0, None, is_saved=True),  # for the weight of its linear layer
        BoundaryStorage(hidden, None, 0, is_saved=True),  # by relu
        BoundaryStorage(mask, None, 1, is_saved=False),
        BoundaryStorage(positions, None, 2, is_saved=False),
    )
    assert block.boundary == (
        BoundaryStorage(hidden, 0, 3, is_saved=True),
        BoundaryStorage(mask, 1, 1, is_saved=True),
        BoundaryStorage(positions, 2, 2, is_saved=False),
        BoundaryStorage(hidden, None, 0, is_saved=False),
    )
    assert (same.output_is_input, block.output_is_input) == (True, False)
    assert (last.output_bytes, [storage.output_place for storage in last.boundary]) == (0, [None] * 4)


def test_a_buffer_that_crosses_a_boundary_is_not_held_twice(tmp_path):
    class Positioned(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.register_buffer("mask", torch.ones(3, WIDTH) > 0)

        def forward(self, x):
            hidden = self.linear(x)
            return hidden.masked_fill(self.mask, 0.0), self.mask[:2]

    boundary = profiled(model_of(Positioned, First), tmp_path / "profile.json").layers[0].measurements[0].boundary
    assert boundary[-1] == BoundaryStorage(0, None, 1, is_saved=True)


def test_layers_of_several_tensors_get_the_gradients_of_autograd():
    model = several()
    for is_split in (False, True):
        chain = LayerChain(model, 3, seed=0, dtype=torch.float64, device=torch.device("cpu"))
        inputs, targets = chain.batch(3)
        layers = {i for i, m in enumerate(chain.measure_bytes(3)) if m.split is not None}
        for p in (p for layer in chain.layers for p in layer.parameters()):
            p.grad = None
        if is_split:
            chain.run_split(inputs, targets, lambda: None, layers)
        else:
            chain.run(inputs, targets)
        whole = build_layers(model, 0, 8, seed=0, dtype=torch.float64)
        (model.loss(whole(inputs), targets) / 8).backward()
        for layer, expected in zip(chain.layers, whole, strict=True):
            for p, q in zip(layer.parameters(), expected.parameters(), strict=True):
                torch.testing.assert_close(p.grad, q.grad, rtol=1e-13, atol=1e-14)
