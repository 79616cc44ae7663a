import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from pipesched.executor.errors import ExecutionError
from pipesched.executor.job import DTYPES, Job, job_from_json, job_to_json
from pipesched.executor.training_job import TrainingJob
from pipesched.profiles.models.optimizers import OPTIMIZERS
from pipesched.profiles.stage_costs import StageCost, StageCosts
from pipesched.schedules.catalogue import build
from pipesched.schedules.recipe import Recipe
from tests.executor.pipelines import job

COSTS = StageCosts((StageCost(0.25, 0.5, output_bytes=7), StageCost(1e-9, None, 0.1, 0.2, saved_for_weight_bytes=3)), 4)


@pytest.mark.parametrize(
    "made",
    [
        job(build("gpipe", 2, 3)),
        job(build("pipedream", 3, 3), save="somewhere", lr=1 / 3, timeout_s=0.1),
        Job(schedule="{}", emulate=COSTS, how="busy", is_checked=False, cluster="{}"),
    ],
)
def test_a_job_reads_back_as_it_was(made):
    assert job_from_json(job_to_json(made), "job.json") == made


def refused(text):
    with pytest.raises(ExecutionError) as raised:
        job_from_json(text, "job.json")
    message = str(raised.value)
    assert message.startswith("job.json: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"schedule": 1}', '{"schedule": "", "lr": "fast"}'])
def test_what_is_no_job_is_refused_in_one_line(text):
    refused(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("how", "nap"),
        ("device", "tpu"),
        ("backend", "mpi"),
        ("bounds", [[0]]),
        ("dtype", "int8"),
        ("iterations", 0),
        ("warmup", -1),
        ("microbatch_size", 0),
        ("threads", 0),
        ("timeout_s", 0),
    ],
)
def test_a_wrong_value_is_named(field, value):
    fields = json.loads(job_to_json(job(build("gpipe", 2, 3)))) | {field: value}
    assert field in refused(json.dumps(fields))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_is_refused_where_its_epsilon_is_zero_in_the_dtype(optimizer, dtype):
    made = OPTIMIZERS[optimizer]([nn.Parameter(torch.zeros(1))], 0.1)
    epsilon = torch.tensor(made.defaults.get("eps", 1.0), dtype=getattr(torch, dtype)).item()
    fields = json.loads(job_to_json(job(build("gpipe", 2, 3), optimizer="sgd")))
    text = json.dumps(fields | {"dtype": dtype, "optimizer": optimizer})
    trained = {"recipe": Recipe(name="gpipe"), "num_steps": 1, "model": "mlp", "bounds": (), "batch_size": 1}
    if epsilon:
        assert job_from_json(text, "job.json").dtype == dtype
        assert TrainingJob(**trained, optimizer=optimizer, dtype=dtype).dtype == dtype
    else:
        assert f"dtype: got float16 with {optimizer}, whose epsilon of 1e-08 is 0 in it" in refused(text)
        with pytest.raises(ExecutionError, match=f"dtype: got float16 with {optimizer}, whose epsilon"):
            TrainingJob(**trained, optimizer=optimizer, dtype=dtype)


def test_emulated_stages_have_no_epsilon():
    assert Job(schedule="{}", emulate=COSTS, dtype="float16", optimizer="adamw").dtype == "float16"


def test_a_field_that_there_is_not_is_named():
    fields = json.loads(job_to_json(job(build("gpipe", 2, 3)))) | {"itterations": 3}
    assert "itterations" in refused(json.dumps(fields))


def test_a_job_checks_its_values_when_made():
    with pytest.raises(ExecutionError, match="iterations: got 0, expected at least 1; dtype: got 'f4'"):
        replace(job(build("gpipe", 2, 3)), iterations=0, dtype="f4")


def test_machines_are_emulated_with_the_costs_only():
    with pytest.raises(ExecutionError, match="cluster: got one without emulate, expected none"):
        replace(job(build("gpipe", 2, 3)), cluster="{}")
