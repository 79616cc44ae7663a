import json
import math
import time

import pytest
import torch
from torch import nn

from pipesched.executor import ExecutionError
from pipesched.executor.emulation.emulated_stage import wait_until
from pipesched.executor.launch import (
    Measure,
    RunSpec,
    Train,
    job_from_json,
    job_to_json,
)
from pipesched.profiles import DTYPES
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.profiles.models.torch_names import OPTIMIZERS
from pipesched.schedules import PredictionRule
from pipesched.schedules.builders import build
from pipesched.schedules.common import LONGEST_S
from pipesched.schedules.formats import to_json
from pipesched.schedules.transforms import ScheduleSpec
from tests.executor.pipelines import job

COSTS = StageCosts((StageCost(0.25, 0.5, output_bytes=7), StageCost(1e-9, None, 0.1, 0.2, saved_for_weight_bytes=3)), 4)


@pytest.mark.parametrize(
    "made",
    [
        job(build("gpipe", 2, 3)),
        job(build("pipedream", 3, 3), save="somewhere", lr=1 / 3, timeout_s=0.1),
        RunSpec(job=Measure(schedule="{}", emulate=COSTS, how="busy", is_checked=False, cluster="{}")),
        *(
            RunSpec(
                job=Train(schedule_spec=lists, num_steps=6, batch_size=8), model="mlp", prediction=PredictionRule.ZERO
            )
            for lists in (
                ScheduleSpec(name="wpipe", num_microbatches=4, parameters={"accumulate": 2}, recompute=(0, 1)),
                ScheduleSpec(name="1f1b_rr", num_ranks=3, num_microbatches=2, parameters={"replicas": (2, 1)}),
                ScheduleSpec(lists=to_json(build("zb_h1", 2, 4)), recompute="all"),
            )
        ),
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


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "{}", '{"job": 1}', '{"job": {}}', '{"job": {"kind": "measure"}}'),
        *("[" * 100_000, "[" * 900 + "]" * 900, '"job"'),
    ],
)
def test_what_is_no_job_is_refused_in_one_line(text):
    refused(text)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_is_refused_where_its_epsilon_is_zero_in_the_dtype(optimizer, dtype):
    made = OPTIMIZERS[optimizer]([nn.Parameter(torch.zeros(1))], 0.1)
    epsilon = torch.tensor(made.defaults.get("eps", 1.0), dtype=getattr(torch, dtype)).item()
    fields = json.loads(job_to_json(job(build("gpipe", 2, 3), optimizer="sgd")))
    text = json.dumps(fields | {"dtype": dtype, "optimizer": optimizer})
    trained = {"job": Train(schedule_spec=ScheduleSpec(name="gpipe"), num_steps=1, batch_size=1), "model": "mlp"}
    if epsilon:
        assert job_from_json(text, "job.json").dtype == dtype
        assert RunSpec(**trained, optimizer=optimizer, dtype=dtype).dtype == dtype
    else:
        assert f"dtype: got float16 with {optimizer}, whose epsilon of 1e-08 is 0 in float16" in refused(text)
        with pytest.raises(ExecutionError, match=f"dtype: got float16 with {optimizer}, whose epsilon"):
            RunSpec(**trained, optimizer=optimizer, dtype=dtype)


def test_emulated_stages_have_no_epsilon():
    assert RunSpec(job=EMULATED.job, dtype="float16", optimizer="adamw").dtype == "float16"


def test_emulated_stages_are_refused_on_a_gpu():
    with pytest.raises(ExecutionError, match="device: got cuda with costs to emulate, expected cpu: emulated stages"):
        RunSpec(job=EMULATED.job, device="cuda")


@pytest.mark.parametrize(
    ("bounds", "stage", "begin"),
    [
        (((1, 4),), 0, 0),
        (((0, 2), (1, 4)), 1, 2),
        (((2, 4), (0, 2)), 0, 0),
        (((0, 2), (2, 2), (2, 4)), 1, 2),
        (((0, 4), (4, 2)), 1, 4),
        (((-1, 4),), 0, 0),
        (((0, 10**5000),), 0, 0),
    ],
)
def test_stages_that_leave_layers_out_or_share_them_are_refused(bounds, stage, begin):
    with pytest.raises(ExecutionError) as raised:
        RunSpec(job=Measure(schedule="{}"), model="mlp", bounds=bounds)
    message = str(raised.value)
    assert message.startswith("bounds: got layers ")
    assert f" on stage {stage}, expected layers {begin} to a larger number; give each layer to one stage" in message


EMULATED = RunSpec(job=Measure(schedule="{}", emulate=COSTS))
TRAINING = RunSpec(
    job=Train(schedule_spec=ScheduleSpec(name="1f1b"), num_steps=2, batch_size=4), model="mlp", bounds=((0, 8),)
)
STAGES = ("job", "emulate", "stages")
WRONG = [
    (EMULATED, ("job", "iterations"), "5", "job.iterations: got '5', expected an integer"),
    (EMULATED, ("job", "iterations"), 2**31, "iterations: got 2147483648, expected at most 2147483647"),
    (EMULATED, ("is_pinned",), 1, "is_pinned: got 1, expected true or false"),
    (EMULATED, ("lr",), math.nan, "lr: got nan, expected a finite number"),
    (EMULATED, ("seed",), 10**25, "seed: got 10000000000000000000000000, expected at most 9223372036854775807"),
    (EMULATED, ("threads",), 10**9, "threads: got 1000000000, expected at most 1024"),
    (EMULATED, ("timeout_s",), 1e300, "timeout_s: got 1e+300, expected a number from 0.1 to 604800"),
    (EMULATED, ("bounds",), [[0]], "bounds.0.1: got nothing, expected this field"),
    (EMULATED, (*STAGES, 1, "forward_s"), math.nan, "emulate.stages.1.forward_s: got nan, expected a"),
    (EMULATED, (*STAGES, 1, "forward_s"), -1, "emulate.stages.1.forward_s: got -1, expected at least 0"),
    (EMULATED, (*STAGES, 0, "step_s"), 1e6, "emulate.stages.0.step_s: got 1000000.0, expected 0 to 604800"),
    (EMULATED, (*STAGES, 0, "more"), 1, "emulate.stages.0.more: got an unknown field"),
    (
        EMULATED,
        ("job", "emulate", "compression"),
        {"convert_bytes_per_s": 0.0},
        "convert_bytes_per_s: got 0, exp",
    ),
    (EMULATED, ("itterations",), 3, "itterations: got an unknown field"),
    (TRAINING, ("job", "batch_size"), 0, "batch_size: got 0, expected at least 1"),
    (TRAINING, ("job", "schedule_spec", "more"), 2, "schedule_spec.more: got an unknown field"),
    (TRAINING, ("job", "kind"), "meassure", "expected kind 'measure' or 'train'"),
]


@pytest.mark.parametrize(("made", "place", "value", "words"), WRONG)
def test_a_value_of_another_type_or_beyond_all_reason_is_refused_with_its_place(made, place, value, words):
    fields = json.loads(job_to_json(made))
    inner = fields
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    assert words in refused(json.dumps(fields))


def test_what_is_emulated_takes_a_week_at_most():
    wait_until(time.perf_counter() - 1)
    for seconds in (LONGEST_S + 60, 1e300, math.inf, math.nan):
        for how in ("sleep", "busy"):
            with pytest.raises(ExecutionError, match="expected at most a week"):
                wait_until(time.perf_counter() + seconds, how)


def test_a_job_checks_its_values_when_made():
    with pytest.raises(ExecutionError, match=r"dtype: got 'f4'.*; iterations: got 0, expected at least 1"):
        job(build("gpipe", 2, 3), iterations=0, dtype="f4")


def test_machines_are_emulated_with_the_costs_only():
    with pytest.raises(ExecutionError, match="cluster: got a cluster without costs to emulate"):
        job(build("gpipe", 2, 3), cluster="{}")
