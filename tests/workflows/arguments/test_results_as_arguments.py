"""What a user nearly got right is refused with the thing that would have been: a part of a result, or a function."""

import copy
from functools import partial

import pytest
import torch

import pipesched
from pipesched.executor.core import Predictor
from pipesched.profiles.costs import LayerCosts
from pipesched.profiles.models import Model
from pipesched.schedules import PredictionRule

COST = pipesched.DeviceCost(1.0, 2.0)
COUNTS = {"num_ranks": 2, "num_microbatches": 4}
GPT = pipesched.analytic_profile("gpt:layers=4", "A100", [1, 2, 4, 8])
PLANNED = pipesched.plan(GPT.profile, batch_size=8, num_devices=2, schedules=["1f1b"])
SIMULATED = pipesched.simulate(pipesched.build("1f1b", **COUNTS), COST)
TUNED = pipesched.tune(GPT.profile, batch_size=8, num_devices=2, pipelines=[1], advances=[0])
LAYER = torch.nn.Linear(2, 2)


def model(*layers):
    names = tuple("ab"[: len(layers)])
    return Model("own", layers, names, lambda output, target: output.mean(), lambda n, seed: (n, n))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: pipesched.simulate(pipesched.build("1f1b", **COUNTS), GPT),
            "setup: got ProfileMeasurement(..), expected a part of",
        ),
        (
            lambda: pipesched.plan(GPT, batch_size=8, num_devices=2),
            "setup: got ProfileMeasurement(..), expected a part of",
        ),
        (lambda: pipesched.simulate(PLANNED, GPT.profile), "schedule: got PlanSearch(..), expected a part of it; try"),
        (lambda: pipesched.export_setting(PLANNED, "megatron"), "plan: got PlanSearch(..), expected a part of it; "),
        (lambda: pipesched.simulate(SIMULATED, COST), "schedule: got Simulation(..), expected a part of it; try its "),
        (
            lambda: pipesched.simulate(pipesched.build("1f1b", **COUNTS), (1.0, 2.0)),
            "setup: got tuple(..), expected a Setup, or costs",
        ),
        (
            lambda: pipesched.simulate(pipesched.build("1f1b", **COUNTS), LayerCosts(())),
            "costs: layers: got none, expected ",
        ),
        (
            lambda: pipesched.simulate(pipesched.build("1f1b", **COUNTS), pipesched.Setup(COST, "dgx-h100")),
            "cluster: got 'dgx-h100', expected a Cluster",
        ),
        (
            lambda: pipesched.compare("1f1b,gpipe", COST),
            "schedules: got '1f1b,gpipe', expected a list; try ['1f1b', 'g",
        ),
        (lambda: pipesched.gantt(SIMULATED).save(3), "path: got 3, expected the name of a file"),
        (lambda: pipesched.trace(SIMULATED).save(3), "path: got 3, expected the name of a file"),
        (lambda: GPT.save(3), "path: got 3, expected the name of a file"),
        (lambda: PLANNED.save(None), "path: got None, expected the name of a file"),
        (lambda: pipesched.versions("1f1b", **COUNTS).plot("x"), "num_microbatches: got 'x', expected an integer"),
        (lambda: TUNED.table(-1), "top: got -1, expected at least 1"),
        (lambda: TUNED.gain(TUNED.chosen.setting), "outcome: got Setting(..), expected one of the outcomes"),
        (lambda: model(LAYER, LAYER), "model own: layer 0: got Linear, expected a function that builds it; try functo"),
        (lambda: Predictor(3, PredictionRule.ZERO), "optimizer: got 3, expected one of torch.opt"),
        (
            lambda: Predictor(torch.optim.SGD(LAYER.parameters(), 0.1), "zero"),
            "rule: got 'zero', expected one of PredictionRule.MOMENTUM, ",
        ),
        (
            lambda: pipesched.train("mlp:width=8,layers=4", pipesched.build("1f1b", 2, 2), num_steps=1, lr=True),
            "lr: got True, expected a number from 0 to 1e+308",
        ),
    ],
)
def test_a_refusal_says_what_would_do(call, said):
    with pytest.raises((pipesched.ArgumentError, pipesched.ProfileError, pipesched.ExecutionError)) as raised:
        call()
    assert str(raised.value).startswith(said)


def test_what_the_refusals_advise_is_taken():
    assert pipesched.simulate(pipesched.build("1f1b", **COUNTS), GPT.profile).makespan_s > 0
    assert pipesched.simulate(PLANNED.plan, GPT.profile).makespan_s > 0
    assert pipesched.simulate(SIMULATED.schedule, COST).makespan_s == SIMULATED.makespan_s
    assert "# torchtitan, " in pipesched.export_setting(PLANNED.plan, "torchtitan")
    assert (
        pipesched.simulate(
            pipesched.build("1f1b", **COUNTS), pipesched.Setup(COST, pipesched.load_machine("dgx-h100"))
        ).makespan_s
        > 0
    )
    assert TUNED.gain(TUNED.chosen) > 0
    assert len(model(partial(copy.deepcopy, LAYER)).layers) == 1
