"""I and W beside the whole backward of autograd, and the behaviour of PyTorch's own function that I needs."""

import contextlib
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.distributed.pipelining import _backward

from pipesched.profiles import ProfileError
from pipesched.profiles.measuring import split_backward
from pipesched.profiles.measuring.split_backward import kept_gradients, run_input_pass, run_weight_pass
from pipesched.profiles.models import build_layers, resolve_model


class First(nn.Module):
    def forward(self, pair):
        return pair[0]


class Columns(nn.Module):
    """A layer whose output is a view of its input."""

    def forward(self, x):
        return x[:, :3]


class Tied(nn.Module):
    """Uses its parameters twice, one use above the other."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(torch.tanh(self.linear(x))) + x


class Computed(nn.Module):
    """Computes its weight, and uses it in two ops; what saves the weight is needed for both."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x @ torch.linalg.matrix_exp(self.weight)) + self.weight.square().sum()


class PartlyShared(nn.Module):
    """Uses its bias in two ops, its weight in one of them."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        left, right = x.chunk(2, -1)
        return self.linear(x) + torch.cat([left * self.linear.bias[:2], right], -1)


class Added(nn.Module):
    """Its gradient is the very tensor that arrives."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        return x + self.bias


class AddedView(Added):
    """Its gradient is a view of the tensor that arrives."""

    def forward(self, x):
        return x + self.bias.view(1, 12).view(3, 4)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return 2 * x @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return 2 * gradient @ weight, 2 * gradient.T @ x


class Custom(nn.Module):
    """Its only op is a function of the user's."""

    def __init__(self, function=Twice):
        super().__init__()
        self.weight, self._function = nn.Parameter(torch.randn(4, 4)), function

    def forward(self, x):
        return self._function.apply(x, self.weight)


class Stop(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(*_):
        return None


class Stopped(nn.Module):
    """No gradient arrives at one of its layers."""

    def __init__(self):
        super().__init__()
        self.reached, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.reached(x) + Stop.apply(self.other(x))


class Hooked(nn.Linear):
    """A user changes the gradient of its output."""

    def forward(self, x):
        y = super().forward(x)
        y.register_hook(lambda gradient: gradient / 8)
        return y


class Frozen(torch.autograd.Function):
    """The weight requires a gradient, and gets none."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.saved_tensors[0], None


class Idle(nn.Module):
    """One of its layers is never used, another is frozen."""

    def __init__(self):
        super().__init__()
        self.used, self.unused, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.used(self.frozen(x))


def of_model(text, first, last):
    return lambda: build_layers(resolve_model(text), first, last, seed=0)


GPT, CONV = "gpt:layers=3,width=8,heads=2,context=4", "conv:channels=4,blocks=3,image=8"
MODULES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), (3, 4)),
    "gpt": (of_model(GPT, 1, 5), (2, 4, 8)),
    "conv": (of_model(CONV, 1, 4), (2, 4, 8, 8)),
    "view": (lambda: nn.Sequential(nn.Linear(4, 4), Columns()), (3, 4)),
    "custom": (lambda: nn.Sequential(nn.Linear(4, 4), Custom(), nn.ReLU()), (3, 4)),
    "idle": (Idle, (3, 4)),
    "stopped": (Stopped, (3, 4)),
    "hooked": (lambda: Hooked(4, 4), (3, 4)),
    "without gradient": (lambda: nn.Sequential(Custom(Frozen), nn.Linear(4, 4)), (3, 4)),
    "added": (lambda: nn.Sequential(Added(), Added()), (3, 4)),
    "added view": (AddedView, (3, 4)),
    "nothing to train": (nn.Tanh, (3, 4)),
    "nothing at all": (nn.Identity, (3, 4)),
    "batch norm": (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.PReLU()), (3, 4)),
    "tied": (Tied, (3, 4)),
    "computed": (Computed, (3, 4)),
    "lstm": (lambda: nn.Sequential(nn.LSTM(4, 4), First()), (3, 4)),
    "attention": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), (3, 2, 4)),
}


def made(name):
    torch.manual_seed(0)
    make, shape = MODULES[name]
    return make().double(), torch.randn(2, *shape, dtype=torch.float64)


def trained(module):
    return [p for p in module.parameters() if p.requires_grad]


def split(module, x, gradient):
    y = module(x)
    run_weight_pass(run_input_pass([get_gradient_edge(y)], [gradient], [x], trained(module)), trained(module))


@pytest.mark.parametrize("name", MODULES)
def test_both_halves_over_two_micro_batches_give_what_the_whole_backward_gives(name):
    module, inputs = made(name)
    wholes, halves = ([x.detach().clone().requires_grad_() for x in inputs] for _ in range(2))
    gradients = [torch.randn_like(module(x)).detach() for x in inputs]
    for x, gradient in zip(wholes, gradients, strict=True):
        module(x).backward(gradient.clone())  # to which autograd may add the next one
    expected = [p.grad for p in module.parameters()]
    module.zero_grad()
    kept = [gradient.clone() for gradient in gradients]
    for x, gradient in zip(halves, gradients, strict=True):
        split(module, x, gradient)
    torch.testing.assert_close([p.grad for p in module.parameters()], expected, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close([x.grad for x in halves], [x.grad for x in wholes], rtol=1e-13, atol=1e-14)
    assert all(torch.equal(a, b) for a, b in zip(gradients, kept, strict=True))  # they may be under way to others


def test_i_leaves_the_parameters_alone_and_w_the_input():
    module, inputs = made("mlp")
    x = inputs[0].requires_grad_()
    rest = run_input_pass([module(x)], [torch.ones(3, 4, dtype=torch.float64)], [x], trained(module))
    assert all(p.grad is None for p in module.parameters())
    before = x.grad.clone()
    run_weight_pass(rest, trained(module))
    assert torch.equal(x.grad, before)


@pytest.mark.parametrize("name", ["added", "added view"])
def test_every_parameter_has_a_gradient_of_its_own_to_add_to(name):
    module, inputs = made(name)
    x, gradient = inputs[0].requires_grad_(), torch.ones(3, 4, dtype=torch.float64)
    split(module, x, gradient)
    storages = {t.untyped_storage().data_ptr() for t in (gradient, x.grad, *(p.grad for p in module.parameters()))}
    assert len(storages) == 2 + len(trained(module)) - (x.grad.data_ptr() == gradient.data_ptr())


def test_a_gradient_that_is_spread_over_memory_once_is_laid_out_like_its_parameter():
    module, inputs = made("added")
    for x, number in zip(inputs, (1.0, 2.0), strict=True):
        split(module, x.detach().requires_grad_(), torch.tensor(number, dtype=torch.float64).expand(3, 4))
    assert all(torch.equal(p.grad, torch.full_like(p, 3.0)) for p in module.parameters())


def test_w_runs_no_op_between_the_ops_with_parameters():
    """Otherwise W would take as long as the whole backward."""
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    x = torch.ones(3, 4, requires_grad=True)
    y, ran = module(x), []
    left = [y.grad_fn]
    while left:
        node = left.pop()
        left += [following for following, _ in node.next_functions if following is not None]
        name = type(node).__name__
        node.register_hook(lambda *_, name=name: ran.append(name))
    rest = run_input_pass([y], [torch.ones(3, 4)], [x], trained(module))
    assert {"ReluBackward0", "TanhBackward0"} <= {*ran}
    ran.clear()
    run_weight_pass(rest, trained(module))
    assert {"AddmmBackward0"} <= {*ran} <= {"AddmmBackward0", "TBackward0", "AccumulateGrad"}


def test_what_waits_for_w_are_the_gradients_at_the_ops_with_parameters():
    module, inputs = made("mlp")
    x, gradient = inputs[0].requires_grad_(), torch.ones(3, 4, dtype=torch.float64)
    rest = run_input_pass([module(x)], [gradient], [x], trained(module))
    assert [tuple(kept.shape) for kept in kept_gradients(rest)] == [(3, 4), (3, 4)]
    assert any(kept.data_ptr() == gradient.data_ptr() for kept in kept_gradients(rest))


@pytest.mark.parametrize("name", ["gpt", "tied", "lstm"])
def test_the_output_is_not_needed_for_i_and_nothing_is_held_after_w(name):
    module, inputs = made(name)
    x, held = inputs[0].requires_grad_(), []

    class Box:
        def __init__(self, tensor):
            self.tensor = tensor.detach()

    def pack(tensor):
        box = Box(tensor)
        held.append(weakref.ref(box))
        return box

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
        y = module(x)
    edge, gradient, output = get_gradient_edge(y), torch.ones_like(y), weakref.ref(y)
    del y
    assert output() is None
    gc.disable()
    try:
        rest = run_input_pass([edge], [gradient], [x], trained(module))
        del edge
        assert 0 < sum(box() is not None for box in held) <= len(held)
        run_weight_pass(rest, trained(module))
        del rest
        assert not any(box() is not None for box in held)
    finally:
        gc.enable()


class Several(nn.Module):
    """Three inputs, of which one is carried and one is unused; an output of parameters alone; one node, two outputs."""

    def __init__(self):
        super().__init__()
        self.linear, self.bias = nn.Linear(4, 4), nn.Embedding(3, 4)

    def forward(self, value):
        x, skip, _ = value
        bias = self.bias.weight.tanh()
        left, right = self.linear(x + bias).relu().split(2, -1)
        return left, skip, bias * self.linear.bias, right, skip * x


@pytest.mark.parametrize("has_edges", [False, True])
def test_both_halves_of_several_tensors_give_what_the_whole_backward_gives(has_edges):
    torch.manual_seed(0)
    module = Several().double()
    inputs = [[torch.randn(3, 4, dtype=torch.float64) for _ in range(3)] for _ in range(2)]
    wholes, halves = ([[x.clone().requires_grad_() for x in value] for value in inputs] for _ in range(2))
    gradients = [[torch.randn_like(y) for y in module(value)] for value in wholes]
    for value, arrived in zip(wholes, gradients, strict=True):
        torch.autograd.backward(module(value), arrived)
    expected = [p.grad for p in module.parameters()]
    module.zero_grad()
    for value, arrived in zip(halves, gradients, strict=True):
        outputs = [get_gradient_edge(y) for y in module(value)] if has_edges else module(value)
        rest = run_input_pass(outputs, [gradient.clone() for gradient in arrived], value, trained(module))
        assert any(torch.equal(kept, arrived[2]) for kept in kept_gradients(rest))  # what parameters alone give waits
        run_weight_pass(rest, trained(module))
    torch.testing.assert_close([p.grad for p in module.parameters()], expected, rtol=1e-13, atol=1e-14)
    for half, whole in zip(halves, wholes, strict=True):
        torch.testing.assert_close([x.grad for x in half[:2]], [x.grad for x in whole[:2]], rtol=1e-13, atol=1e-14)
        assert half[2].grad is None


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.weight * 2


@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(1, 1), (1, 2), (2, 1)])
def test_outputs_that_do_not_depend_on_the_inputs_are_refused(num_outputs, num_inputs):
    module, ones = Constant(), torch.ones(3)
    xs = [ones.clone().requires_grad_() for _ in range(num_inputs)]
    with pytest.raises(ProfileError):
        run_input_pass([module(x) for x in xs[:1] * num_outputs], [ones] * num_outputs, xs, trained(module))


def test_parameters_that_ops_share_in_part_are_refused_not_summed_wrongly():
    # PyTorch's groups of parameters then depend on the order of a set: with luck they are right
    for seed in range(20):
        torch.manual_seed(seed)
        module, x = PartlyShared().double(), torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
        whole = torch.autograd.grad(module(x).sum(), list(module.parameters()))
        with contextlib.suppress(ProfileError):
            split(module, x, torch.ones(3, 4, dtype=torch.float64))
            torch.testing.assert_close([p.grad for p in module.parameters()], list(whole))


def test_pytorchs_function_still_leaves_what_we_look_at():
    linear, x = nn.Linear(4, 4), torch.ones(3, 4, requires_grad=True)
    y, gradient = linear(x), torch.ones(3, 4)
    inputs, (group,) = _backward.stage_backward_input([y], [gradient], [x], linear.parameters())
    assert torch.equal(inputs[0], x.grad)
    assert group.keys() == {"params", "intermediates", "grads"}
    assert len(group["params"]) == 2
    assert [type(node).__name__ for node in group["intermediates"]] == ["AddmmBackward0"]
    assert torch.equal(group["grads"][0][0], gradient)
    assert y.grad_fn is None  # it cuts the output off: we give it an edge, and let go of that


def test_pytorch_still_hands_over_gradients_that_are_not_the_parameters_own():
    """When this fails, `_own` may go."""
    module, x = nn.Sequential(Added(), Added()), torch.ones(3, 4, requires_grad=True)
    gradient = torch.ones(3, 4)
    _, groups = _backward.stage_backward_input([module(x)], [gradient], [x], module.parameters())
    owners = {get_gradient_edge(parameter).node: parameter for parameter in module.parameters()}
    for group in groups:
        split_backward._run_group(group, owners, keeps_graph=False)
    assert {p.grad.data_ptr() for p in module.parameters()} == {gradient.data_ptr()}
