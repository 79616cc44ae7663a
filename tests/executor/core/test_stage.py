"""What one stage does at each op, and what it holds between them."""

import copy
import gc
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from pipesched.executor import ExecutionError
from pipesched.executor.core import (
    GradientMean,
    HostClock,
    LayerGenerators,
    ModuleStage,
    Recorder,
    StageLists,
    Weights,
    make_meter,
)
from pipesched.profiles.measuring import ProfilerSettings, profile_model
from pipesched.profiles.models import resolve_model
from pipesched.schedules import make_schedule
from pipesched.schedules.ops import Compute, Phase, Step, backward, backward_input, backward_weight, forward
from pipesched.schedules.weights import uses
from tests.executor import models
from tests.executor.pipelines import CPU, Local, assert_equal

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
GRADIENT = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
X = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


LINEAR = partial(nn.Linear, 4, 4)


def recompute_op(stage, microbatch, version=0):
    return Compute(Phase.RECOMPUTE, stage, microbatch, version)


def made(*layers, first=False, recomputed=(), ops=None, loss=None, optimizer=False):
    """Return a stage whose weights have versions if its `ops` are given."""
    torch.manual_seed(0)
    module = nn.Sequential(*(build() for build in layers)).double()
    return ModuleStage(
        module,
        StageLists(
            Weights(module, None if ops is None else lambda: uses(ops, in_order=False)),
            GradientMean({0: 0.5, 1: 0.5}),
            frozenset(recomputed),
        ),
        torch.optim.SGD(module.parameters(), 1.0) if optimizer else None,
        loss,
        needs_input_gradient=not first,
        draws=LayerGenerators(module, 0, 0, CPU, is_repeated=bool(recomputed)),
    )


def begun(*layers, **options):
    stage = made(*layers, **options)
    stage.begin()
    return stage


def step(stage):
    """Take 1 from every parameter."""
    for parameter in stage.module.parameters():
        parameter.grad = torch.ones_like(parameter)
    stage.update(Step(0))


def mlp():
    return LINEAR, nn.Tanh, LINEAR


def test_i_gives_the_gradient_of_the_input_and_w_those_of_the_weights():
    stage, whole = begun(*mlp()), begun(*mlp())
    whole.compute(forward(1, 0), X, None)
    expected = whole.compute(backward(1, 0), GRADIENT, None)
    stage.compute(forward(1, 0), X, None)
    assert torch.equal(stage.compute(backward_input(1, 0), GRADIENT, None), expected)
    assert all(p.grad is None for p in stage.module.parameters())
    assert stage.compute(backward_weight(1, 0), None, None) is None
    assert_equal((p.grad for p in stage.module.parameters()), (p.grad for p in whole.module.parameters()))


def test_on_the_first_stage_i_does_nothing_and_w_is_the_whole_backward(monkeypatch):
    stage, whole = begun(*mlp(), first=True), begun(*mlp(), first=True)
    for module_stage, ops in ((whole, [backward(0, 0)]), (stage, [backward_input(0, 0), backward_weight(0, 0)])):
        module_stage.compute(forward(0, 0), X, None)
        for op in ops:
            assert all(p.grad is None for p in module_stage.module.parameters())
            assert module_stage.compute(op, GRADIENT, None) is None
    assert_equal((p.grad for p in stage.module.parameters()), (p.grad for p in whole.module.parameters()), relative=0)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (backward(1, 5), "1B5: got no forward of this micro-batch, expected one before its B; check the lists"),
        (backward_input(1, 5), "1I5: got no forward of this micro-batch, expected one before its I; check the lists"),
        (backward_weight(1, 5), "1W5: got no I of this micro-batch, expected one before its W; check the lists"),
        (recompute_op(1, 5), "1R5: got no forward of this micro-batch, expected one before its R; check the lists"),
    ],
)
def test_an_op_whose_turn_has_not_come_is_named(op, message):
    stage = begun(*mlp(), recomputed=[7])
    stage.compute(forward(1, 0), X, None)
    with pytest.raises(ExecutionError) as raised:
        stage.compute(op, GRADIENT, None)
    assert str(raised.value) == message


def test_a_backward_that_should_have_an_r_before_it_is_refused():
    stage = begun(*mlp(), recomputed=[0])
    stage.compute(forward(1, 0), X, None)
    with pytest.raises(ExecutionError, match="got no forward"):
        stage.compute(backward(1, 0), GRADIENT, None)


def test_nothing_is_left_at_a_new_beginning():
    stage = begun(*mlp(), recomputed=[2])
    stage.compute(forward(1, 0), X, None)
    stage.compute(forward(1, 1), X, None)
    stage.compute(backward_input(1, 1), GRADIENT, None)
    stage.compute(forward(1, 2), X, None)
    stage.begin()
    for op in (backward(1, 0), backward_weight(1, 1), recompute_op(1, 2)):
        with pytest.raises(ExecutionError, match="got no"):
            stage.compute(op, GRADIENT, None)


class Watching(nn.Module):
    """Tells a listener of the storage of each output."""

    def __init__(self, listen):
        super().__init__()
        self.listen = listen

    def forward(self, x):
        y = torch.tanh(x)
        self.listen(StorageWeakRef(y.untyped_storage()))
        return y


def test_a_forward_that_will_be_run_again_keeps_its_input_only():
    made, x = [], X.clone()
    stage = begun(LINEAR, lambda: Watching(made.append), LINEAR, recomputed=[0])
    stage.compute(forward(1, 0), x, None)
    assert made[0].expired()
    kept = StorageWeakRef(x.untyped_storage())
    del x
    assert not kept.expired()
    stage.compute(recompute_op(1, 0), None, None)
    assert not made[1].expired()
    stage.compute(backward(1, 0), GRADIENT, None)
    assert made[1].expired()
    assert kept.expired()


@pytest.mark.parametrize("steps", [0, 1])
def test_r_draws_what_f_drew_though_others_drew_between(steps):
    layers = LINEAR, nn.Dropout, LINEAR, lambda: models.Layer(0.5)
    ops = [forward(1, 0), forward(1, 1), recompute_op(1, 0), *[Step(1)] * steps, backward(1, 0), backward(1, 1)]
    plain, again = begun(*layers), begun(*layers, recomputed=[0], ops=ops if steps else None)
    results = []
    for stage in (plain, again):
        y = stage.compute(forward(1, 0), X, None)
        stage.compute(forward(1, 1), X, None)
        torch.rand(17)
        if stage is again:
            state = torch.get_rng_state()
            stage.compute(recompute_op(1, 0), None, None)
            assert torch.equal(torch.get_rng_state(), state)
        dx = stage.compute(backward(1, 0), GRADIENT, None)
        results.append([y, dx, *(p.grad for p in stage.module.parameters())])
    assert_equal(results[1], results[0], relative=0)


def test_a_loss_is_counted_once_though_it_is_computed_twice():
    target = torch.zeros(3, 4, dtype=torch.float64)
    stage, plain = begun(*mlp(), loss=functional.mse_loss, recomputed=[0]), begun(*mlp(), loss=functional.mse_loss)
    for module_stage in (stage, plain):
        assert module_stage.compute(forward(1, 0), X, target) is None
    stage.compute(recompute_op(1, 0), None, None)
    assert stage.losses() == plain.losses()
    assert torch.equal(stage.compute(backward(1, 0), None, None), plain.compute(backward(1, 0), None, None))


@pytest.mark.parametrize("first", [True, False])
def test_a_stage_that_changes_its_input_in_place_cannot_be_run_again(first):
    relu = partial(nn.ReLU, inplace=True)
    stage = begun(nn.Tanh, relu, LINEAR, recomputed=[0], first=first)
    stage.compute(forward(1, 0), X.clone(), None)  # not its input: fine
    spoiling = begun(relu, LINEAR, recomputed=[0], first=first)
    with pytest.raises(ExecutionError, match="changed its input in place, but R needs the original input"):
        spoiling.compute(forward(1, 0), X.clone(), None)


class Giving(nn.Module):
    """Applies `wrap` to its input."""

    def __init__(self, wrap):
        super().__init__()
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(x)


@pytest.mark.parametrize(
    ("wrap", "got"),
    [
        (lambda x: [x, x], "list"),
        (lambda x: {"x": x}, "dict"),
        (lambda x: (x, 3, None), "tuple of Tensor, int, NoneType"),
    ],
)
def test_a_stage_that_gives_something_else_than_tensors_is_refused(wrap, got):
    with pytest.raises(ExecutionError) as raised:
        begun(LINEAR, partial(Giving, wrap)).compute(forward(0, 0), X, None)
    assert str(raised.value) == (
        f"0F0: the stage returned {got}, expected a tensor, or a tuple of tensors and None; change the output of its "
        "last layer"
    )


def received():
    """Return a value as a transport gives it: two tensors whose sender learns from them, and three others."""
    return X.clone().requires_grad_(), X.clone().requires_grad_(), X.clone(), torch.arange(3), None


def using(x, unused, constant, numbers, absent):
    """Return a result, and the skip and the mask as they came; nothing depends on `unused`."""
    return 2 * x * constant + numbers.unsqueeze(-1), x, numbers, absent


USING = (partial(Giving, lambda value: using(*value)),)


@pytest.mark.parametrize("recomputed", [(), (0,)], ids=["plain", "recompute"])
@pytest.mark.parametrize("ends", [(backward,), (backward_input, backward_weight)], ids=["B", "I and W"])
def test_the_gradient_of_a_value_is_zeros_where_nothing_uses_a_tensor_and_none_where_it_requires_none(ends, recomputed):
    stage = begun(*USING, recomputed=recomputed)
    output = stage.compute(forward(1, 0), received(), None)
    assert [None if tensor is None else tensor.requires_grad for tensor in output] == [True, True, False, None]
    assert all(tensor is None or tensor.is_leaf for tensor in output)
    if recomputed:
        stage.compute(recompute_op(1, 0), None, None)
    (dx, dunused, *others), *_ = [stage.compute(end(1, 0), (GRADIENT, 3 * GRADIENT, None, None), None) for end in ends]
    assert_equal([dx], [2 * X * GRADIENT + 3 * GRADIENT])
    assert torch.equal(dunused, torch.zeros_like(X))
    assert others == [None, None, None]


@pytest.mark.parametrize("end", [backward, backward_input])
def test_a_stage_that_passes_its_input_on_passes_the_gradient_back(end):
    stage = begun(lambda: Giving(lambda value: (value[1], value[0], value[0])))
    output = stage.compute(forward(1, 0), (X, X.clone().requires_grad_()), None)
    assert [tensor.requires_grad for tensor in output] == [True, False, False]
    nothing, passed = stage.compute(end(1, 0), (GRADIENT, None, None), None)
    assert nothing is None
    assert torch.equal(passed, GRADIENT)


def test_a_bias_made_of_weights_alone_has_its_gradient_after_w():
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return torch.tanh(x), 3 * self.bias

    stage = begun(LINEAR, Biased)
    whole = copy.deepcopy(stage.module)
    stage.compute(forward(1, 0), X, None)
    dx = stage.compute(backward_input(1, 0), (GRADIENT, GRADIENT[0]), None)
    assert all(p.grad is None for p in stage.parameters)
    stage.compute(backward_weight(1, 0), None, None)
    x = X.clone().requires_grad_()
    torch.autograd.backward(whole(x), (GRADIENT, GRADIENT[0]))
    assert_equal([dx, *(p.grad for p in stage.parameters)], [x.grad, *(p.grad for p in whole.parameters())])


def test_the_look_for_requirements_before_the_first_r_leaves_no_trace():
    layers = LINEAR, models.Halving, nn.Dropout, partial(Giving, lambda x: (x, x > 0))
    plain, again = begun(*layers), begun(*layers, recomputed=[0, 1])
    results = []
    for stage in (plain, again):
        state = torch.get_rng_state()
        outputs = [stage.compute(forward(1, number), X, None) for number in (0, 1)]
        for number in (0, 1):
            if stage is again:
                stage.compute(recompute_op(1, number), None, None)
            stage.compute(backward(1, number), (GRADIENT, None), None)
        assert torch.equal(torch.get_rng_state(), state)
        results.append([outputs[0][0], outputs[1][0], *(p.grad for p in stage.parameters), stage.module[1].scale])
    assert_equal(results[1], results[0], relative=0)
    assert plain.module[1].calls == again.module[1].calls == 2


def test_weights_that_are_stepped_between_the_halves_are_read_in_the_version_that_each_names():
    ops = [forward(1, 0), backward_input(1, 0), Step(1), backward_weight(1, 0, version=1)]
    stage = begun(*mlp(), ops=ops, optimizer=True)
    first, _, second = stage.module
    w0, b0, hidden = second.weight.detach().clone(), second.bias.detach().clone(), torch.tanh(first(X)).detach()
    w_first = first.weight.detach().clone()
    y = stage.compute(ops[0], X, None)
    dx = stage.compute(ops[1], GRADIENT, None)
    step(stage)
    stage.compute(ops[3], None, None)
    back = (GRADIENT @ w0) * (1 - hidden**2)  # made by I, before the Step
    assert_equal([y], [hidden @ w0.T + b0])
    assert_equal([dx], [back @ w_first])
    assert_equal([second.weight.grad, first.weight.grad], [GRADIENT.T @ hidden, back.T @ X])
    assert stage.weights.live_versions == (1,)


def test_an_old_version_is_kept_for_r_i_and_w_and_freed_after_the_last():
    ops = [forward(1, 0), Step(1), recompute_op(1, 0), backward_input(1, 0), backward_weight(1, 0)]
    stage = begun(*mlp(), ops=ops, optimizer=True, recomputed=[0])
    plain = copy.deepcopy(stage.module)
    stage.compute(ops[0], X, None)
    step(stage)
    gradients = []
    for op in ops[2:]:
        assert stage.weights.live_versions == (0, 1)
        gradients.append(stage.compute(op, GRADIENT, None))
    assert stage.weights.live_versions == (1,)
    x = X.clone().requires_grad_()
    plain(x).backward(GRADIENT)
    assert_equal([gradients[1]], [x.grad])
    assert_equal((p.grad for p in stage.module.parameters()), (p.grad for p in plain.parameters()))


def test_the_gradient_of_the_input_is_freed_once_sent_though_w_is_still_to_come():
    stage = begun(*mlp())
    stage.compute(forward(1, 0), X, None)
    sent = stage.compute(backward_input(1, 0), GRADIENT, None)
    reference = StorageWeakRef(sent.untyped_storage())
    del sent
    assert reference.expired()


def test_what_a_stage_holds_after_f_and_after_i_is_what_the_profile_says():
    meter = make_meter(CPU)
    if meter is None:
        pytest.skip("this allocator cannot be asked")
    model = resolve_model("gpt:layers=3,width=64,heads=4,context=64,dropout=0.1")
    size, bounds = 4, ((0, 1), (1, 5))
    settings = ProfilerSettings(microbatch_sizes=(size,), repeats=1, warmup=1, dtype="float64")
    profile = profile_model(model, settings)
    first, second = profile.costs_of_layers(bounds, size).stages
    rows = [[forward(s, 0), backward_input(s, 0), backward_weight(s, 0), Step(s)] for s in (0, 1)]
    local = Local(make_schedule("split", 2, 1, rows), model, size=size, bounds=bounds)
    recorder = Recorder(HostClock(), meter)
    local.ranks[1] = replace(local.ranks[1], recorder=recorder)
    gc.collect()  # as a rank does: what the profile left in cycles would be freed between two ops
    local.run(times=2)
    held = dict(zip(map(str, local.schedule.ops[1]), recorder.held_bytes(), strict=True))
    # what rank 0 holds in the same process, and the message: the stage's input, then the gradient that rank 0 will take
    others, message = held["1RECV_F0"], first.output_bytes
    assert held["1F0"] - others == pytest.approx(second.saved_bytes - message, rel=0.02)
    assert held["1SEND_B0"] - others == pytest.approx(second.saved_for_weight_bytes, rel=0.02)
    assert second.saved_for_weight_bytes > 1.3 * second.saved_bytes  # PyTorch keeps more for W than F saved
    assert held["1STEP"] - others < 1.1 * message


@pytest.mark.parametrize(("loss", "got"), [(torch.sub, r"a tensor of \(3, 4\)"), (lambda *_: 1.0, "float")])
def test_a_loss_that_is_no_scalar_is_refused(loss, got):
    stage = begun(LINEAR, loss=loss)
    with pytest.raises(ExecutionError, match=f"loss: got {got}, expected a tensor without dimensions; return the mean"):
        stage.compute(forward(0, 0), X, X)
