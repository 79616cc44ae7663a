"""The library trains: in this process, with a process per rank, or as a rank of torchrun's."""

from dataclasses import replace

import pytest

import pipesched
from pipesched.profiles.models import resolve_model
from pipesched.schedules.builders import build
from tests.workflows.test_running import torchrun

MODEL = "digits:width=8,blocks=4"
HOW = {"num_ranks": 2, "num_steps": 6, "batch_size": 8, "dtype": "float64", "optimizer": "momentum", "lr": 0.05}


def test_a_training_run_says_what_came_of_every_step_and_of_the_final_weights():
    told = []
    result = pipesched.train(MODEL, "pipedream", **HOW, on_step=lambda step, scores: told.append((step, scores.loss)))
    assert told == list(enumerate(result.losses))
    assert len(result.losses) == len(result.accuracies) == 6
    assert 0 <= result.held_out_accuracy <= 1
    assert result.diverged_at is None
    assert list(result.to_frame().columns) == ["loss", "accuracy"]
    assert result.plot().axes
    assert "pipedream" in result._repr_html_()


def test_costs_predict_when_each_loss_is_known():
    result = pipesched.train(MODEL, "gpipe", **HOW, costs=pipesched.DeviceCost(1.0, 2.0))
    frame = result.to_frame()
    assert list(frame["predicted_s"]) == sorted(frame["predicted_s"])
    summary = result.summary(target_loss=100.0)
    assert (summary.run_s, summary.staleness) == (pytest.approx(6 * 4.5), 0)
    assert summary.steps_to_target == 1


@pytest.mark.distributed
def test_processes_and_a_list_train_as_a_name_does_in_this_process():
    named = pipesched.train(MODEL, "1f1b", **HOW)
    distributed = pipesched.train(MODEL, "1f1b", **HOW, is_distributed=True)
    counts = {name: value for name, value in HOW.items() if name != "num_ranks"}
    lists = pipesched.train(resolve_model(MODEL), build("1f1b", 2, 2), **counts)
    assert distributed.losses == pytest.approx(named.losses, rel=1e-12)
    assert distributed.held_out_loss == pytest.approx(named.held_out_loss, rel=1e-12)
    assert lists.losses == named.losses
    pipesched.close()


def test_a_model_made_by_hand_trains_in_this_process():
    made = replace(resolve_model(MODEL), name="made by hand")
    assert pipesched.train(made, "gpipe", **HOW).losses == pipesched.train(MODEL, "gpipe", **HOW).losses


def test_a_run_that_diverges_is_a_result():
    result = pipesched.train(MODEL, "pipedream", **(HOW | {"lr": 1e6, "num_steps": 100, "optimizer": "sgd"}))
    assert result.diverged_at == len(result.losses) - 1 < 99
    assert result.held_out_loss is None


@pytest.mark.distributed
def test_a_script_under_torchrun_trains_as_its_rank(tmp_path):
    script = f"""
import json, os, pipesched
result = pipesched.train({MODEL!r}, "1f1b", **{HOW!r})
with open("said" + os.environ["RANK"], "w") as file:
    json.dump(result.losses, file)
"""
    first, second = torchrun(script, tmp_path)
    assert first == second
    assert first == pytest.approx(pipesched.train(MODEL, "1f1b", **HOW).losses, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"schedule": "1f1b", "num_ranks": None}, "num_ranks: got none with schedule 1f1b"),
        ({"schedule": build("1f1b", 2, 2)}, "num_ranks: got 2, expected it beside a schedule's name"),
        ({"batch_size": 7}, "batch_size: got 7 samples for the 2 micro-batches of a step of gpipe"),
        ({"advance": "auto", "schedule": "avgpipe"}, "advance: got auto, expected `is_distributed`"),
        ({"averaging": "synchronous"}, "averaging: got synchronous with gpipe"),
        ({"partition": "balanced"}, "partition: got balanced without `profile`"),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(arguments, words):
    with pytest.raises(pipesched.ArgumentError) as refused:
        pipesched.train(MODEL, **({"schedule": "gpipe"} | HOW | arguments))
    assert str(refused.value).startswith(words)
