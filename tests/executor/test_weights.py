from collections import Counter

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from executor.errors import ExecutionError
from executor.weights import Weights
from profiles.models.model import build_layers
from schedules.op import Step
from schedules.schedule import backward, forward, make_schedule
from tests.executor.pipelines import MLP, Local, assert_equal, whole_model

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")


def versioned(module, **reads):
    """Weights whose version v is read ``reads["v<v>"]`` times."""
    return Weights(module, Counter({int(key[1:]): count for key, count in reads.items()}), is_versioned=True)


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


def test_a_backward_multiplies_by_the_version_that_it_names_and_keeps_the_activations_of_its_forward():
    module, (x, gradient) = linear(), inputs()
    weights = versioned(module, v0=1, v1=1)
    w0 = module.weight.detach().clone()
    with weights.forward(0):
        y = module(x)
    step(weights, module)
    with weights.backward(1):
        y.backward(gradient)
    assert torch.equal(y, x @ w0.T)
    assert torch.equal(x.grad, gradient @ (w0 - 1.0))
    assert torch.equal(module.weight.grad, gradient.T @ x.detach())


def test_a_backward_may_read_an_older_version_than_its_forward():
    module, (x, gradient) = linear(), inputs()
    weights = versioned(module, v0=1, v1=1)
    w0 = module.weight.detach().clone()
    step(weights, module)
    with weights.forward(1):
        y = module(x)
    with weights.backward(0):
        y.backward(gradient)
    assert torch.allclose(y, x @ (w0 - 1.0).T, rtol=1e-14)
    assert torch.equal(x.grad, gradient @ w0)


def test_a_forward_on_an_older_version_leaves_the_newest_in_place():
    module, (x, gradient) = linear(), inputs()
    weights = versioned(module, v0=2)
    w0, pointer = module.weight.detach().clone(), module.weight.data_ptr()
    step(weights, module)
    with weights.forward(0):
        y = module(x)
    assert torch.equal(y, x @ w0.T)
    assert torch.equal(module.weight, w0 - 1.0)
    assert module.weight.data_ptr() == pointer
    with weights.backward(0):
        y.backward(gradient)
    assert torch.equal(x.grad, gradient @ w0)
    assert torch.equal(module.weight.grad, gradient.T @ x.detach())


def test_a_whole_list_on_weights_one_version_behind_follows_its_recurrence():
    rows = [[]]
    for i in range(8):
        rows[0] += [forward(0, i, max(0, i - 1)), backward(0, i, max(0, i - 1)), Step(0)]
    found = Local(make_schedule("behind", 1, 8, rows)).run()
    module, data, targets, loss = whole_model(MLP, 16)
    versions = [dict(module.named_parameters())]
    for i in range(8):
        old = versions[max(0, i - 1)]
        y = torch.func.functional_call(module, old, (data[2 * i : 2 * i + 2],))
        gradients = torch.autograd.grad(loss(y, targets[2 * i : 2 * i + 2]), list(old.values()))
        newest = versions[-1].items()
        stepped = [(n, (w - 0.05 * g).detach()) for (n, w), g in zip(newest, gradients, strict=True)]
        versions.append({name: weight.requires_grad_() for name, weight in stepped})
    assert_equal(found.parameters, versions[-1].values())


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
    weights = versioned(module, v0=1, v1=1)
    later = x.clone().requires_grad_()
    w0 = module.weight.detach().clone()
    a, b = (x @ half.T for half in w0.chunk(2))
    with weights.forward(0):
        y = module(later)
    step(weights, module)
    with weights.backward(1):
        y.sum().backward()
    first, second = (w0 - 1.0).chunk(2)
    # d(a * b) = b da + a db with a, b of the forward, and da, db through the weights of version 1
    torch.testing.assert_close(later.grad, b @ first + a @ second, rtol=1e-13, atol=0)


def test_tied_parameters_are_one_storage():
    first, second = nn.Linear(3, 3, bias=False, dtype=torch.float64), nn.Linear(3, 3, bias=False, dtype=torch.float64)
    second.weight = first.weight
    module, (x, _) = nn.Sequential(first, second), inputs()
    w0 = first.weight.detach().clone()
    weights = versioned(module, v0=2)
    step(weights, module)
    assert weights.live_versions == (0, 1)
    with weights.forward(0):
        y = module(x)
    assert second.weight is first.weight
    assert torch.equal(first.weight, w0 - 1.0)
    with weights.backward(0):
        y.sum().backward()
    ones = torch.ones(2, 3, dtype=torch.float64)
    assert torch.equal(y, x @ w0.T @ w0.T)
    torch.testing.assert_close(x.grad, ones @ w0 @ w0, rtol=1e-14, atol=0)


def test_nothing_is_copied_that_nobody_reads_later():
    module, (x, gradient) = linear(), inputs()
    weights = versioned(module, v0=2, v1=2)
    for version in (0, 1):
        with weights.forward(version):
            y = module(x)
        with weights.backward(version):
            y.backward(gradient)
        step(weights, module)
        assert weights.live_versions == (version + 1,)


def test_a_version_is_freed_after_its_last_reader():
    module, (x, gradient) = linear(bias=True), inputs()
    weights = versioned(module, v0=4)
    outputs = []
    for _ in range(2):
        with weights.forward(0):
            outputs.append(module(x))
    step(weights, module)
    copies = [StorageWeakRef(storage) for storage in weights._stash[0].values()]
    assert len(copies) == 2
    for left, y in enumerate(reversed(outputs)):
        assert weights.live_versions == (0, 1)
        assert not any(copy.expired() for copy in copies), left
        with weights.backward(0):
            y.backward(gradient)
    assert weights.live_versions == (1,)
    assert all(copy.expired() for copy in copies)


def test_a_version_that_is_gone_is_named():
    module, (x, _) = linear(), inputs()
    weights = versioned(module, v1=1)
    step(weights, module)
    gone = "version 0 of the weights is not there; the stage holds 1"
    with pytest.raises(ExecutionError, match=gone), weights.forward(0):
        module(x)
    with pytest.raises(ExecutionError, match="version 2 of the weights is not there"), weights.backward(2):
        pass


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
    weights = versioned(module, v0=1, v1=1)
    with weights.forward(0):
        y = module(x)
    with pytest.raises(ExecutionError, match=r"shape \(2, 4\) .*changed in place"), weights.backward(0):
        y.backward(gradient)


def test_where_weights_cannot_change_autograd_is_left_alone():
    module, (x, gradient) = linear(), inputs()
    weights = Weights(module, Counter({0: 2}), is_versioned=False)
    with weights.forward(0):
        y = module(x)
    with torch.no_grad():
        module.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"), weights.backward(0):
        y.backward(gradient)


def test_beginning_anew_makes_the_present_weights_version_zero():
    module, (x, _) = linear(), inputs()
    weights = versioned(module, v0=1)
    step(weights, module)
    weights.begin()
    assert weights.live_versions == (0,)
    with weights.forward(0):
        assert torch.equal(module(x), x @ module.weight.T)


def test_the_models_layers_keep_no_old_version_alive():
    module = build_layers(Local(make_schedule("one", 1, 1, [[forward(0, 0), backward(0, 0)]])).model, 0, 6, seed=0)
    weights = versioned(module, v0=2)
    x = torch.randn(2, 8)
    with weights.forward(0):
        y = module(x)
    step(weights, module)
    copies = [StorageWeakRef(storage) for storage in weights._stash[0].values()]
    with weights.backward(0):
        y.sum().backward()
    assert all(copy.expired() for copy in copies)
