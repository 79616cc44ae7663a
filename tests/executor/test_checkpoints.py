"""A training run that goes on from a checkpoint computes, bit by bit, what it would have computed undisturbed."""

import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import pipesched
from pipesched.executor import RankFailed
from pipesched.executor.rank_command import _run_unlaunched
from pipesched.executor.runs import launch_training
from pipesched.executor.training import checkpoint_folder, find_checkpoint, read_index
from pipesched.executor.training.checkpoint_index import write_lasting
from pipesched.profiles.models import build_layers, resolve_model
from pipesched.schedules.formats import to_json
from pipesched.schedules.transforms import ScheduleSpec
from tests.executor.checkpoint_runs import EVERY, LAYERS, MODEL, SCHEMES, STEPS, a_job, locally, refused, write_three


class Killed(BaseException):
    """Ends a run as a signal that nobody handles would."""


def killed_at(step):
    def on_step(now, scores):
        if now == step:
            raise Killed

    return on_step


def digests(folder, steps=STEPS):
    return read_index(checkpoint_folder(folder, steps)).files


COSINE = {"lr_schedule": "cosine", "lr_warmup": 2, "lr_end": 0.1}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_run_that_is_killed_and_goes_on_ends_as_one_that_was_not(scheme, tmp_path):
    """The last checkpoints have the same files, bit by bit: weights, optimizers, predictors, references and losses."""
    given = {"training": COSINE}
    undisturbed = locally(a_job(scheme, tmp_path / "whole", **given))
    with pytest.raises(Killed):
        locally(a_job(scheme, tmp_path / "cut", **given), killed_at(5))
    start, index = find_checkpoint(tmp_path / "cut")
    assert (start.name, index.steps) == ("step00000003", 3)
    assert locally(a_job(scheme, tmp_path / "cut", start=start, **given)) == undisturbed
    assert len(undisturbed.steps) == STEPS
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")
    # up to the first checkpoint it is the run without any; after it, if nothing is in flight there by itself
    without = locally(a_job(scheme, **given))
    is_drained = pipesched.CATALOGUE[SCHEMES[scheme].get("name", scheme)].traits.is_asynchronous
    same = EVERY if is_drained else STEPS
    assert undisturbed.steps[:same] == without.steps[:same]


@pytest.mark.distributed
def test_processes_go_on_from_what_one_process_wrote_also_where_one_is_killed_and_the_other_way_round(tmp_path):
    """Told to leave, the processes do so after a step; if they do not come to hear of it, at the end."""
    whole, cut, mark = tmp_path / "whole", tmp_path / "cut", tmp_path / "killed"
    model = f"tests.executor.faulty_models:killed_once:mark={mark}"
    given = {"every": 1, "num_ranks": 1, "model": model}
    mark.touch()
    undisturbed = locally(a_job("avgpipe", whole, steps=20, **given))
    locally(a_job("avgpipe", cut, steps=3, **given))
    mark.unlink()
    told, restarts = [], []
    paused = launch_training(
        a_job("avgpipe", cut, start=find_checkpoint(cut)[0], steps=20, **given),
        lambda *step: told.append(step),
        is_asked=lambda: len(told) > 6,
        restarts=1,
        on_restart=lambda error, steps: restarts.append((str(error), steps)),
    )
    ((failure, steps),) = restarts
    assert steps in (4, 5), "two micro-batches a step, and the sixth of the process killed it"
    assert "was killed by signal 9" in failure
    assert paused.failures == (failure,)
    assert paused.is_paused == (len(paused.steps) < 20)
    assert told == list(enumerate(undisturbed.steps[: len(paused.steps)]))
    start, index = find_checkpoint(cut)
    assert index.steps == len(paused.steps) > 6
    assert locally(a_job("avgpipe", cut, start=start, steps=20, **given)) == undisturbed
    assert digests(cut, 20) == digests(whole, 20)


def test_the_newest_are_kept_and_a_request_is_heard_after_the_next(tmp_path):
    asked = []
    job = a_job("1f1b", tmp_path, every=2)
    job = replace(job, job=replace(job.job, checkpoints=replace(job.job.checkpoints, keep=2)))
    paused = locally(job, lambda step, scores: asked.append(step), is_asked=lambda: asked[-1] == 6)
    assert (paused.is_paused, len(paused.steps)) == (True, 7)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step00000006", "step00000007"]
    paused = locally(a_job("pipedream", tmp_path / "p", every=2), is_asked=lambda: True)
    assert len(paused.steps) == 2


ADAM = {"optimizer": "adam", "dtype": "float64", "training": COSINE}


@pytest.fixture(scope="module")
def halfway(tmp_path_factory):
    """Return the folder of a run of 1F1B that was killed, and the tensors at its end if it was not."""
    whole, cut = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("cut")
    locally(a_job("1f1b", whole, **ADAM))
    with pytest.raises(Killed):
        locally(a_job("1f1b", cut, **ADAM), killed_at(5))
    return cut, tensors(whole)


@pytest.mark.parametrize(
    ("scheme", "num_ranks", "bounds"),
    [("gpipe", 3, None), ("1f1b", 2, ((0, 1), (1, 6))), ("zbv", 2, None), ("chimera", 2, None)],
)
def test_where_only_the_mean_gradient_counts_another_pipeline_goes_on_bit_by_bit(
    scheme, num_ranks, bounds, halfway, tmp_path
):
    """Dropout too: random numbers follow the layer and the micro-batch. Chimera alone sums in another order."""
    cut, undisturbed = halfway
    folder = shutil.copytree(cut, tmp_path / "cut")
    given = {"num_ranks": num_ranks, **ADAM} | ({} if bounds is None else {"bounds": bounds})
    locally(a_job(scheme, folder, start=find_checkpoint(folder)[0], **given))
    state = tensors(folder)
    assert state.keys() == undisturbed.keys()
    near = {"rtol": 1e-12 if scheme == "chimera" else 0, "atol": 0, "equal_nan": True}
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, undisturbed[name], **near)


@pytest.mark.parametrize(
    ("steps", "training", "said"),
    [
        (STEPS, COSINE | {"lr_end": 0.2}, "end 0.1', not '0.05, cosine, steps 8, warmup 2, end 0.2'"),
        (STEPS, {}, "got a checkpoint of another run (lr '0.05, cosine, steps 8"),
        (24, COSINE, "not '0.05, cosine, steps 24"),  # a longer run has another rate in the same step
    ],
)
def test_a_learning_rate_that_would_have_been_another_is_refused(steps, training, said, halfway):
    cut, _ = halfway
    job = a_job("1f1b", cut, start=find_checkpoint(cut)[0], steps=steps, **ADAM | {"training": training})
    assert said in refused(locally, job)


def tensors(folder):
    """Return all tensors of the last checkpoint, by name: weights, optimizer and losses."""
    files = checkpoint_folder(folder, STEPS).glob("*.safetensors")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


@pytest.fixture
def written(tmp_path):
    """Return a folder of checkpoints after 3, 6 and 8 steps, with what an interrupted one has left."""
    write_three(tmp_path)
    return tmp_path


def test_a_checkpoint_of_another_run_is_refused_with_what_differs(written):
    start, _ = find_checkpoint(written)
    message = refused(locally, a_job("1f1b", written, start=start, lr=0.1, steps=9))
    assert "another run (lr '0.05', not '0.1'), expected" in message
    message = refused(locally, a_job("pipedream", written, start=start, bounds=((0, 2), (2, 6)), steps=9))
    assert "schedule '1f1b', not 'pipedream'" in message
    assert (
        "partition '3,3', not '2,4'), expected one of this run; weights move to other stages only between " in message
    )
    assert "after 8 steps, expected at most 7" in refused(locally, a_job("1f1b", written, start=start, steps=7))
    assert f"try `resume={written}`" in refused(locally, a_job("1f1b", written))
    assert "got no checkpoint there" in refused(find_checkpoint, written / "step00000009")


def test_lists_are_left_only_after_all_of_their_steps(tmp_path):
    lists = pipesched.build("pipedream", 2, 2)
    spec = a_job("pipedream", tmp_path, steps=4, every=3)
    spec = replace(spec, job=replace(spec.job, schedule_spec=ScheduleSpec(lists=to_json(lists))))
    assert "expected a multiple of 2, the steps in the lists of pipedream; try 2" in refused(locally, spec)


@pytest.mark.parametrize("step", ["temporary", "rename"])
def test_a_process_that_is_killed_while_it_writes_leaves_no_checkpoint(step, written):
    """The child dies before, or after, the renaming of a file that is not the index."""
    newest, index = find_checkpoint(written)
    child = os.fork()
    if not child:
        rename = Path.replace

        def die(path, target):
            if step == "rename":
                rename(path, target)
            os.kill(os.getpid(), signal.SIGKILL)

        Path.replace = die
        try:
            write_lasting(checkpoint_folder(written, 12) / "losses.safetensors", b"all of it")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(list((written / "step00000012").iterdir())) == 1
    assert find_checkpoint(written) == (newest, index)


def test_the_library_pauses_on_a_signal_goes_on_and_exports_a_plain_state_dict(tmp_path):
    given = {"batch_size": 4, "optimizer": "momentum", "lr": 0.05}
    gpipe = pipesched.build("gpipe", 2, 2)

    def signal_at_3(step, scores):
        if step == 3:
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.getsignal(signal.SIGUSR1)
    paused = pipesched.train(
        MODEL, gpipe, num_steps=6, checkpoint=tmp_path / "c", every=2, on_step=signal_at_3, **given
    )
    assert (paused.is_paused, len(paused.losses)) == (True, 4)
    assert signal.getsignal(signal.SIGUSR1) == before
    whole = tmp_path / "whole.safetensors"
    result = pipesched.train(MODEL, gpipe, num_steps=6, resume=tmp_path / "c", export=whole, **given)
    undisturbed = pipesched.train(MODEL, gpipe, num_steps=6, export=tmp_path / "plain.safetensors", **given)
    assert result.losses == undisturbed.losses
    module = build_layers(resolve_model(MODEL), 0, LAYERS, seed=0)
    module.load_state_dict(load_file(whole))
    for name, tensor in load_file(tmp_path / "plain.safetensors").items():
        assert torch.equal(tensor, module.state_dict()[name]), name
    with pytest.raises(pipesched.ArgumentError, match=re.escape("every: got 2 without `checkpoint`")):
        pipesched.train(MODEL, gpipe, every=2, **given)


def test_torchrun_starts_a_rank_again_from_the_newest_checkpoint(written, monkeypatch):
    """What an agent starts for the first time would find the folder taken."""
    specs = []
    monkeypatch.setattr("pipesched.executor.rank_command.run_rank", lambda spec, *_, **__: specs.append(spec))
    page = SimpleNamespace(device_row=lambda rank: None)
    watch = SimpleNamespace(at=None, page=page, drain_page=SimpleNamespace(gate=lambda rank, is_asked: None))
    for restart in (0, 1):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restart))
        _run_unlaunched(a_job("1f1b", written), watch)
    assert [spec.job.checkpoints.start for spec in specs] == [None, str(written / "step00000008")]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("scheme", "fault", "told"),
    [
        ("1f1b", "raise", "1F16@4 (micro-batch 16): a fault was injected here"),
        ("pipedream", "kill", "1F4@4 (micro-batch 4): the process was killed by signal 9"),
    ],
)
def test_an_op_that_fails_is_named_as_in_a_run_without_checkpoints(scheme, fault, told, tmp_path):
    """Also by who only knows it from outside: micro-batches and versions are counted over all steps."""
    job = a_job(scheme, tmp_path, steps=6, inject=(f"{fault}:rank=1,op=1F0,step=4",))
    with pytest.raises(RankFailed, match=f"^rank 1 failed at {re.escape(told)}$"):
        launch_training(job)


@pytest.mark.distributed
def test_ranks_whose_disks_take_longer_than_one_may_wait_do_not_stand_still(tmp_path):
    """They write two checkpoints, the second one in the end."""
    model = "tests.executor.faulty_models:with_a_slow_disk:seconds=0.4"
    launch_training(a_job("1f1b", tmp_path, steps=4, every=2, model=model, timeout_s=1.0))
    assert find_checkpoint(tmp_path)[1].steps == 4
