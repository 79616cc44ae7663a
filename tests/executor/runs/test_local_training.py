"""Training under a schedule, beside a plain loop."""

import math
from dataclasses import replace
from itertools import cycle

import pytest
import torch
from torch import nn

from pipesched.executor import RankFailed
from pipesched.executor.launch import RunSpec, Train
from pipesched.executor.runs import local_training, train_locally, training_of, training_setup
from pipesched.executor.training import LossHistory, RunDiverged, Scores
from pipesched.profiles.models import build_layers, resolve_model
from pipesched.schedules import PredictionRule
from pipesched.schedules.transforms import ScheduleSpec
from tests.executor.pipelines import even_bounds, plain_loop
from tests.properties import thinned

MODEL = resolve_model("digits:width=8,blocks=2")
GPT = resolve_model("gpt:layers=2,width=16,heads=2,context=8")
SYNCHRONOUS = ["gpipe", "zbv", "1f1b", "interleaved", "zb_h1", "chimera", "dualpipe_v", "data_parallel"]


def trained(
    name, num_steps, *, num_ranks=2, model=MODEL, batch_size=16, on_step=None, learning=None, every=None, **fields
):
    schedule_spec = ScheduleSpec(name=name, num_ranks=num_ranks, num_microbatches=4)
    num_stages = schedule_spec.run(num_steps).lists(num_steps).num_stages
    given = {"optimizer": "momentum", "lr": 0.05, "seed": 3, "dtype": "float64"}
    spec = RunSpec(
        job=Train(schedule_spec=schedule_spec, num_steps=num_steps, batch_size=batch_size, **learning or {}),
        model=model.name,
        bounds=even_bounds(len(model.layers), num_stages),
        **(given | fields),
    )
    return train_locally(training_of(spec, model), on_step, every)


def require_same(result, losses, accuracies, held_out_loss, held_out_accuracy):
    assert [scores.loss for scores in result.steps] == pytest.approx(losses, rel=1e-10)
    assert [scores.accuracy for scores in result.steps] == pytest.approx(accuracies)
    assert result.held_out.loss == pytest.approx(held_out_loss, rel=1e-10)
    assert result.held_out.accuracy == pytest.approx(held_out_accuracy)
    assert result.diverged is None


RATES = {
    "constant": ({}, lambda k: 1.0),
    "step": (
        {"lr_schedule": "step", "lr_milestones": (4, 9), "lr_factor": 0.3},
        lambda k: 0.3 ** ((k >= 4) + (k >= 9)),
    ),
    "one step": ({"lr_schedule": "step", "lr_milestones": 5}, lambda k: 0.1 ** (k >= 5)),
    "cosine": ({"lr_schedule": "cosine"}, lambda k: (1 + math.cos(math.pi * k / 12)) / 2),
    "longer cosine": (
        {"lr_schedule": "cosine", "lr_end": 0.1, "lr_steps": 30},
        lambda k: 0.1 + 0.9 * (1 + math.cos(math.pi * k / 30)) / 2,
    ),
    "linear": ({"lr_schedule": "linear", "lr_end": 0.25}, lambda k: 1 - 0.75 * k / 12),
    "polynomial": ({"lr_schedule": "polynomial", "lr_power": 2.0, "lr_steps": 10}, lambda k: max(0, 1 - k / 10) ** 2),
    "warm-up": ({"lr_warmup": 5}, lambda k: min(1, (k + 1) / 6)),
    "warm-up and step": (
        {"lr_schedule": "step", "lr_milestones": [6], "lr_warmup": 3},
        lambda k: min(1, (k + 1) / 4) * 0.1 ** (k >= 6),
    ),
    "warm-up and polynomial": (
        {"lr_schedule": "polynomial", "lr_warmup": 4},
        lambda k: (k + 1) / 5 if k < 4 else 1 - (k - 4) / 8,
    ),
}


@pytest.mark.parametrize(
    ("name", "rate"),
    [*zip(SYNCHRONOUS, cycle(["constant", "warm-up and step"])), *thinned(["gpipe", "1f1b"], RATES)],
)
def test_a_synchronous_schedule_trains_as_the_whole_model_does_at_the_rate_of_the_closed_form(name, rate):
    learning, factor = RATES[rate]
    require_same(trained(name, 12, learning=learning), *plain_loop(MODEL, 12, rate=factor))


OPTIMIZERS = {
    "nesterov": ("momentum", {"is_nesterov": True}, lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9, nesterov=True)),
    "decay": ("momentum", {"weight_decay": 0.1}, lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9, weight_decay=0.1)),
    "sgd": ("sgd", {"weight_decay": 0.2}, lambda ps: torch.optim.SGD(ps, 0.05, weight_decay=0.2)),
    "adam": ("adam", {"weight_decay": 0.1}, lambda ps: torch.optim.Adam(ps, 0.05, weight_decay=0.1)),
    "adamw": ("adamw", {"weight_decay": 0.3}, lambda ps: torch.optim.AdamW(ps, 0.05, weight_decay=0.3)),
    "adamw, none": ("adamw", {"weight_decay": 0.0}, lambda ps: torch.optim.AdamW(ps, 0.05, weight_decay=0.0)),
    "adamw, usual": ("adamw", {}, lambda ps: torch.optim.AdamW(ps, 0.05)),
}


@pytest.mark.parametrize(("name", "optimizer"), thinned(["gpipe", "1f1b"], OPTIMIZERS))
def test_an_optimizer_with_its_settings_is_that_of_pytorch(name, optimizer):
    own, settings, make = OPTIMIZERS[optimizer]
    result = trained(name, 12, learning={**settings, "lr_schedule": "cosine"}, optimizer=own)
    losses = plain_loop(MODEL, 12, make=make, rate=RATES["cosine"][1])[0]
    assert [scores.loss for scores in result.steps] == pytest.approx(losses, rel=1e-10)


@pytest.mark.parametrize("name", ["pipedream", "xpipe"])
def test_on_one_rank_a_scheme_is_ordinary_training(name):
    result = trained(name, 12, num_ranks=1)
    assert [scores.loss for scores in result.steps] == pytest.approx(plain_loop(MODEL, 12)[0], rel=1e-10)


def test_tokens_have_an_accuracy_too():
    result = trained("gpipe", 4, model=GPT, batch_size=8)
    require_same(result, *plain_loop(GPT, 4, batch_size=8))


def test_numbers_to_be_hit_have_no_accuracy_and_a_model_without_held_out_samples_no_judgement():
    result = trained("gpipe", 3, model=resolve_model("mlp:layers=4,width=4"))
    assert [scores.accuracy for scores in result.steps] == [None] * 3
    assert result.held_out is None


def test_steps_are_told_in_order_as_they_come():
    told = []
    result = trained("1f1b_rr", 6, num_ranks=3, on_step=lambda step, scores: told.append((step, scores)))
    assert told == list(enumerate(result.steps))
    assert len(told) == 6


def test_dropout_is_off_when_the_final_weights_are_judged():
    model = resolve_model("digits:width=8,blocks=2,dropout=0.5")
    first, again = (trained("gpipe", 2, model=model, lr=0.0).held_out for _ in range(2))
    assert first == again
    x, y = model.held_out()
    module = build_layers(model, 0, len(model.layers), seed=3, dtype=torch.float64).eval()
    assert first.loss == pytest.approx(model.loss(module(x.double()), y).item(), rel=1e-10)


@pytest.mark.parametrize("name", ["gpipe", "pipedream"])
def test_a_run_that_diverges_ends_at_the_step_whose_loss_shows_it(name):
    told = []
    result = trained(
        name, 200, model=resolve_model("mlp:layers=4,width=4"), lr=50.0, on_step=lambda *it: told.append(it)
    )
    losses = [scores.loss for scores in result.steps]
    assert result.diverged.step == len(losses) - 1 < 199
    assert not math.isfinite(losses[-1]) or losses[-1] > 10 * losses[0]
    assert all(math.isfinite(loss) and loss <= 10 * losses[0] for loss in losses[:-1])
    assert result.held_out is None
    assert len(told) == len(losses)


@pytest.mark.parametrize(("second", "is_lost"), [(math.nan, True), (math.inf, True), (10.1, True), (9.9, False)])
def test_diverged_is_not_finite_or_above_ten_times_the_first(second, is_lost):
    history = LossHistory(1)
    history.add(0, Scores(1.0, None))
    if not is_lost:
        history.add(1, Scores(second, None))
        assert history.end().diverged is None
        return
    with pytest.raises(RunDiverged):
        history.add(1, Scores(second, None))
    diverged = history.end(Scores(1.0, None)).diverged
    assert (diverged.step, str(diverged.loss)) == (1, str(second))
    assert history.end(Scores(1.0, None)).held_out is None


def test_final_weights_that_are_lost_are_said_to_be():
    history = LossHistory(1)
    history.add(0, Scores(1.0, None))
    trained = history.end(Scores(math.inf, 0.1))
    assert (trained.diverged.step, trained.held_out) == (1, None)


def test_micro_batches_may_come_in_any_order():
    told = []
    history = LossHistory(2, lambda step, scores: told.append((step, scores)))
    for microbatch in (3, 0, 5, 2, 1, 4):
        history.add(microbatch, Scores(float(microbatch), microbatch / 10))
    assert told == [(0, Scores(0.5, 0.05)), (1, Scores(2.5, 0.25)), (2, Scores(4.5, 0.45))]


def test_what_a_listener_raises_goes_on():
    def stop(step, scores):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained("gpipe", 3, on_step=stop)


def test_the_watch_of_gpus_pauses_in_an_evaluation_on_the_way(monkeypatch):
    paused, make, judge = [], local_training.StreamWatch, training_setup.TrainingSetup.judge

    def watch(streams, timeout_s, spent_s, is_paused):
        paused.append(is_paused)
        return make(streams, timeout_s, spent_s, is_paused)

    def judged(*given, **named):
        paused.append(paused[0]())
        return judge(*given, **named)

    monkeypatch.setattr(local_training, "StreamWatch", watch)
    monkeypatch.setattr(training_setup.TrainingSetup, "judge", judged)
    trained("1f1b", 2, every=1)
    assert paused[1:] == [True, True, False]
    assert not paused[0]()


def test_a_layer_that_fails_is_named_with_rank_and_op():
    class Broken(nn.Linear):
        def forward(self, x):
            raise RuntimeError("as it was asked")

    layers = (*MODEL.layers[:-1], lambda: Broken(8, 10))
    with pytest.raises(RankFailed, match=r"rank 1 failed at 1F0.*as it was asked"):
        trained("gpipe", 2, model=replace(MODEL, layers=layers))


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("gpipe", {"optimizer": "sgd"}),
        ("pipeoptim", {}),
        ("xpipe", {"prediction": PredictionRule.MOMENTUM}),
    ],
)
def test_sgd_trains_in_float16(name, fields):
    result = trained(name, 20, dtype="float16", lr=0.01, **fields)
    assert result.diverged is None
    assert len(result.steps) == 20
    assert all(math.isfinite(scores.loss) for scores in result.steps)


def test_the_first_op_that_gives_no_finite_number_is_named_where_that_is_checked():
    with pytest.raises(
        RankFailed, match=r"^rank \d failed at \dF\d+.* got the first (NaN|infinity) of this run in .* of stage \d,"
    ):
        trained("gpipe", 3, lr=1e308, is_finite_checked=True)
