"""Predicted weights against the optimizers' own arithmetic, written out."""

import pytest
import torch
from torch import optim

from executor.errors import ExecutionError
from executor.prediction import RULES, Predictor

RANDOM_STEPS = 4


def trained(make, rule, *, seed=0, grads=RANDOM_STEPS, **options):
    """Return (parameter, optimizer, predictor, gradients) after some steps with random gradients."""
    random = torch.Generator().manual_seed(seed)
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


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=0)


def test_momentum_is_followed_along_its_buffer():
    p, _, predictor, given = trained(lambda ps: optim.SGD(ps, 0.1, momentum=0.9, dampening=0.5), "paper")
    buffer = given[0]
    for gradient in given[1:]:
        buffer = 0.9 * buffer + 0.5 * gradient
    same(predictor.ahead(3)[p], p.detach() - 0.1 * 3 * buffer)


def test_nesterov_is_followed_along_its_buffer_too():
    p, _, predictor, given = trained(lambda ps: optim.SGD(ps, 0.1, momentum=0.9, nesterov=True), "paper")
    buffer = given[0]
    for gradient in given[1:]:
        buffer = 0.9 * buffer + gradient
    same(predictor.ahead(2)[p], p.detach() - 0.2 * buffer)


def test_weight_decay_is_part_of_the_buffer():
    start = trained(lambda ps: optim.SGD(ps, 0.1), "paper", grads=0)[0].detach().clone()
    p, _, predictor, given = trained(lambda ps: optim.SGD(ps, 0.1, momentum=0.9, weight_decay=0.01), "paper", grads=1)
    same(predictor.ahead(1)[p], p.detach() - 0.1 * (given[0] + 0.01 * start))


def test_sgd_without_momentum_is_followed_along_its_last_gradient():
    p, _, predictor, given = trained(lambda ps: optim.SGD(ps, 0.1), "paper")
    same(predictor.ahead(5)[p], p.detach() - 0.5 * given[-1])


def test_the_published_code_adds_the_last_gradient_once_more():
    p, optimizer, predictor, given = trained(lambda ps: optim.SGD(ps, 0.1, momentum=0.9), "code")
    same(predictor.ahead(2)[p], p.detach() - 0.2 * (optimizer.state[p]["momentum_buffer"] + given[-1]))


def adams_delta(given, betas=(0.9, 0.999), eps=1e-8):
    m = v = torch.zeros(5, dtype=torch.float64)
    for gradient in given:
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
    t = len(given)
    return (m / (1 - betas[0] ** t)) / ((v / (1 - betas[1] ** t)).sqrt() + eps)


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW])
@pytest.mark.parametrize("rule", ["paper", "code", "adam"])
def test_adam_is_followed_along_its_corrected_moments(kind, rule):
    p, _, predictor, given = trained(lambda ps: kind(ps, 0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0), rule)
    same(predictor.ahead(3)[p], p.detach() - 0.3 * adams_delta(given, (0.8, 0.95), 1e-3))


def test_xpipe_follows_adam_whatever_the_optimizer():
    p, _, predictor, given = trained(lambda ps: optim.SGD(ps, 0.1, momentum=0.9), "adam")
    same(predictor.ahead(3)[p], p.detach() - 0.3 * adams_delta(given))


OPTIMIZERS = {
    "sgd": lambda ps: optim.SGD(ps, 0.1, weight_decay=0.1),
    "nesterov": lambda ps: optim.SGD(ps, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda ps: optim.Adam(ps, 0.1, amsgrad=True),
    "adamw fused": lambda ps: optim.AdamW(ps, 0.1, weight_decay=0.1, fused=True),
    "adamw foreach": lambda ps: optim.AdamW(ps, 0.1, weight_decay=0.1, foreach=True),
    "rmsprop": lambda ps: optim.RMSprop(ps, 0.1),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("rule", ["zero", "constant"])
def test_stepping_ahead_is_what_the_optimizer_then_does(make, rule):
    p, optimizer, predictor, given = trained(make, rule, lr_ahead=lambda step: 0.5**step)
    found = predictor.ahead(3)[p]
    for step in range(3):
        p.grad = torch.zeros(5, dtype=torch.float64) if rule == "zero" else given[-1].clone()
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.5**step
        optimizer.step()
    same(found, p.detach())


@pytest.mark.parametrize("rule", RULES)
def test_looking_ahead_changes_neither_weights_nor_state(rule):
    p, optimizer, predictor, _ = trained(OPTIMIZERS["nesterov"], rule)
    before, state = p.detach().clone(), optimizer.state[p]["momentum_buffer"].clone()
    first, second = predictor.ahead(4)[p], predictor.ahead(4)[p]
    assert torch.equal(first, second)
    assert torch.equal(p.detach(), before)
    assert torch.equal(optimizer.state[p]["momentum_buffer"], state)
    assert first.data_ptr() != p.data_ptr()


def test_a_scheduler_of_the_learning_rate_does_not_lead_the_copy_back_to_the_original():
    p, optimizer, predictor, _ = trained(OPTIMIZERS["adamw foreach"], "zero")
    optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    before = p.detach().clone()
    assert not torch.equal(predictor.ahead(1)[p], before)
    assert torch.equal(p.detach(), before)


@pytest.mark.parametrize("rule", RULES)
def test_before_the_first_step_nothing_is_predicted(rule):
    p, _, predictor, _ = trained(OPTIMIZERS["adam"], rule, grads=0)
    assert torch.equal(predictor.ahead(3)[p], p.detach())


def test_an_optimizer_without_a_rule_is_refused():
    p = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(ExecutionError, match="got optimizer RMSprop, expected SGD, Adam or AdamW; try the rule adam"):
        Predictor(optim.RMSprop([p], 0.1), "paper")
    with pytest.raises(ExecutionError, match="maximizes"):
        Predictor(optim.SGD([p], 0.1, maximize=True), "zero")
