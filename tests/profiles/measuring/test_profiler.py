import math
from functools import partial

import pytest
import torch
from torch import nn

from pipesched.profiles import ProfileError
from pipesched.profiles.measuring import ProfilerSettings, profile_model, split_backward
from pipesched.profiles.measuring.weight_costs import WeightWork
from pipesched.profiles.models import Model, resolve_model
from pipesched.profiles.models.torch_names import OPTIMIZERS
from pipesched.schedules.ops import backward_weight
from tests.profiles.measuring.test_split_backward import Tied

MLP = "mlp:width=6,layers=4"
GPT = "gpt:layers=2,width=16,heads=4,context=8"
CONV = "conv:channels=8,blocks=4,image=8"


def measure(model, *sizes, progress=None, **options):
    options = {"repeats": 1, "warmup": 1, "microbatch_sizes": sizes} | options
    return profile_model(model, ProfilerSettings(**options), progress)


@pytest.mark.parametrize("size", [1, 3])
def test_the_bytes_of_a_stack_of_linear_and_relu_are_those_counted_by_hand(size):
    profile = measure(resolve_model(MLP), size)
    activation_bytes = size * 6 * 4  # an activation in float32
    # Linear keeps its input, ReLU its output: nothing inside. The loss keeps the prediction and the targets.
    rows = [layer.measurements[0] for layer in profile.layers]
    assert [row.saved_bytes for row in rows] == [0, 0, 0, 2 * activation_bytes]
    assert [row.input_saved for row in rows] == [True] * 4
    assert [row.output_saved for row in rows] == [True] * 3 + [False]
    assert [row.output_bytes for row in rows] == [activation_bytes, activation_bytes, activation_bytes, 0]
    assert [row.input_bytes for row in rows] == [activation_bytes] * 4
    # x0 x1 x2 | x2' x3, the prediction and the targets
    stages = profile.costs_of_layers([(0, 2), (2, 4)], size).stages
    assert [stage.saved_bytes for stage in stages] == [3 * activation_bytes, 4 * activation_bytes]
    assert [layer.weight_bytes for layer in profile.layers] == [(6 * 6 + 6) * 4] * 4


def test_a_layer_that_pytorch_cannot_split_leaves_only_its_own_stage_without_i_and_w(monkeypatch):
    def refuse_reuse(groups):
        if any(len(group["intermediates"]) > 1 for group in groups):
            raise ProfileError("got ops that share a parameter")

    monkeypatch.setattr(split_backward, "_require_possible", refuse_reuse)
    layers = (*(partial(nn.Linear, 4, 4) for _ in range(3)), Tied)
    model = Model("odd", layers, tuple("abcd"), nn.functional.mse_loss, lambda n, seed: (torch.ones(n, 4),) * 2)
    profile = measure(model, 2)
    costs = profile.costs_of_layers([(0, 1), (1, 2), (2, 4)], 2)
    assert [cost.backward_input_s is None for cost in costs.stages] == [False, False, True]
    with pytest.raises(ProfileError, match="got no seconds of W on stage 2"):
        costs.seconds(backward_weight(2, 0))


class LastToken(nn.Module):
    def forward(self, x):
        return x[:, -1]


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(12))

    def forward(self, x):
        return x * self.mask


def strange_model():
    """Layers that reshape, hand on a view, keep a buffer, or have no parameters at the very start."""
    layers = (
        nn.Flatten,
        partial(nn.Linear, 12, 12),
        partial(nn.Unflatten, 1, (3, 4)),
        nn.Identity,
        partial(nn.Linear, 4, 4),
        LastToken,
        partial(nn.Linear, 4, 12),
        Masked,
        nn.Sigmoid,
    )
    return Model(
        "strange",
        layers,
        tuple(str(i) for i in range(len(layers))),
        nn.functional.mse_loss,
        lambda n, seed: (torch.ones(n, 3, 4), torch.zeros(n, 12)),
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_copies_of_weights_are_timed_where_there_are_weights_and_layers_before_the_first_have_no_step(optimizer):
    layers = measure(strange_model(), 2, optimizer=optimizer).layers
    assert (layers[0].weight_bytes, layers[0].optimizer_bytes, layers[0].step_s) == (0, 0, 0.0)
    assert layers[0].measurements[0].output_is_input
    for layer in layers:
        seconds = (layer.work.copy_s, layer.work.predict_s, layer.work.average_s)
        assert all(0 < s < 1 for s in seconds) if layer.weight_bytes else seconds == (0, 0, 0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_is_timed_copies_moves_as_the_optimizer_would_and_draws_to_the_reference(optimizer):
    module = nn.Linear(3, 2).double()
    module.bias.requires_grad_(False)
    first = module.weight.detach().clone()
    trained = OPTIMIZERS[optimizer]([module.weight], 0.1)
    work = WeightWork(list(module.parameters()), trained)
    module(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    trained.step()
    stepped = module.weight.detach().clone()
    assert all(torch.equal(copy, p) and copy is not p for p, copy in work.copy().items())
    assert torch.equal(work.copy()[module.bias], module.bias)
    moved = work.predict()
    assert torch.equal(moved[module.bias], module.bias)
    if optimizer != "sgd":  # which looks at its last gradient in earnest
        expected = stepped - 3 * 0.1  # the first step of each goes by the gradient of ones, or its sign
        torch.testing.assert_close(moved[module.weight], expected, rtol=0, atol=1e-7)
    work.average()
    torch.testing.assert_close(module.weight.detach(), (first + stepped) / 2)


@pytest.mark.parametrize(
    ("optimizer", "copies", "counters"), [("sgd", 0, 0), ("momentum", 1, 0), ("adam", 2, 2), ("adamw", 2, 2)]
)
def test_optimizer_bytes_are_the_states_it_holds(optimizer, copies, counters):
    profile = measure(resolve_model(MLP), 1, optimizer=optimizer)
    # Adam keeps two moments, and a float32 step counter for the weight and for the bias
    assert profile.layers[0].optimizer_bytes == copies * profile.layers[0].weight_bytes + counters * 4


def test_every_measured_number_is_there_and_finite():
    profile = measure(resolve_model(CONV), 4, 1, 2, 2, repeats=3)
    assert profile.model == resolve_model(CONV).name
    assert profile.microbatch_sizes == (1, 2, 4)
    assert len(profile.layers) == 6
    for layer in profile.layers:
        numbers = [layer.step_s, *(t for m in layer.measurements for t in (m.forward_s, m.backward_s))]
        splits = [m.split for m in layer.measurements if layer is not profile.layers[0]]
        numbers += [t for split in splits for t in (split.backward_input_s, split.backward_weight_s)]
        assert all(math.isfinite(number) and number > 0 for number in numbers)
    assert [m.split for m in profile.layers[0].measurements] == [None] * 3  # it has no I
    where = profile.provenance
    assert (where.dtype, where.threads, where.repeats, where.warmup, where.companions) == ("float32", 1, 3, 1, 0)
    assert dict(where.versions)["torch"] == torch.__version__
    assert (where.yardstick.device, where.yardstick.num_busy) == ("cpu", 1)
    assert 0 < where.yardstick.kernel_s < math.inf


def test_progress_is_told_run_by_run():
    told = []
    measure(resolve_model(MLP), 1, 2, repeats=2, progress=lambda done, total, what: told.append((done, total, what)))
    assert [done for done, _, _ in told] == list(range(1, 21))  # 2 sizes whole and split, and steps: 2 turns of 2 each
    assert {total for _, total, _ in told} == {20}
    assert told[0][2] == "micro-batch size 1"
    assert told[3][2] == "micro-batch size 1, I and W"
    assert told[-1][2] == "optimizer steps"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "lion"}, "got 'lion'"),
        ({"device": "nonsense"}, "device: got nonsense"),
    ],
)
def test_arguments_out_of_range_are_refused(options, message):
    with pytest.raises(ProfileError, match=message):
        measure(resolve_model(MLP), 1, **options)


class Tiring(nn.Linear):
    """Fails at its fifth forward, which is one that is timed."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 5:
            raise KeyError("tired")
        return super().forward(x)


@pytest.mark.parametrize(
    ("layer", "loss", "message"),
    [
        (partial(Tiring, 4, 4), nn.functional.mse_loss, r"layer 0 \(odd\): got KeyError \('tired'\)"),
        (partial(nn.Linear, 3, 3), nn.functional.mse_loss, r"layer 0 \(odd\): got RuntimeError"),
        (
            partial(nn.LSTM, 4, 4),
            nn.functional.mse_loss,
            "got tuple, expected a tensor or a tuple of tensors as the output; pack or split the output",
        ),
        (
            partial(nn.Linear, 4, 4),
            lambda y, t: (y.mean(), t),
            "got a loss of 2 tensors, expected one number; return the mean over the micro-batch",
        ),
        (partial(nn.Linear, 4, 4), lambda y, t: y - t, "got a loss of shape"),
    ],
)
def test_a_layer_that_fails_is_named(layer, loss, message):
    model = Model("odd", (layer,), ("odd",), loss, lambda n, seed: (torch.ones(n, 4), torch.ones(n, 4)))
    with pytest.raises(ProfileError, match=message):
        measure(model, 2, repeats=5)
