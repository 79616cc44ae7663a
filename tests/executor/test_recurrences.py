"""Every asynchronous scheme against the plain loop of its recurrence."""

import math
from functools import cache

import pytest
import torch
from torch import optim

from pipesched.executor import LearningSettings
from pipesched.executor.core import LearningRun
from pipesched.profiles.models import build_layers
from pipesched.profiles.models.torch_names import OPTIMIZERS
from pipesched.schedules import PredictionRule
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import microbatches_per_step, recompute
from tests.executor import recurrences
from tests.executor.models import plain
from tests.executor.pipelines import Local, assert_equal
from tests.executor.recurrences import CONSISTENT, RULES, SCHEMES, Adam, Sgd, at_least, by_layer, scheme_of, train
from tests.executor.tuple_models import paired
from tests.properties import thinned

LR = recurrences.LR


@cache
def lowered(name, d, num_microbatches, extra, recomputes):
    """Build and lower once for all optimizers."""
    schedule = build(name, d, num_microbatches, **({"extra": extra} if extra else {}))
    return lower(recompute(schedule) if recomputes else schedule)


def compare(
    name,
    d,
    count,
    optimizer,
    hand,
    *,
    rule=None,
    prediction=None,
    extra=0,
    recomputes=False,
    rebuilds=False,
    make=plain,
    rate=None,
    **settings,
):
    """Run scheme `name` on d ranks and by hand; assert that the weights are the same, and have moved.

    With `rate`, by step of the run, and the `settings` of that schedule, the learning rate changes.
    """
    num_microbatches = at_least(count, name, d)
    schedule = lowered(name, d, num_microbatches, extra, recomputes)
    num_layers = max(3, schedule.num_stages)
    period = microbatches_per_step(build(name, d, num_microbatches))
    learning = None if rate is None else LearningRun(LearningSettings(**settings), num_microbatches // period, period)
    run = Local(
        schedule,
        make(num_layers),
        optimizer=optimizer,
        lr=LR,
        prediction=prediction,
        lowering=lambda ready: ready,
        learning=learning,
    )
    start = by_layer(run.parameters)
    stage_of = [stage for stage, (first, last) in enumerate(run.bounds) for _ in range(first, last)]
    data = list(zip(run.batch.inputs, run.batch.targets, strict=True))
    scheme = scheme_of(name, d, num_microbatches, extra)
    expected = train(start, stage_of, scheme, hand, data, rule or RULES.get(name), rebuilds, rate, period)
    assert_equal(by_layer(run.run().parameters), expected)
    least = 1e-3 if count > 3 else 0.0
    assert all((a - b).abs().max() > least for a, b in zip(start, expected, strict=True))


BY_HAND = recurrences.OPTIMIZERS
RUNS = [
    (name, 4, optimizer, 24) for k, name in enumerate(SCHEMES) for j, optimizer in enumerate(BY_HAND) if (j + k) % 2
]
RUNS += [
    (name, d, list(BY_HAND)[(d + k) % len(BY_HAND)], count)
    for k, name in enumerate(SCHEMES)
    for d, count in ((1, 12), (8, 32) if k % 2 else (5, 24), (4, 3))
]
"""On four ranks every scheme has half of the optimizers; on other numbers of ranks it has one of these, in turn.

Other tests run all schemes on two and three ranks.
"""


def test_every_asynchronous_schedule_of_the_catalogue_has_a_recurrence():
    assert set(SCHEMES) == {name for name, entry in CATALOGUE.items() if entry.traits.is_asynchronous}


@pytest.mark.parametrize(("name", "d", "optimizer", "num_microbatches"), RUNS)
def test_weights_are_those_of_the_recurrence(name, d, optimizer, num_microbatches):
    compare(name, d, num_microbatches, optimizer, BY_HAND[optimizer])


OTHER_OPTIMIZERS = {
    "dampening": (lambda ps, lr: optim.SGD(ps, lr, momentum=0.8, dampening=0.5), Sgd(LR, 0.8, 0.5)),
    "nesterov": (
        lambda ps, lr: optim.SGD(ps, lr, momentum=0.9, nesterov=True, weight_decay=0.1),
        Sgd(LR, 0.9, nesterov=True, decay=0.1),
    ),
    "decay": (lambda ps, lr: optim.SGD(ps, lr, weight_decay=0.1), Sgd(LR, decay=0.1)),
    "adam": (
        lambda ps, lr: optim.Adam(ps, lr, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
        Adam(LR, 0.8, 0.95, 1e-3, 0.1),
    ),
    "adamw": (lambda ps, lr: optim.AdamW(ps, lr, weight_decay=0.3), Adam(LR, decoupled=0.3)),
    "foreach sgd": (lambda ps, lr: optim.SGD(ps, lr, momentum=0.9, nesterov=True, foreach=True), Sgd(LR, 0.9, 0, True)),
    "foreach adamw": (lambda ps, lr: optim.AdamW(ps, lr, foreach=True), Adam(LR, decoupled=0.01)),
    "fused sgd": (lambda ps, lr: optim.SGD(ps, lr, momentum=0.9, fused=True), Sgd(LR, 0.9)),
    "fused adam": (lambda ps, lr: optim.Adam(ps, lr, fused=True), Adam(LR)),
    "fused adamw": (lambda ps, lr: optim.AdamW(ps, lr, fused=True), Adam(LR, decoupled=0.01)),
}


@pytest.mark.parametrize("optimizer", [name for name in OTHER_OPTIMIZERS if name.startswith(("foreach", "fused"))])
@pytest.mark.parametrize("name", ["spectrain", "xpipe"])
def test_an_optimizer_that_steps_all_tensors_at_once_does_the_same(name, optimizer, monkeypatch):
    make, hand = OTHER_OPTIMIZERS[optimizer]
    monkeypatch.setitem(OPTIMIZERS, "other", make)
    compare(name, 4, 24, "other", hand)


@pytest.mark.parametrize(
    ("rule", "optimizer"),
    thinned(PredictionRule, [name for name in OTHER_OPTIMIZERS if not name.startswith(("foreach", "fused"))]),
)
def test_every_rule_predicts_as_it_says(rule, optimizer, monkeypatch):
    make, hand = OTHER_OPTIMIZERS[optimizer]
    monkeypatch.setitem(OPTIMIZERS, "other", make)
    compare("pipeoptim", 3, 24, "other", hand, rule=rule.value, prediction=rule, extra=int(rule is PredictionRule.CODE))


def warm_cosine(num_steps, warmup=4, end=0.2):
    """Return the factor on the learning rate in each step: 1/5, 2/5, .., and then half a wave down to `end`."""

    def rate(step):
        wave = math.cos(math.pi * (step - warmup) / (num_steps - warmup))
        return (step + 1) / (warmup + 1) if step < warmup else end + (1 - end) * (1 + wave) / 2

    return rate


def compare_with_rates(name, d, optimizer, **given):
    count = at_least(24, name, d)
    num_steps = count // microbatches_per_step(build(name, d, count))
    settings = {"lr_schedule": "cosine", "lr_end": 0.2, "lr_warmup": 4}
    compare(name, d, count, optimizer, BY_HAND[optimizer], rate=warm_cosine(num_steps), **settings, **given)


@pytest.mark.parametrize("name", SCHEMES)
def test_each_stage_counts_its_own_steps_for_the_learning_rate_and_predicts_with_the_present_one(name):
    compare_with_rates(name, 2, "momentum")


@pytest.mark.parametrize("rule", PredictionRule)
def test_every_rule_predicts_with_the_learning_rates_of_a_schedule(rule):
    compare_with_rates("pipeoptim", 3, "adam", rule=rule.value, prediction=rule, extra=int(rule is PredictionRule.CODE))


@pytest.mark.parametrize("name", SCHEMES)
def test_recompute_rebuilds_with_the_weights_of_the_backward(name):
    # where F and B agree it changes nothing
    rebuilds = name not in CONSISTENT
    compare(name, 4, 24, "momentum", BY_HAND["momentum"], recomputes=True, rebuilds=rebuilds)


@pytest.mark.parametrize(("name", "recomputes"), thinned(SCHEMES, (False, True)))
def test_stages_that_pass_several_tensors_on_read_the_same_weights(name, recomputes):
    rebuilds = recomputes and name not in CONSISTENT
    compare(name, 3, 16, "momentum", BY_HAND["momentum"], recomputes=recomputes, rebuilds=rebuilds, make=paired)


@pytest.mark.parametrize("counts", [(3, 2, 1), (2, 2), (1, 3), (1, 2, 3)])
def test_the_replicas_of_a_stage_average_the_gradients_of_their_own_rounds(counts):
    run = Local(build("1f1b_rr", sum(counts), 60, replicas=counts), plain(3), optimizer="momentum", lr=LR)

    def scheme(k, i):
        version = max(0, i // counts[k] - (sum(counts[k:]) - 1) // counts[k])
        return version, 0, version, 0, counts[k]

    stage_of = [stage for stage, (first, last) in enumerate(run.bounds) for _ in range(first, last)]
    data = list(zip(run.batch.inputs, run.batch.targets, strict=True))
    expected = train(by_layer(run.parameters), stage_of, scheme, BY_HAND["momentum"], data)
    run.run()
    for stage in range(len(counts)):
        its = expected[slice(*run.bounds[stage])]
        for replica in run.replicas(stage):
            assert_equal(by_layer(replica.module.parameters()), its)


def test_the_recurrence_holds_for_attention_too():
    """W(t+1) = W(t) - lr grad f(W_0(t-3), ..., W_3(t)) of four stages, arXiv:1806.03377, section 3.3."""
    gpt, num_stages = "gpt:layers=2,width=16,heads=2,context=8,dropout=0", 4
    run = Local(build("pipedream", num_stages, 8), gpt)
    model = run.model
    stages = [build_layers(model, *bounds, seed=0, dtype=torch.float64) for bounds in run.bounds]
    history = [[versions_of(stage)] for stage in stages]
    for t, (x, y) in enumerate(zip(run.batch.inputs, run.batch.targets, strict=True)):
        olds = [history[k][max(0, t - (num_stages - 1 - k))] for k in range(num_stages)]
        for stage, old in zip(stages, olds, strict=True):
            x = torch.func.functional_call(stage, old, (x,))
        gradients = iter(torch.autograd.grad(model.loss(x, y), [w for old in olds for w in old.values()]))
        for versions in history:
            stepped = {name: w.detach() - 0.05 * next(gradients) for name, w in versions[-1].items()}
            versions.append({name: w.requires_grad_() for name, w in stepped.items()})
    assert_equal(run.run().parameters, [w for versions in history for w in versions[-1].values()])


def versions_of(module):
    return {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
