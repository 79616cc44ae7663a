"""Training runs with checkpoints, for the tests."""

import signal
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pipesched.executor import ExecutionError
from pipesched.executor.launch import CheckpointSettings, RunSpec, Train
from pipesched.executor.runs import train_locally, training_of
from pipesched.profiles.models import resolve_model
from pipesched.schedules import PredictionRule
from pipesched.schedules.transforms import ScheduleSpec
from tests.executor.pipelines import even_bounds

MODEL, LAYERS = "tests.executor.models:dropping:layers=6", 6
STEPS, EVERY = 8, 3
SCHEMES = {
    "1f1b": {},
    "chimera": {},
    "pipedream": {},
    "pipedream_2bw": {"optimizer": "adamw"},
    "wpipe": {},
    "1f1b_rr": {},
    "spectrain": {"optimizer": "sgd"},
    "xpipe": {},
    "pipeoptim": {"prediction": PredictionRule.CONSTANT},
    "hybrid": {"parameters": {"pipelined": 5}},
    "avgpipe": {"parameters": {"pipelines": 2}},
    "synchronous": {"name": "avgpipe", "parameters": {"pipelines": 2}, "averaging": "synchronous"},
}


def a_job(scheme, folder=None, *, start=None, steps=STEPS, every=EVERY, num_ranks=2, training=None, **fields):
    """Return a job, with checkpoints if there is a folder for them; `training` has more fields of `Train`."""
    given = {"optimizer": "momentum", "lr": 0.05, "seed": 3, "model": MODEL, **SCHEMES.get(scheme, {}), **fields}
    parameters, name = given.pop("parameters", {}), given.pop("name", scheme)
    schedule_spec = ScheduleSpec(name=name, num_ranks=num_ranks, num_microbatches=4, parameters=parameters)
    settings = CheckpointSettings(folder=str(folder), every=every, start=start and str(start))
    settings = None if folder is None else settings
    num_layers = len(resolve_model(given["model"]).layers)
    given.setdefault("bounds", even_bounds(num_layers, schedule_spec.run(steps).lists(steps).num_stages))
    job = Train(schedule_spec=schedule_spec, num_steps=steps, batch_size=8, checkpoints=settings, **training or {})
    return RunSpec(job=job, **given)


def locally(job, on_step=None, **how):
    return train_locally(training_of(job), on_step, **how)


@cache
def three_checkpoints():
    """Train once, as each checkpoint waits for the disk; return the content of each file by its path."""
    with TemporaryDirectory() as folder:
        locally(a_job("1f1b", folder))
        return {path.relative_to(folder): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def write_three(folder):
    """Fill a folder of checkpoints after 3, 6 and 8 steps, with what an interrupted one has left."""
    for path, content in three_checkpoints().items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content)
    (folder / "step00000009").mkdir()
    (folder / "step00000009" / ".rank0-stage0.safetensors.0123abcd.tmp").write_bytes(b"half")
    (folder / "step00000010").mkdir()
    (folder / "step00000010" / "notes.txt").write_text("of the user")


def refused(call, *arguments):
    with pytest.raises(ExecutionError) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def listening(agent, told=signal.SIGUSR1):
    """Return the ranks of torchrun's agent that have a handler for a signal."""
    ranks = []
    try:
        for pid in map(int, Path(f"/proc/{agent}/task/{agent}/children").read_text().split()):
            status = Path(f"/proc/{pid}/status").read_text()
            caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt:")).split()[1], 16)
            ranks += [pid] if caught >> (told - 1) & 1 else []
    except OSError:
        return []
    return ranks
