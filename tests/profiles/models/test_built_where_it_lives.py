"""A range of layers of a factory's module has the weights of the whole, and only its own memory."""

import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipesched.profiles.models import build_layers, trace_model
from tests.processes import run
from tests.profiles.models.tiny_modules import ALL, lstm


def model_of(factory):
    _, loss, batch = factory()
    return trace_model(factory.__name__, lambda: factory()[0], loss, batch)


def assert_same(alone, whole):
    whole = nn.Sequential(*whole)  # numbered from 0
    assert [*alone.state_dict()] == [*whole.state_dict()]
    for tensor, other in zip(alone.state_dict().values(), whole.state_dict().values(), strict=True):
        assert tensor.device.type == "cpu"
        assert torch.equal(tensor, other)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "mixtral", "lstm"])
def test_layers_built_alone_equal_the_layers_of_the_whole(name):
    model = model_of(ALL[name])
    count = len(model.layers)
    whole = build_layers(model, 0, count, seed=3)
    for first, last in ((0, 1), (1, 3), (count - 1, count)):
        assert_same(build_layers(model, first, last, seed=3), whole[first:last])
    other = build_layers(model, 1, 2, seed=4)
    assert not all(torch.equal(a, b) for a, b in zip(other.parameters(), whole[1:2].parameters(), strict=True))


def test_other_parameters_have_no_memory_while_the_factory_runs():
    devices = []

    def factory():
        module, _, _ = lstm()
        devices.append({name: p.device.type for name, p in module.named_parameters()})
        return module

    _, loss, batch = lstm()
    model = trace_model("lstm", factory, loss, batch)
    build_layers(model, 2, 3, seed=0)
    outline, alone = devices
    assert set(outline.values()) == {"meta"}
    assert {name for name, device in alone.items() if device == "cpu"} == {
        f"lower.1.{name}" for name in nn.LSTM(1, 1).state_dict()
    }


class Measured(nn.Module):
    """Scales its weights by a value of theirs, which has no number without memory."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        scale = max(layer.weight.abs().max().item() for layer in self.layers)
        with torch.no_grad():
            for layer in self.layers:
                layer.weight.div_(scale)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Cloned(nn.Module):
    """Its layers are copies of one, so they are never registered."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, x):
        return self.encoder(x[:, None])[:, 0]


@pytest.mark.parametrize("module", [Measured, Cloned])
def test_a_factory_that_needs_all_weights_builds_the_whole(module):
    model = trace_model("made up", module, functional.mse_loss, lambda n, seed: (torch.ones(n, 4), torch.ones(n, 4)))
    assert len(model.layers) == 3
    whole = build_layers(model, 0, 3, seed=1)
    for layer in range(3):
        assert_same(build_layers(model, layer, layer + 1, seed=1), whole[layer : layer + 1])
    if module is Measured:
        assert max(layer.state_dict()[f"layers.{i}.weight"].abs().max() for i, layer in enumerate(whole)) == 1


class Drawn(nn.Module):
    """Draws its weights in many ways: by name, through .data, with a generator, before registration."""

    def __init__(self, generator):
        super().__init__()
        self.first, self.second, self.third = (nn.Parameter(torch.empty(5, 5)) for _ in range(3))
        nn.init.trunc_normal_(self.first, a=-1.0, b=1.0)  # draws until all numbers are within bounds
        self.fourth = nn.Parameter(torch.randn(5))
        self.second.data.normal_()
        self.third.data.view(25).uniform_(generator=generator)
        self.register_buffer("noise", torch.empty(5).normal_())
        self.fifth = nn.Parameter(torch.empty(5).uniform_())

    def forward(self, x):
        return x @ self.first @ self.second @ self.third * self.fourth + self.fifth + self.noise


class Drawns(nn.Module):
    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.blocks = nn.ModuleList(Drawn(generator) for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_however_weights_are_drawn():
    model = trace_model("drawn", Drawns, functional.mse_loss, None, example=torch.ones(2, 5))
    whole = build_layers(model, 0, 4, seed=1)
    for layer in range(4):
        assert_same(build_layers(model, layer, layer + 1, seed=1), whole[layer : layer + 1])
    weights = torch.stack([layer.get_parameter(f"blocks.{i}.first") for i, layer in enumerate(whole)])
    assert weights.unique().numel() == weights.numel()


def test_random_state_outside_is_unchanged():
    before = torch.get_rng_state()
    model = trace_model("measured", Measured, functional.mse_loss, None, example=torch.ones(2, 4))
    build_layers(model, 0, 2, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


QUARTER = """
import resource
import torch
from torch import nn
from pipesched.profiles.models import build_layers, trace_model

def wide():
    return nn.Sequential(*(nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(12)))

model = trace_model("wide", wide, None, None, example=torch.zeros(2, 1024))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
part = build_layers(model, 4, 7, seed=0)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(after - before, sum(p.nbytes for p in part.parameters()) // 1024)
"""


@pytest.mark.slow
def test_a_quarter_of_a_model_of_100_million_parameters_takes_a_quarter_of_its_memory():
    done = run([sys.executable, "-c", QUARTER])
    assert done.returncode == 0, done.stderr
    grown_kib, parameters_kib = map(int, done.stdout.split())
    assert parameters_kib == 3 * (8 * 1024**2 + 5 * 1024) * 4 // 1024
    assert grown_kib <= 1.3 * parameters_kib
