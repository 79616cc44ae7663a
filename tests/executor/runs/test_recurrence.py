"""The losses of the recurrence beside loops written by hand, and beside runs of the lists."""

import pytest

from pipesched.executor.runs import recurrence_losses
from pipesched.schedules import PredictionRule
from pipesched.schedules.builders import build
from pipesched.schedules.transforms import recompute
from tests.executor.pipelines import Local, job
from tests.executor.recurrences import CONSISTENT, OPTIMIZERS, RULES, SCHEMES, at_least, by_layer, scheme_of, train
from tests.properties import thinned

LR = 0.005


def spec_of(schedule, model, **given):
    return job(schedule, model, lr=LR, **given)


def compare_by_hand(name, d, optimizer, *, recomputes=False, prediction=None):
    """Compare the losses with the loop of the scheme that is written by hand, and with a run of the lists."""
    count = at_least(16, name, d)
    schedule = recompute(build(name, d, count)) if recomputes else build(name, d, count)
    model = f"tests.executor.models:plain:layers={max(3, schedule.num_stages)}"
    run = Local(schedule, model, optimizer=optimizer, lr=LR, prediction=prediction)
    stage_of = [stage for stage, (first, last) in enumerate(run.bounds) for _ in range(first, last)]
    data, by_hand = list(zip(run.batch.inputs, run.batch.targets, strict=True)), []
    train(
        by_layer(run.parameters),
        stage_of,
        scheme_of(name, d, count),
        OPTIMIZERS[optimizer],
        data,
        RULES.get(name) if prediction is None else prediction.value,
        recomputes and name not in CONSISTENT,
        losses=by_hand,
    )
    losses = recurrence_losses(spec_of(schedule, model, optimizer=optimizer, prediction=prediction))
    assert losses == pytest.approx(by_hand, rel=1e-10)
    assert len(set(losses)) == count
    ran = {i: loss for rank in run.run().ranks for stage in rank.stages.values() for i, loss in stage.losses().items()}
    assert losses == pytest.approx([ran[i] for i in range(count)], rel=1e-10)


@pytest.mark.parametrize(("name", "optimizer"), thinned(SCHEMES, OPTIMIZERS, every=4))
def test_losses_are_those_of_the_loop_written_by_hand(name, optimizer):
    compare_by_hand(name, 4, optimizer)


@pytest.mark.parametrize("name", SCHEMES)
def test_recomputing_stages_rebuild_with_the_weights_of_their_recomputation(name):
    compare_by_hand(name, 3, "momentum", recomputes=True)


@pytest.mark.parametrize("rule", [rule for rule in PredictionRule if rule is not PredictionRule.CODE])
def test_every_rule_of_prediction_is_followed(rule):
    compare_by_hand("pipeoptim", 3, "adam", prediction=rule)


MODELS = (
    "tests.executor.models:dropping:layers=6",
    "tests.executor.models:normed:layers=6",
    "tests.executor.tuple_models:paired:layers=6",
    "gpt:layers=3,width=16,heads=2,context=8,dropout=0.1",
)


@pytest.mark.parametrize(("name", "model"), thinned(["pipedream", "xpipe", "pipedream_2bw"], MODELS))
def test_layers_with_dropout_running_means_or_several_tensors_have_the_losses_of_a_run(name, model):
    for schedule in (build(name, 2, 8), recompute(build(name, 2, 8))):
        run = Local(schedule, model, optimizer="momentum", lr=LR)
        losses = recurrence_losses(spec_of(schedule, model, optimizer="momentum"))
        ran = {i: loss for rank in run.run().ranks for s in rank.stages.values() for i, loss in s.losses().items()}
        assert losses == pytest.approx([ran[i] for i in range(8)], rel=1e-10)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "chimera", "zb_h1", "avgpipe"])
def test_lists_without_a_forward_after_a_step_and_averaged_pipelines_have_none(name):
    assert recurrence_losses(spec_of(build(name, 2, 4), "tests.executor.models:plain:layers=8")) is None
