"""The library runs schedules: with processes of its own, which it ends, or as a rank of torchrun's."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

import pipesched
from pipesched.profiles.models import resolve_model
from pipesched.schedules.builders import build
from tests.executor.models import dropping

ROOT = Path(__file__).parents[3]
MODEL = "mlp:width=8,layers=4"
COUNTS = {"num_ranks": 2, "num_microbatches": 4}
LISTS = build("1f1b", 2, 4)
FEW = {"iterations": 2, "warmup": 0}

pytestmark = pytest.mark.distributed


def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_a_function_of_a_module_is_run_as_its_name_is_and_its_result_is_drawn():
    result = pipesched.run(LISTS, partial(dropping, layers=4), **FEW)
    assert result.losses == pipesched.run(LISTS, "tests.executor.models:dropping:layers=4", **FEW).losses
    assert pipesched.gantt(result).timelines == (result.timeline,)
    assert pipesched.trace(result).timelines == (result.timeline,)
    assert "run 1 and run 2" in repr(pipesched.compare_runs(result, result))


def test_a_function_that_no_other_process_finds_is_refused():
    for function in (lambda: None, len([]).__add__, partial(lambda layers: None, layers=4)):
        with pytest.raises(pipesched.ArgumentError, match=r"^model: got .*, expected a Model, a name"):
            pipesched.run(LISTS, function)


def test_a_run_says_what_it_measured():
    result = pipesched.run(LISTS, MODEL, **FEW, optimizer="sgd")
    assert result.schedule == build("1f1b", 2, 4)
    assert result.timeline.source == "measured"
    assert len(result.makespans_s) == 2
    assert result.makespan_s == min(result.makespans_s), "the lower one of two is the median"
    assert len(result.losses) == 4
    assert result.first_loss == pytest.approx(sum(result.losses) / 4)
    assert list(result.to_frame()["device"]) == [0, 1]
    assert result.to_dict()["makespans_s"] == result.makespans_s
    assert "1f1b, measured" in result._repr_html_()
    assert result.plot().axes


def test_emulated_stages_take_their_costs():
    result = pipesched.run(LISTS, pipesched.uniform(2, 0.01, 0.02), **FEW)
    assert result.losses == ()
    assert result.first_loss is None
    assert min(device.busy_s for device in result.metrics.devices) >= 4 * 0.03


def test_after_a_session_no_process_is_left_and_signals_are_as_before():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    pipesched.close()
    others = children()
    with pipesched.session():
        pipesched.run(LISTS, pipesched.Setup(pipesched.uniform(2, 0.001, 0.002)), **FEW)
        assert len(children()) == len(others) + 1, "the server is kept for the next run"
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert children() == others
    pipesched.close()  # nothing is left to end
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": None}, "model: got None, expected a Model, a name"),
        ({"model": MODEL, "backend": "nccl"}, "backend: got nccl with `device=cpu`"),
        ({"model": MODEL, "averaging": "synchronous"}, "averaging: got synchronous with 1f1b"),
        ({"model": MODEL, "partition": "balanced"}, "partition: got balanced without `profile`"),
        ({"model": MODEL, "dtype": "float16"}, "dtype: got float16 with adamw"),
        (
            {"model": pipesched.uniform(2, 1.0, 2.0), "microbatch_size": 2},
            "microbatch_size: got this argument beside a Setup",
        ),
        (
            {"model": pipesched.uniform(2, 1.0, 2.0), "compression": "half"},
            "compression: got this argument beside a Setup",
        ),
        ({"model": pipesched.uniform(2, 1.0, 2.0), "is_finite_checked": True}, "is_finite_checked: got True with co"),
        ({"model": pipesched.uniform(2, 1.0, 2.0), "inject": ["kill:rank=2,op=0F0"]}, "inject: got rank 2, expected"),
        ({"model": MODEL, "inject": "kill"}, "inject: got 'kill', expected a list of texts; try ['kill']"),
        ({"model": pipesched.uniform(2, 100.0, 200.0)}, "timeout_s: got 60 s, but"),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(arguments, words):
    with pytest.raises(pipesched.ArgumentError) as refused:
        pipesched.run(LISTS, **arguments)
    assert str(refused.value).startswith(words)


def test_a_model_that_other_processes_cannot_make_is_refused(monkeypatch):
    from dataclasses import replace

    def other_loss(outputs, targets):
        return 777 * (outputs - targets).square().mean()

    made = resolve_model(MODEL)
    for model in (replace(made, name="made by hand"), replace(made, loss=other_loss)):
        with pytest.raises(pipesched.ArgumentError, match=f"model: got '{model.name}', which other processes cannot b"):
            pipesched.run(LISTS, model)
    monkeypatch.setattr("__main__.make", lambda: made, raising=False)
    with pytest.raises(
        pipesched.ArgumentError, match="model: got '__main__:make', which other processes cannot import"
    ):
        pipesched.run(LISTS, "__main__:make")


@pytest.mark.parametrize(
    "entry",
    [
        partial(pipesched.run, LISTS, MODEL),
        partial(pipesched.train, MODEL, LISTS, num_steps=1, batch_size=4, is_distributed=True),
    ],
)
def test_weights_are_not_saved_where_there_is_no_folder_to_make_theirs_in(tmp_path, entry):
    with pytest.raises(ValueError, match=r"none/weights: got no folder '.*none', expected one; try creating it first"):
        entry(save=str(tmp_path / "none" / "weights"))
    assert list(tmp_path.iterdir()) == []


def test_a_profile_is_what_a_simulation_takes(tmp_path):
    measured = pipesched.profile(MODEL, [1, 2], repeats=1, warmup=1, splits=False)
    assert list(measured.to_frame()["layer"]) == [0, 0, 1, 1, 2, 2, 3, 3]
    measured.save(tmp_path / "profile.json")
    assert pipesched.load_profile(tmp_path / "profile.json") == measured.profile
    assert pipesched.simulate(pipesched.build("1f1b", **COUNTS), measured.profile).makespan_s > 0
    assert MODEL in measured._repr_html_()
