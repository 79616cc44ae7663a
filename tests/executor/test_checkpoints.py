"""A training run that goes on from a checkpoint computes, bit by bit, what it would have computed undisturbed."""

import os
import re
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


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_run_that_is_killed_and_goes_on_ends_as_one_that_was_not(scheme, tmp_path):
    """The last checkpoints have the same files, bit by bit: weights, optimizers, predictors, references and losses."""
    undisturbed = locally(a_job(scheme, tmp_path / "whole"))
    with pytest.raises(Killed):
        locally(a_job(scheme, tmp_path / "cut"), killed_at(5))
    start, index = find_checkpoint(tmp_path / "cut")
    assert (start.name, index.steps) == ("step00000003", 3)
    resumed = locally(a_job(scheme, tmp_path / "cut", start=start))
    assert resumed == undisturbed
    assert len(resumed.steps) == STEPS
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")
    # up to the first checkpoint it is the run without any; after it, if nothing is in flight there by itself
    without = locally(a_job(scheme, None))
    is_drained = pipesched.CATALOGUE[SCHEMES[scheme].get("name", scheme)].traits.is_asynchronous
    same = EVERY if is_drained else STEPS
    assert undisturbed.steps[:same] == without.steps[:same]


RATES = {
    "cosine": {"lr_schedule": "cosine", "lr_warmup": 2, "lr_end": 0.1},
    "step": {"lr_schedule": "step", "lr_milestones": (2, 5), "lr_factor": 0.5, "weight_decay": 0.1},
    "linear": {"lr_schedule": "linear", "lr_warmup": 5},
    "polynomial": {"lr_schedule": "polynomial", "lr_power": 2.0},
    "warm-up": {"lr_warmup": 6, "is_nesterov": True},
}


@pytest.mark.parametrize(
    ("scheme", "rate"),
    [
        *(("1f1b", rate) for rate in RATES),
        *((scheme, "cosine") for scheme in ("pipedream", "1f1b_rr", "xpipe", "pipeoptim", "hybrid", "avgpipe")),
    ],
)
def test_a_schedule_of_the_learning_rate_goes_on_bit_by_bit(scheme, rate, tmp_path):
    given = {"learning": RATES[rate]}
    undisturbed = locally(a_job(scheme, tmp_path / "whole", **given))
    with pytest.raises(Killed):
        locally(a_job(scheme, tmp_path / "cut", **given), killed_at(5))
    start = find_checkpoint(tmp_path / "cut")[0]
    assert locally(a_job(scheme, tmp_path / "cut", start=start, **given)) == undisturbed
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")
    assert undisturbed.steps != locally(a_job(scheme, tmp_path / "constant")).steps
    same = {"steps": 3 * STEPS, "folder": tmp_path / "cut", "start": checkpoint_folder(tmp_path / "cut", STEPS)}
    if "lr_schedule" in RATES[rate] and rate != "step":  # a longer run has another rate in the same step
        message = refused(locally, a_job(scheme, **same, **given))
        assert f"{RATES[rate]['lr_schedule']}, steps 8" in message
        assert f"{RATES[rate]['lr_schedule']}, steps 24" in message


def test_the_learning_rate_of_a_checkpoint_goes_on_in_other_stages(tmp_path):
    given = {"learning": RATES["cosine"], "dtype": "float64"}
    undisturbed = locally(a_job("1f1b", tmp_path / "whole", **given))
    with pytest.raises(Killed):
        locally(a_job("1f1b", tmp_path / "cut", **given), killed_at(5))
    start = find_checkpoint(tmp_path / "cut")[0]
    assert locally(a_job("gpipe", tmp_path / "cut", start=start, num_ranks=3, **given)).steps == undisturbed.steps
    other = {"learning": RATES["cosine"] | {"lr_end": 0.2}, "dtype": "float64"}
    assert "end 0.1', not '0.05, cosine, steps 8, warmup 2, end 0.2'" in refused(
        locally, a_job("1f1b", tmp_path / "cut", start=start, **other)
    )
    constant = refused(locally, a_job("1f1b", tmp_path / "cut", start=start, dtype="float64"))
    assert "got a checkpoint of another run, of lr '0.05, cosine, steps 8" in constant


@pytest.mark.distributed
def test_processes_go_on_from_what_one_process_wrote_also_where_one_is_killed_and_the_other_way_round(tmp_path):
    """Told to leave, the processes do so after a step; if they do not come to hear of it, at the end."""
    whole, cut, mark = tmp_path / "whole", tmp_path / "cut", tmp_path / "killed"
    model = f"tests.executor.faulty_models:killed_once:mark={mark}"
    given = {"every": 1, "num_ranks": 1, "model": model, "bounds": ((0, 3),)}
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


@pytest.mark.parametrize(
    ("scheme", "num_ranks", "bounds"),
    [("gpipe", 3, None), ("1f1b", 2, ((0, 1), (1, 6))), ("zbv", 2, None), ("chimera", 2, None)],
)
def test_where_only_the_mean_gradient_counts_another_pipeline_goes_on_bit_by_bit(scheme, num_ranks, bounds, tmp_path):
    """Dropout too: random numbers follow the layer and the micro-batch. Chimera alone sums in another order."""
    fields = {"optimizer": "adam", "dtype": "float64"}
    locally(a_job("1f1b", tmp_path / "whole", **fields))
    with pytest.raises(Killed):
        locally(a_job("1f1b", tmp_path / "cut", **fields), killed_at(5))
    given = fields | {"num_ranks": num_ranks} | ({} if bounds is None else {"bounds": bounds})
    locally(a_job(scheme, tmp_path / "cut", start=find_checkpoint(tmp_path / "cut")[0], **given))
    state, undisturbed = tensors(tmp_path / "cut"), tensors(tmp_path / "whole")
    assert state.keys() == undisturbed.keys()
    near = {"rtol": 1e-12 if scheme == "chimera" else 0, "atol": 0, "equal_nan": True}
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, undisturbed[name], **near)


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
    assert "another run, of lr '0.05', not '0.1', expected" in message
    message = refused(locally, a_job("pipedream", written, start=start, bounds=((0, 2), (2, 6)), steps=9))
    assert "schedule '1f1b', not 'pipedream'" in message
    assert "partition '3,3', not '2,4', expected one of this run, as weights are only dealt anew where " in message
    assert "after 8 steps, expected at most the 7" in refused(locally, a_job("1f1b", written, start=start, steps=7))
    assert f"try `resume={written}`" in refused(locally, a_job("1f1b", written))
    assert "no checkpoint in it" in refused(find_checkpoint, written / "step00000009")


def test_lists_are_left_only_after_all_of_their_steps(tmp_path):
    lists = pipesched.build("pipedream", 2, 2)
    spec = a_job("pipedream", tmp_path, steps=4, every=3)
    spec = replace(spec, job=replace(spec.job, schedule_spec=ScheduleSpec(lists=to_json(lists))))
    assert "expected a multiple of the 2 of the lists of pipedream; try 2" in refused(locally, spec)


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
@pytest.mark.parametrize("scheme", ["1f1b", "pipedream"])
def test_an_op_that_fails_is_named_as_in_a_run_without_checkpoints(scheme, tmp_path):
    """Also by who only knows it from outside: micro-batches and versions are counted over all steps."""
    for fault in ("raise", "kill"):
        messages = []
        for folder in (tmp_path / fault, None):
            job = a_job(scheme, folder, steps=6, inject=(f"{fault}:rank=1,op=1F0,step=4",))
            with pytest.raises(RankFailed) as error:
                launch_training(job)
            messages.append(str(error.value))
        assert messages[0] == messages[1]
        assert re.match(r"rank 1 failed at 1F(16|4)@\d \(micro-batch (16|4)\): ", messages[0])


@pytest.mark.distributed
def test_ranks_whose_disks_take_longer_than_one_may_wait_do_not_stand_still(tmp_path):
    """They write two checkpoints, the second one in the end."""
    model = "tests.executor.faulty_models:with_a_slow_disk:seconds=0.4"
    launch_training(a_job("1f1b", tmp_path, steps=4, every=2, model=model, bounds=((0, 1), (1, 3)), timeout_s=1.0))
    assert find_checkpoint(tmp_path)[1].steps == 4
