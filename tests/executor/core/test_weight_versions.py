import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from pipesched.executor import ExecutionError
from pipesched.executor.core import Weights
from pipesched.executor.core.weight_predictor import Predictor
from pipesched.schedules import PredictionRule, ScheduleError
from pipesched.schedules.ops import Compute, Phase, Step
from pipesched.schedules.weights import uses

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")


def op(text):
    """Read an op of stage 0: ``F1@2+3`` is F of micro-batch 1 on version 2 predicted 3 ahead."""
    place, _, reads = text.partition("@")
    version, _, ahead = reads.partition("+")
    return Compute(Phase(place[0]), 0, int(place[1:]), int(version), int(ahead or 0))


def versioned(module, text, predictor=None):
    """Weights of a stage whose list is `text`, as in ``F0@0 step B0@1``."""
    ops = [Step(0) if word == "step" else op(word) for word in text.split()]
    return Weights(module, lambda: uses(ops, in_order=False), predictor)


def step(weights, module, by=1.0):
    """Add -`by` to every parameter: a step of plain SGD on gradients of `by`."""
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, by)
    weights.step(torch.optim.SGD(module.parameters(), lr=1.0))


def linear(seed=0, bias=False):
    torch.manual_seed(seed)
    return nn.Linear(3, 4, bias=bias, dtype=torch.float64)


def inputs(seed=1):
    x = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    gradient = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))
    return x.requires_grad_(), gradient


@pytest.mark.parametrize("read", [0, 1, 2])
def test_every_layer_of_a_backward_multiplies_by_that_version(read):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False), nn.Sigmoid()).double()
    x, gradient = torch.randn(5, 3, dtype=torch.float64).requires_grad_(), torch.randn(5, 2, dtype=torch.float64)
    weights = versioned(module, f"step F0@1 step B0@{read}")
    first, second = ([module[k].weight.detach() - 0.1 * version for version in range(3)] for k in (0, 2))
    step(weights, module, 0.1)
    with weights.forward(op("F0@1")):
        y = module(x)
    step(weights, module, 0.1)
    with weights.backward(op(f"B0@{read}")):
        y.backward(gradient)
    a = torch.tanh(x.detach() @ first[1].T)  # activations are those of the forward
    out = torch.sigmoid(a @ second[1].T)
    d_out = gradient * out * (1 - out)
    d_a = (d_out @ second[read]) * (1 - a**2)  # gradients pass through the version of the backward
    torch.testing.assert_close(y.detach(), out, rtol=1e-13, atol=0)
    torch.testing.assert_close(x.grad, d_a @ first[read], rtol=1e-13, atol=0)
    torch.testing.assert_close(module[2].weight.grad, d_out.T @ a, rtol=1e-13, atol=0)
    torch.testing.assert_close(module[0].weight.grad, d_a.T @ x.detach(), rtol=1e-13, atol=0)


def test_a_forward_on_an_older_version_leaves_the_newest_in_place():
    module, (x, gradient) = linear(), inputs()
    weights = versioned(module, "step F0@0 B0@0")
    w0, pointer = module.weight.detach().clone(), module.weight.data_ptr()
    step(weights, module)
    with weights.forward(op("F0@0")):
        y = module(x)
    assert torch.equal(y, x @ w0.T)
    assert torch.equal(module.weight, w0 - 1.0)
    assert module.weight.data_ptr() == pointer
    with weights.backward(op("B0@0")):
        y.backward(gradient)
    assert torch.equal(x.grad, gradient @ w0)
    assert torch.equal(module.weight.grad, gradient.T @ x.detach())


class Views(nn.Module):
    """Uses its weight only through views of it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))

    def forward(self, x):
        first, second = self.weight.chunk(2)
        return (x @ first.t()) * (x @ second.view(3, 3).T)


def test_views_of_a_parameter_are_found_in_the_version_read():
    module, x = Views(), torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weights = versioned(module, "F0@0 step B0@1")
    later = x.clone().requires_grad_()
    w0 = module.weight.detach().clone()
    a, b = (x @ half.T for half in w0.chunk(2))
    with weights.forward(op("F0@0")):
        y = module(later)
    step(weights, module)
    with weights.backward(op("B0@1")):
        y.sum().backward()
    first, second = (w0 - 1.0).chunk(2)
    # d(a * b) = b da + a db with a, b of the forward, and da, db through the weights of version 1
    torch.testing.assert_close(later.grad, b @ first + a @ second, rtol=1e-13, atol=0)


def test_tied_parameters_are_one_storage():
    first, second = nn.Linear(3, 3, bias=False, dtype=torch.float64), nn.Linear(3, 3, bias=False, dtype=torch.float64)
    second.weight = first.weight
    module, (x, _) = nn.Sequential(first, second), inputs()
    w0 = first.weight.detach().clone()
    weights = versioned(module, "step F0@0 B0@0")
    step(weights, module)
    assert weights.live_versions == (0, 1)
    with weights.forward(op("F0@0")):
        y = module(x)
    assert second.weight is first.weight
    assert torch.equal(first.weight, w0 - 1.0)
    with weights.backward(op("B0@0")):
        y.sum().backward()
    ones = torch.ones(2, 3, dtype=torch.float64)
    assert torch.equal(y, x @ w0.T @ w0.T)
    torch.testing.assert_close(x.grad, ones @ w0 @ w0, rtol=1e-14, atol=0)


def trained_ahead(text, rule=PredictionRule.CONSTANT):
    """A linear layer after one step of SGD with lr 1 and gradients of 1: each step ahead takes 1 more off."""
    module = linear()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    weights = versioned(module, f"F9@0 B9@0 step {text}", Predictor(optimizer, rule))
    for before in ("F9@0", "B9@0"):
        with weights.forward(op(before)):
            pass
    module.weight.grad = torch.ones_like(module.weight)
    weights.step(optimizer)
    return module, weights


def test_a_backward_looks_ahead_from_the_weights_of_its_own_time():
    module, weights = trained_ahead("F0@1+2 step B0@2+1")
    (x, gradient), then = inputs(), module.weight.detach().clone()
    with weights.forward(op("F0@1+2")):
        y = module(x)
    step(weights, module, 10.0)
    with weights.backward(op("B0@2+1")):
        y.backward(gradient)
    torch.testing.assert_close(y.detach(), x.detach() @ (then - 2.0).T, rtol=1e-13, atol=0)
    torch.testing.assert_close(x.grad, gradient @ (then - 10.0 - 10.0), rtol=1e-13, atol=0)
    torch.testing.assert_close(module.weight.grad, gradient.T @ x.detach(), rtol=1e-13, atol=0)


def test_looking_ahead_needs_a_rule_and_the_newest_version():
    module, weights = trained_ahead("F0@0+1 B0@1")
    with pytest.raises(ExecutionError, match="F1@1\\+1 came, expected 0F0"), weights.forward(op("F1@1+1")):
        pass
    weights = versioned(module, "F0@0 B0@0 step F1@1+1 B1@1")
    for before in ("F0@0", "B0@0"):
        with weights.forward(op(before)):
            pass
    step(weights, module)
    with pytest.raises(ExecutionError, match="got an op that looks ahead without a prediction"):
        weights.forward(op("F1@1+1")).__enter__()
    _, weights = trained_ahead("F1@1 B1@1 step F2@1+1 B2@2")
    for after in ("F1@1", "B1@1"):
        with weights.forward(op(after)):
            pass
    weights.step(None)
    with pytest.raises(
        ExecutionError, match="got a prediction from version 1, expected one from the newest version, 2"
    ):
        weights.forward(op("F2@1+1")).__enter__()


def test_a_version_is_freed_after_its_last_reader():
    module, (x, gradient) = linear(bias=True), inputs()
    weights = versioned(module, "F0@0 F1@0 step B0@0 B1@0")
    outputs = []
    for i in range(2):
        with weights.forward(op(f"F{i}@0")):
            outputs.append(module(x))
    step(weights, module)
    copies = [StorageWeakRef(storage) for storage in weights._stash[0].values()]
    assert len(copies) == 2
    for i, y in enumerate(outputs):
        assert weights.live_versions == (0, 1)
        assert not any(copy.expired() for copy in copies), i
        with weights.backward(op(f"B{i}@0")):
            y.backward(gradient)
    assert weights.live_versions == (1,)
    assert all(copy.expired() for copy in copies)


def test_a_version_that_is_not_there_is_named():
    module = linear()
    with pytest.raises(ScheduleError, match="F0@2 after 1 steps of stage 0: version 2 is not made yet"):
        versioned(module, "step F0@2")
    alone = Weights(module)
    with pytest.raises(ExecutionError, match="0F0@2: version 2 of the weights is missing; the stage has only 0"):
        alone.forward(op("F0@2"))


class Damaged(nn.Module):
    """Changes in place what its sigmoid keeps for the backward."""

    def __init__(self):
        super().__init__()
        self.linear = linear()

    def forward(self, x):
        y = functional.sigmoid(self.linear(x))
        y.detach().mul_(2.0)
        return y


def test_an_activation_that_was_changed_in_place_is_noticed():
    module, (x, gradient) = Damaged(), inputs()
    weights = versioned(module, "F0@0 step B0@1")
    with weights.forward(op("F0@0")):
        y = module(x)
    step(weights, module)
    with pytest.raises(ExecutionError, match=r"shape \(2, 4\) .*changed in place"), weights.backward(op("B0@1")):
        y.backward(gradient)


@pytest.mark.parametrize("text", ["", "F0@0 B0@0 step F1@1 B1@1 step"])
def test_where_weights_cannot_change_in_between_autograd_is_left_alone(text):
    module, (x, gradient) = linear(), inputs()
    weights = versioned(module, text) if text else Weights(module)
    with weights.forward(op("F0@0")):
        y = module(x)
    with torch.no_grad():
        module.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"), weights.backward(op("B0@0")):
        y.backward(gradient)


def test_beginning_anew_makes_the_present_weights_version_zero():
    module, (x, _) = linear(), inputs()
    weights = versioned(module, "F0@0 step B0@0")
    step(weights, module)
    weights.begin()
    assert weights.live_versions == (0,)
    with weights.forward(op("F0@0")):
        assert torch.equal(module(x), x @ module.weight.T)
