"""Equal layers are measured once: which layers are equal, the short chain, and bytes as of the whole model."""

import copy
import math
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pipesched.profiles.measuring import ProfilerSettings, layer_chain, profile_model
from pipesched.profiles.measuring.equal_layers import is_alike, short_chain
from pipesched.profiles.measuring.layer_chain import LayerChain
from pipesched.profiles.models import Model, resolve_model, trace_model
from tests.profiles.measuring.test_several_tensors import Begin, Block, First, weighted_loss
from tests.profiles.models import tiny_modules

GPT = "gpt:layers=12,width=16,heads=4,context=8"


def set_limits(monkeypatch, num_bytes=math.inf, seconds=math.inf):
    """Set the weights [bytes] and the forward [s] of equal layers that end the growth of a chain."""
    monkeypatch.setattr(layer_chain, "_CHAIN_BYTES", num_bytes)
    monkeypatch.setattr(layer_chain, "_CHAIN_S", seconds)


@pytest.fixture
def many_left_out(monkeypatch):
    """Leave out all equal layers of a chain but one of each kind."""
    set_limits(monkeypatch, num_bytes=0)


def model_of(*layers, width=4, **options):
    def batch(n, seed):
        return torch.ones(n, width), (torch.ones(n, width), torch.ones(n))

    return Model("equal", layers, tuple(map(str, range(len(layers)))), weighted_loss, batch, **options)


def chain_of(model):
    return LayerChain(model, 2, seed=0, dtype=torch.float32, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("kinds", "copies", "expected"),
    [
        ("ebbbbbbh", 2, "ebbh"),
        ("ebbbbbbh", 4, "ebbbbh"),
        ("ebh", 4, "ebh"),
        ("eabababababababh", 2, "eababh"),
        ("eaaaabbbbh", 1, "eabh"),
        ("abcabcabch", 1, "abch"),
        ("h", 4, "h"),
    ],
)
def test_short_chains_made_by_hand(kinds, copies, expected):
    assert "".join(kinds[number] for number in short_chain([*map(ord, kinds)], copies)) == expected


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 4))
def test_a_layer_of_a_short_chain_is_behind_a_kind_that_it_is_behind_in_the_model(kinds, copies):
    kinds = [*kinds, 4]  # the last layer has a kind of its own
    chain = short_chain(kinds, copies)
    counts = Counter(kinds[number] for number in chain)
    assert all(counts[kind] >= min(copies, count) for kind, count in Counter(kinds).items())
    assert {*pairwise(kinds[number] for number in chain)} <= {*pairwise(kinds)}
    assert (chain[0], chain[-1]) == (0, len(kinds) - 1)
    assert chain == sorted(set(chain))


class Shifted(nn.Module):
    """A block with a number that its repr does not show."""

    def __init__(self, shift):
        super().__init__()
        self.linear, self.shift = nn.Linear(4, 4), shift

    def forward(self, x):
        return self.linear(x).roll(self.shift, -1)


def two_uses(is_tied):
    first = nn.Linear(4, 4)
    return nn.Sequential(first, first if is_tied else nn.Linear(4, 4))


def frozen(layer):
    return layer.requires_grad_(False)


COPY = partial(partial, copy.deepcopy)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (partial(nn.Linear, 4, 4), partial(nn.Linear, 4, 4), True),
        (partial(nn.Linear, 4, 4), partial(nn.Linear, 4, 5), False),
        (partial(nn.Linear, 4, 4, bias=False), partial(nn.Linear, 4, 4), False),
        (nn.ReLU, nn.ReLU, True),
        (nn.ReLU, nn.GELU, False),
        (lambda: nn.ReLU(), lambda: nn.ReLU(), False),
        (COPY(nn.Linear(4, 4)), COPY(nn.Linear(4, 4)), True),  # other weights
        (COPY(nn.Linear(4, 4)), COPY(frozen(nn.Linear(4, 4))), False),
        (COPY(nn.Linear(4, 4)), COPY(nn.Linear(4, 4).eval()), False),
        (COPY(nn.Dropout(0.1)), COPY(nn.Dropout(0.2)), False),
        (COPY(Shifted(1)), COPY(Shifted(1)), True),
        (COPY(Shifted(1)), COPY(Shifted(2)), False),
        (COPY(two_uses(True)), COPY(two_uses(True)), True),
        (COPY(two_uses(True)), COPY(two_uses(False)), False),
        (COPY(two_uses(False)), COPY(two_uses(True)), False),
        (COPY(nn.MultiheadAttention(4, 2)), COPY(nn.MultiheadAttention(4, 2)), True),
        (COPY(nn.MultiheadAttention(4, 2)), COPY(nn.MultiheadAttention(4, 1)), False),
        (("block", torch.float32), ("block", torch.float32), True),
    ],
)
def test_builders_are_alike_if_only_the_weights_of_their_layers_differ(first, second, expected):
    assert is_alike(first, second) is expected


def test_equal_builders_on_unequal_tensors_are_no_equal_layers(many_left_out):
    wide = [nn.ReLU] * 6
    chain = chain_of(model_of(*wide, partial(nn.Linear, 4, 8), *wide, partial(nn.Linear, 8, 4)))
    # the first relu has no gradient to compute
    assert chain.kinds == [0, 0, 0, 0, 0, 0, 1, 2, *[2] * 5, 3]
    assert chain.numbers == [0, 6, 7, 13]


def test_keys_of_a_model_tell_its_equal_layers(many_left_out):
    def made():
        return nn.Linear(4, 4)

    layers = [partial(lambda number: made(), number) for number in range(8)]
    assert len(chain_of(model_of(*layers)).layers) == 8
    assert len(chain_of(model_of(*layers, kinds=("same",) * 8)).layers) == 3
    assert chain_of(model_of(*layers, kinds=("same",) * 8)).kinds == [0, *[1] * 6, 2]


def traced_of(name, **sizes):
    module, loss, batch = tiny_modules.ALL[name]()
    if sizes:
        config = type(module.config)(**module.config.to_dict() | sizes)
        module = type(module)(config)
    return trace_model(name, module, loss, batch)


@pytest.mark.parametrize(
    ("name", "sizes", "kinds"),
    [
        ("gpt2", {"n_layer": 4}, [0, 1, 1, 1, 1, 2]),
        ("resnet", {}, [0, 1, 2, 3, 4, 5]),
        ("lstm", {}, [0, 1, 1, 1, 1, 2, 3]),
        ("llama", {"num_hidden_layers": 4}, [0, 1, 2, 2, 3, 4]),  # the mask begins and ends at other blocks
    ],
)
def test_blocks_of_traced_modules_are_equal(name, sizes, kinds):
    assert chain_of(traced_of(name, **sizes)).kinds == kinds


def test_layers_that_are_left_out_are_not_built(many_left_out):
    built = []

    def build_range(first, last, seed):
        built.extend(range(first, last))
        return [nn.Linear(4, 4) for _ in range(first, last)]

    chain_of(model_of(*[partial(nn.Linear, 4, 4)] * 100, build_range=build_range))
    assert sorted(built) == [0, 1, 99]


def test_the_least_weights_of_a_chain_are_of_its_equal_layers(monkeypatch):
    set_limits(monkeypatch, num_bytes=5 * (4 * 4 + 4) * 4)
    wide = [partial(nn.Linear, 4, 500), partial(nn.Linear, 500, 4)]
    chain = chain_of(model_of(*wide, *[partial(nn.Linear, 4, 4)] * 9))
    assert [chain.kinds[number] for number in chain.numbers] == [0, 1, *[2] * 5, 3]


def test_a_chain_below_both_limits_is_whole(monkeypatch):
    set_limits(monkeypatch)
    assert len(chain_of(resolve_model(GPT)).layers) == 14


class Slow(nn.Module):
    """A layer that takes a tenth of a second of the processor in its first forward, and a hundredth in the next."""

    def __init__(self):
        super().__init__()
        self.linear, self.seconds = nn.Linear(4, 4), 0.1

    def forward(self, x):
        end_s = time.thread_time() + self.seconds
        while time.thread_time() < end_s:
            pass
        self.seconds = 0.01
        return self.linear(x)


def test_the_least_seconds_of_a_chain_are_of_its_equal_layers(monkeypatch):
    set_limits(monkeypatch, seconds=0.03)
    chain = chain_of(model_of(Slow, nn.Identity, *[Slow] * 9, nn.Identity))
    # the first layer has no gradient to compute, and is the only one of its kind
    assert [chain.kinds[number] for number in chain.numbers] == [0, 1, 2, 2, 2, 3]


@pytest.mark.parametrize(
    ("num_equal", "num_others", "expected"),  # runs before the first turn, before each other turn, and measured
    [(1, 1, 3 + 4 + 10), (2, 1, 2 + 2 + 5), (3, 1, 1 + 2 + 4), (9, 1, 1 + 2 + 3), (2, 9, 3 + 4 + 10)],
)
def test_equal_layers_of_a_chain_share_the_runs(num_equal, num_others, expected, monkeypatch):
    set_limits(monkeypatch)
    runs = Counter()
    others = [partial(nn.LeakyReLU, slope) for slope in range(num_others - 1)]
    model = model_of(
        partial(nn.Linear, 4, 4, bias=False), *others, *[partial(nn.Linear, 4, 4)] * num_equal, nn.Identity
    )
    settings = ProfilerSettings(microbatch_sizes=[2], repeats=10, warmup=3, splits=False)
    seen = []

    def progress(done, total, what):
        runs[what] += 1
        seen.append((done, total))

    profile_model(model, settings, progress)
    assert runs == {"micro-batch size 2": expected, "optimizer steps": expected}
    assert seen[-1] == (2 * expected,) * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: resolve_model(GPT),
        lambda: model_of(Begin, *[partial(Block, False)] * 8, First),
        lambda: traced_of("gpt2", n_layer=4),
    ],
)
def test_the_bytes_of_equal_layers_are_those_of_the_whole_model(make, monkeypatch, many_left_out):
    model = make()

    def bytes_of_layers():
        profile = profile_model(model, ProfilerSettings(microbatch_sizes=[2, 3], repeats=2, warmup=1))
        assert len(profile.variation.passes) == len(profile.variation.works)
        return [without_seconds(layer) for layer in profile.layers], len({replace(x, name="") for x in profile.layers})

    with monkeypatch.context() as patch:
        patch.setattr(layer_chain, "is_alike", lambda *_: False)
        whole, num_layers = bytes_of_layers()
    short, num_kinds = bytes_of_layers()
    assert short == whole
    assert (num_layers, num_kinds) == (len(model.layers), 3)


def without_seconds(layer):
    measurements = []
    for m in layer.measurements:
        split = None if m.split is None else replace(m.split, backward_input_s=0.0, backward_weight_s=0.0)
        measurements.append(replace(m, forward_s=0.0, backward_s=0.0, split=split))
    return replace(layer, step_s=0.0, work=None, measurements=tuple(measurements))
