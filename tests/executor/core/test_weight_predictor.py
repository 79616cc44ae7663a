"""Predicted weights against the optimizers' own arithmetic, written out."""

import pytest
import torch
from torch import optim

from pipesched.executor import ExecutionError
from pipesched.executor.core.weight_predictor import Predictor
from pipesched.schedules import PredictionRule

RANDOM_STEPS = 4


def trained(make, rule, *, grads=RANDOM_STEPS, **options):
    """Return (parameter, optimizer, predictor, gradients) after some steps with random gradients."""
    random = torch.Generator().manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(5, generator=random, dtype=torch.float64))
    optimizer = make([parameter])
    predictor = Predictor(optimizer, rule, **options)
    given = [torch.randn(5, generator=random, dtype=torch.float64) for _ in range(grads)]
    for gradient in given:
        parameter.grad = gradient.clone()
        predictor.observe()
        optimizer.step()
        optimizer.zero_grad()
    return parameter, optimizer, predictor, given


def ahead(predictor, parameter, steps):
    copy = parameter.detach().clone()
    predictor.move({parameter: copy}, steps)
    return copy


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=0)


def adams_moments(given, betas):
    m = v = torch.zeros(5, dtype=torch.float64)
    for gradient in given:
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
    return m, v


def adams_delta(given, betas=(0.9, 0.999), eps=1e-8):
    m, v = adams_moments(given, betas)
    t = len(given)
    return (m / (1 - betas[0] ** t)) / ((v / (1 - betas[1] ** t)).sqrt() + eps)


def test_adams_largest_second_moment_is_the_one_that_counts_if_adam_says_so():
    p, optimizer, predictor, given = trained(lambda ps: optim.Adam(ps, 0.1, amsgrad=True), PredictionRule.OPTIMIZER)
    p.grad = given[0] / 100
    predictor.observe()
    optimizer.step()
    m, _ = adams_moments([*given, given[0] / 100], (0.9, 0.999))
    largest = torch.stack([adams_moments(given[:k], (0.9, 0.999))[1] for k in range(1, 5)]).amax(0)
    v = torch.maximum(largest, adams_moments([*given, given[0] / 100], (0.9, 0.999))[1])
    delta = m / (1 - 0.9**5) / ((v / (1 - 0.999**5)).sqrt() + 1e-8)
    same(ahead(predictor, p, 3), p.detach() - 0.3 * delta)


def test_spectrain_smooths_the_gradients_itself_where_the_optimizer_does_not():
    p, _, predictor, given = trained(lambda ps: optim.RMSprop(ps, 0.1), PredictionRule.MOMENTUM)
    same(ahead(predictor, p, 3), p.detach() - 0.3 * adams_moments(given, (0.9, 0.999))[0])


@pytest.mark.parametrize("kind", [optim.SGD, optim.RMSprop])
def test_xpipe_follows_adam_whatever_the_optimizer(kind):
    p, _, predictor, given = trained(lambda ps: kind(ps, 0.1, momentum=0.9), PredictionRule.ADAM)
    same(ahead(predictor, p, 3), p.detach() - 0.3 * adams_delta(given))
    assert [tensor.shape for tensor in predictor.tensors()] == [p.shape] * 2


OPTIMIZERS = {
    "sgd": lambda ps: optim.SGD(ps, 0.1, weight_decay=0.1),
    "nesterov": lambda ps: optim.SGD(ps, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "nesterov foreach": lambda ps: optim.SGD(ps, 0.1, momentum=0.9, nesterov=True, foreach=True),
    "adam": lambda ps: optim.Adam(ps, 0.1, amsgrad=True),
    "adamw fused": lambda ps: optim.AdamW(ps, 0.1, weight_decay=0.1, fused=True),
    "adamw foreach": lambda ps: optim.AdamW(ps, 0.1, weight_decay=0.1, foreach=True),
    "rmsprop": lambda ps: optim.RMSprop(ps, 0.1),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("rule", [PredictionRule.ZERO, PredictionRule.CONSTANT])
def test_stepping_ahead_is_what_the_optimizer_then_does(make, rule):
    p, optimizer, predictor, given = trained(make, rule, lr_ahead=lambda step: 0.5**step)
    prediction = ahead(predictor, p, 3)
    for step in range(3):
        p.grad = torch.zeros(5, dtype=torch.float64) if rule is PredictionRule.ZERO else given[-1].clone()
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.5**step
        optimizer.step()
    same(prediction, p.detach())


@pytest.mark.parametrize("rule", PredictionRule)
def test_looking_ahead_changes_neither_weights_nor_state(rule):
    p, optimizer, predictor, _ = trained(OPTIMIZERS["nesterov"], rule)
    before, state = p.detach().clone(), optimizer.state[p]["momentum_buffer"].clone()
    first, second = ahead(predictor, p, 4), ahead(predictor, p, 4)
    assert torch.equal(first, second)
    assert not torch.equal(first, before)
    assert torch.equal(p.detach(), before)
    assert torch.equal(optimizer.state[p]["momentum_buffer"], state)


def test_a_scheduler_of_the_learning_rate_does_not_lead_the_copy_back_to_the_original():
    p, optimizer, predictor, _ = trained(OPTIMIZERS["adamw foreach"], PredictionRule.ZERO)
    optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    before = p.detach().clone()
    assert not torch.equal(ahead(predictor, p, 1), before)
    assert torch.equal(p.detach(), before)


def test_a_parameter_without_a_gradient_stays_where_it_is():
    used, unused = (torch.nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
    optimizer = optim.SGD([used, unused], 0.1)
    predictor = Predictor(optimizer, PredictionRule.CONSTANT)
    used.grad = torch.ones(2, dtype=torch.float64)
    predictor.observe()
    optimizer.step()
    copies = {p: p.detach().clone() for p in (used, unused)}
    predictor.move(copies, 2)
    same(copies[used], torch.full((2,), 0.7, dtype=torch.float64))
    assert torch.equal(copies[unused], unused.detach())


@pytest.mark.parametrize("rule", [PredictionRule.OPTIMIZER, PredictionRule.CODE])
def test_an_optimizer_without_a_rule_is_refused(rule):
    p = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(ExecutionError, match="got optimizer RMSprop, expected SGD, Adam or AdamW; try the rule adam"):
        Predictor(optim.RMSprop([p], 0.1), rule)
    with pytest.raises(ExecutionError, match="maximizes"):
        Predictor(optim.SGD([p], 0.1, maximize=True), rule)
