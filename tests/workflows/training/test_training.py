"""The library trains: in this process, with a process per rank, or as a rank of torchrun's."""

import time
from dataclasses import replace

import pytest
import torch

import pipesched
from pipesched.executor.training import LaunchTimes, ScoreTable, Trained
from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.profiles.models import draw_held_out, resolve_model
from pipesched.questions import TrainSettings
from pipesched.schedules.builders import build
from pipesched.schedules.transforms import ScheduleSpec
from pipesched.workflows.training import TrainingResult, prepare_training, require_trainable

MODEL = "digits:width=8,blocks=4"
HOW = {"num_steps": 6, "batch_size": 8, "dtype": "float64", "optimizer": "momentum", "lr": 0.05}


def spec(name, num_ranks=2, num_microbatches=2):
    return ScheduleSpec(name=name, num_ranks=num_ranks, num_microbatches=num_microbatches)


@pytest.mark.slow
def test_a_training_run_says_what_came_of_every_step_and_of_the_final_weights():
    told = []
    result = pipesched.train(
        MODEL, spec("pipedream"), **HOW, on_step=lambda step, scores: told.append((step, scores.loss))
    )
    assert told == list(enumerate(result.losses))
    assert len(result.losses) == len(result.accuracies) == 6
    num_right = result.held_out_accuracy * len(draw_held_out(resolve_model(MODEL))[1])
    assert 0 < num_right == pytest.approx(round(num_right), rel=1e-9)
    assert result.diverged_at is None
    assert list(result.to_frame().columns) == ["loss", "accuracy"]
    assert result.plot().axes
    assert "pipedream" in result._repr_html_()


def test_costs_predict_when_each_loss_is_known():
    result = pipesched.train(MODEL, spec("gpipe"), **HOW, costs=pipesched.DeviceCost(1.0, 2.0))
    frame = result.to_frame()
    assert list(frame["predicted_s"]) == sorted(frame["predicted_s"])
    summary = result.summary(target_loss=100.0)
    assert (summary.run_s, summary.staleness) == (pytest.approx(6 * 4.5), 0)
    assert summary.steps_to_target == 1


def test_a_target_loss_is_reached_when_the_mean_of_the_last_twentieth_of_the_steps_is_at_it():
    costs = pipesched.DeviceCost(1.0, 2.0)
    run = pipesched.train(MODEL, spec("gpipe"), **(HOW | {"num_steps": 40}), costs=costs)
    losses = [1.0, *[3.0] * 9, 1.0, 3.0, *[1.5] * 28]  # alone, the first and the eleventh are below
    made = replace(run, trained=Trained(ScoreTable([x for loss in losses for x in (loss, 0.5)]), None, None))
    reached = next(step for step in range(2, 41) if sum(losses[step - 2 : step]) / 2 <= 1.5)
    summary = made.summary(target_loss=1.5)
    assert summary.steps_to_target == reached == 14
    # The losses of the first step are known after (m + p - 1) / m forwards, of each other one a period later.
    assert summary.target_s == pytest.approx(1.5 + (reached - 1) * 4.5)
    assert made.summary(target_loss=0.9).target_s is None


@pytest.mark.parametrize(("compression", "message_s"), [(None, 0.5), ("half", 0.25)])
def test_a_step_is_predicted_with_its_messages_as_they_are_sent(compression, message_s):
    """Two forwards and two backwards in turn, with a message after the first and after the third."""
    costs = pipesched.DeviceCost(1.0, 2.0, output_bytes=4_000_000)
    result = pipesched.train(
        "mlp:layers=4",
        spec("gpipe", num_microbatches=1),
        num_steps=2,
        batch_size=2,
        costs=costs,
        cluster=Cluster((Device(),) * 2, Link(bandwidth_bytes_per_s=8e6)),
        compression=compression,
    )
    assert result.summary().seconds_per_step == pytest.approx(6 + 2 * message_s)


def test_pipelines_that_are_averaged_take_a_batch_each():
    schedule = ScheduleSpec(name="avgpipe", num_ranks=2, num_microbatches=2, parameters={"pipelines": 2})
    costs = pipesched.DeviceCost(1.0, 2.0)
    training = prepare_training(MODEL, schedule, **HOW, costs=costs)
    assert training.samples_per_step == 2 * 8
    forecast = training.forecast
    # A device has two batches of 3 s in a step; 1F1B of two micro-batches adds a half at most.
    assert 2 * 3 <= forecast.time.period_s <= 2 * 3 * 1.5
    assert (forecast.staleness, forecast.weight_versions) == (0, 1)


@pytest.mark.distributed
def test_processes_follow_a_learning_rate_as_one_process_does():
    rate = {"lr_schedule": "step", "lr_milestones": [4], "lr_warmup": 2, "weight_decay": 0.1, "is_nesterov": True}
    for name in ("1f1b", "pipedream"):
        here = pipesched.train(MODEL, spec(name), **HOW, **rate)
        there = pipesched.train(MODEL, spec(name), **HOW, **rate, is_distributed=True)
        assert there.losses == pytest.approx(here.losses, rel=1e-12)
        assert there.held_out_loss == pytest.approx(here.held_out_loss, rel=1e-12)


def test_a_list_and_a_model_made_by_hand_train_as_their_names_do():
    made = replace(resolve_model(MODEL), name="made by hand")
    assert (
        pipesched.train(made, build("1f1b", 2, 2), **HOW).losses == pipesched.train(MODEL, spec("1f1b"), **HOW).losses
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpipe", "pipedream_2bw", "wpipe"])
def test_the_accuracy_on_the_way_is_that_of_a_run_which_ends_there(name):
    how = {
        "schedule": spec(name, 3 if name != "wpipe" else 2, 4),
        "batch_size": 32,
        "optimizer": "momentum",
        "lr": 0.02,
        "dtype": "float64",
    }
    looks = pipesched.train("digits:blocks=6", num_steps=8, held_out_every=4, **how).held_out_on_the_way
    ends = [pipesched.train("digits:blocks=6", num_steps=steps, **how) for steps in (4, 8)]
    assert [(looks[steps].accuracy, looks[steps].loss) for steps in (4, 8)] == [
        (end.held_out_accuracy, end.held_out_loss) for end in ends
    ]
    assert list(looks) == [4, 8]
    assert ends[0].held_out_accuracy != ends[1].held_out_accuracy  # it learns something in between


def test_replicas_of_a_stage_are_judged_once():
    looks = pipesched.train(MODEL, spec("chimera", 2, 4), **HOW, held_out_every=3).held_out_on_the_way
    plain = pipesched.train(MODEL, spec("gpipe"), **(HOW | {"num_steps": 3}))
    assert list(looks) == [3, 6]
    assert looks[3].loss == pytest.approx(plain.held_out_loss, rel=1e-9)


REACHING = {"num_steps": 40, "batch_size": 32, "optimizer": "momentum", "lr": 0.02, "dtype": "float64"}


@pytest.mark.parametrize("name", ["gpipe", "pipedream"])
def test_a_run_ends_at_the_first_evaluation_with_the_target_accuracy(name, tmp_path):
    """A run of the same number of steps has equal scores and weights."""
    export = tmp_path / "m.safetensors"
    looks = pipesched.train(MODEL, spec(name), **(REACHING | {"num_steps": 20}), held_out_every=5).held_out_on_the_way
    target = looks[20].accuracy
    first = next(steps for steps, scores in looks.items() if scores.accuracy >= target)
    began_s = time.perf_counter()
    result = pipesched.train(
        MODEL,
        spec(name),
        **REACHING,
        held_out_every=5,
        target_accuracy=target,
        export=export,
        costs=pipesched.DeviceCost(1.0, 2.0),
    )
    assert 0 < result.seconds_to_accuracy < time.perf_counter() - began_s
    ends = pipesched.train(MODEL, spec(name), **(REACHING | {"num_steps": first}), export=tmp_path / "n.safetensors")
    assert result.steps_to_accuracy == len(result.losses) == first <= 20
    assert (result.losses, result.held_out_accuracy) == (ends.losses, ends.held_out_accuracy)
    assert export.read_bytes() == (tmp_path / "n.safetensors").read_bytes()
    row = result.summary()
    assert (row.steps_to_accuracy, row.accuracy_measured_s) == (first, result.seconds_to_accuracy)
    assert 3.0 * first < row.accuracy_s < 4.5 * (first + 1)  # F 1 s and B 2 s a step, with the bubble of gpipe


def test_the_final_weights_count_as_an_evaluation_and_a_target_out_of_reach_ends_nothing():
    how = {"schedule": spec("1f1b"), **REACHING, "held_out_every": 15}
    end = pipesched.train(MODEL, **how)
    assert max(scores.accuracy for scores in end.held_out_on_the_way.values()) < end.held_out_accuracy
    reached = pipesched.train(MODEL, **how, target_accuracy=end.held_out_accuracy)
    assert (reached.steps_to_accuracy, reached.losses) == (40, end.losses)
    missed = pipesched.train(MODEL, **how, target_accuracy=1.0)
    assert (missed.steps_to_accuracy, missed.seconds_to_accuracy, missed.losses) == (None, None, end.losses)


def test_a_target_needs_samples_with_classes():
    with pytest.raises(pipesched.ArgumentError, match=r"^target_accuracy: got 0.5 for model mlp"):
        pipesched.train("mlp:layers=4", spec("gpipe"), num_steps=2, target_accuracy=0.5)


@pytest.mark.parametrize("changed", [{"is_distributed": True}, {"schedule": spec("avgpipe")}, {"held_out_every": 0}])
def test_what_nobody_could_judge_on_the_way_is_refused(changed):
    with pytest.raises(pipesched.ArgumentError, match=r"^held_out_every: got "):
        pipesched.train(MODEL, **({"schedule": spec("1f1b"), "held_out_every": 2} | HOW | changed))


def test_a_run_that_diverges_is_a_result():
    result = pipesched.train(MODEL, spec("pipedream"), **(HOW | {"lr": 1e6, "num_steps": 100, "optimizer": "sgd"}))
    assert result.diverged_at == len(result.losses) - 1 < 99
    assert result.held_out_loss is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"schedule": "1f1b"}, "schedule: got '1f1b', expected a specification with all counts"),
        ({"inject": ["kill:rank=1,op=1F0"]}, "inject: got kill:rank=1,op=1F0, expected `is_distributed=True`"),
        ({"advance": "auto", "is_distributed": True}, "advance: got auto for gpipe, which cannot run ahead"),
        ({"batch_size": 7}, "batch_size: got 7 samples for the 2 micro-batches of a step of gpipe"),
        ({"advance": "auto", "schedule": spec("avgpipe")}, "advance: got auto, expected `is_distributed=True`"),
        ({"averaging": "synchronous"}, "averaging: got synchronous with gpipe"),
        ({"partition": "balanced"}, "partition: got balanced without `profile`"),
        ({"is_nesterov": True, "optimizer": "adam"}, "is_nesterov: got True with optimizer adam, expected momentum"),
        ({"lr_schedule": "step"}, "lr_milestones: got none with schedule step, expected steps"),
        ({"lr_milestones": [3]}, "lr_milestones: got 3 with schedule constant, expected step"),
        ({"lr_schedule": "step", "lr_milestones": [3, 2]}, "lr_milestones: got 3,2, expected increasing steps"),
        ({"lr_schedule": "step", "lr_milestones": 2, "lr_warmup": 2}, "lr_milestones: got 2, expected more than the 2"),
        ({"lr_schedule": "linear", "lr_warmup": 6}, "lr_warmup: got 6, expected fewer than the 6 steps of schedule"),
        ({"lr_schedule": "cosine", "lr_steps": 5}, "lr_steps: got 5, expected at least 6, the steps of the run"),
        ({"lr_end": 0.1}, "lr_end: got 0.1 with schedule constant, expected cosine or linear"),
        ({"target_accuracy": 0.5, "is_distributed": True}, "target_accuracy: got 0.5 with a process per rank"),
        ({"target_accuracy": 0.5, "checkpoint": "run"}, "target_accuracy: got 0.5 with checkpoints, expected none"),
        ({"held_out_every": 5, "schedule": spec("avgpipe")}, "held_out_every: got 5 with pipelines that are averaged"),
        ({"lr_schedule": "step", "lr_milestones": [3, 6]}, "lr_milestones: got 6, expected steps below 6, the end"),
        ({"transport": "processes"}, "transport: got this setting with all ranks in one process"),
        ({"transport": "streams", "is_distributed": True}, "transport: got streams with a process per rank"),
        ({"has_green_contexts": True}, "has_green_contexts: got True without streams of a GPU"),
        ({"timeout_s": 5.0}, "timeout_s: got this setting with all ranks in one process"),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pipesched.ArgumentError) as refused:
        pipesched.train(MODEL, **({"schedule": spec("gpipe")} | HOW | arguments))
    assert str(refused.value).startswith(words)


def test_milestones_may_be_after_the_end_of_a_run_that_may_continue(tmp_path):
    """The first steps of a longer run, as its resumed rest has them."""
    how = HOW | {"lr_schedule": "step", "lr_milestones": (2, 5)}
    whole = pipesched.train(MODEL, spec("gpipe"), **how)
    begun = pipesched.train(MODEL, spec("gpipe"), **(how | {"num_steps": 4}), checkpoint=tmp_path)
    assert begun.losses == whole.losses[:4]
    assert pipesched.train(MODEL, spec("gpipe"), **how, resume=tmp_path).losses == whole.losses


def test_settings_of_streams_are_those_of_a_training_in_one_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    on_streams = TrainSettings(device="cuda", transport="streams", has_green_contexts=True, timeout_s=5.0)
    require_trainable(on_streams)
    apart = replace(on_streams, transport="auto", is_distributed=True)
    with pytest.raises(pipesched.ArgumentError, match="has_green_contexts: got True with a process per rank, expected"):
        require_trainable(apart)


def test_the_note_of_a_training_says_whether_launching_bounds_it():
    def notes(launching):
        trained = Trained(ScoreTable((0.5, 0.5)), None, None, launching=launching)
        return TrainingResult("gpipe", MODEL, 1, trained).notes

    assert notes(None) == notes(LaunchTimes()) == []
    (free,) = notes(LaunchTimes(2.0, 8.0, num_passes=2, num_bound=1))
    assert free == "one thread launched the ops of all ranks in 2 s of 8 s, including waits for full launch queues"
    (bound,) = notes(LaunchTimes(7.0, 8.0, num_passes=1, num_bound=1))
    assert bound.endswith("in 7 s of 8 s, which bounds the run: try larger micro-batches, or `is_distributed=True`")
