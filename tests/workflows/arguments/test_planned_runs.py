"""A plan means the same wherever it is given: what it says is done, and nothing beside it is taken that contradicts."""

from dataclasses import replace

import pytest

import pipesched
from pipesched.profiles.io import Plan, Predicted, save_json
from pipesched.schedules.transforms import ScheduleSpec
from pipesched.workflows.measuring import run_job

MODEL = "mlp:width=8,layers=4"
SPEC = ScheduleSpec(name="gpipe", num_ranks=2, num_microbatches=2)
WHOLE = Plan(
    model=MODEL,
    schedule_spec=SPEC,
    partition=(1, 3),
    microbatch_size=4,
    batch_size=8,
    compression=None,
    predicted=Predicted(1.0, 8.0),
)
HALF = replace(WHOLE, compression="half")


def run(plan, **arguments):
    return pipesched.run(plan, **({"model": MODEL} | arguments))


def emulate(plan, **arguments):
    return pipesched.run(plan, pipesched.Setup(pipesched.uniform(2, 1.0, 2.0), **arguments))


def simulate(plan, **arguments):
    return pipesched.simulate(plan, pipesched.Setup(pipesched.uniform(2, 1.0, 2.0), **arguments))


def train(plan, **arguments):
    return pipesched.train(**({"model": MODEL, "schedule": plan, "num_steps": 2} | arguments))


def test_a_run_is_cut_and_sent_as_planned():
    spec = run_job(HALF, MODEL)
    assert (spec.compression, spec.bounds, spec.job.microbatch_size) == ("half", ((0, 1), (1, 4)), 4)
    assert run_job(WHOLE, MODEL).compression is None


def test_an_emulated_run_sends_as_planned():
    half, whole = (run_job(plan, pipesched.uniform(2, 0.001, 0.002)) for plan in (HALF, WHOLE))
    assert half.job.emulate.compression is not None
    assert whole.job.emulate.compression is None


def test_training_is_cut_and_sent_as_planned(tmp_path):
    save_json(HALF, tmp_path / "half.json")
    said = {"batch_size": 8, "partition": "1,3"}
    half = train(SPEC, compression="half", **said).losses
    assert train(HALF).losses == train(tmp_path / "half.json").losses == half
    assert train(WHOLE).losses == train(SPEC, **said).losses != half


@pytest.mark.parametrize(
    ("call", "name", "value"),
    [
        *((call, "partition", "2,2") for call in (run, emulate, simulate, train)),
        *((call, "microbatch_size", 7) for call in (run, emulate, simulate)),
        (train, "batch_size", 7),
        (run, "profile", "profile.json"),
        (train, "profile", "profile.json"),
    ],
)
def test_what_a_plan_says_is_not_said_beside_it(call, name, value):
    with pytest.raises(pipesched.ArgumentError, match=f"^plan: got `{name}` too"):
        call(WHOLE, **{name: value})


@pytest.mark.parametrize("call", [run, emulate, simulate, train])
def test_a_plan_that_compresses_nothing_is_not_compressed(call):
    with pytest.raises(pipesched.ArgumentError, match=r"^plan: got `compression=half` too"):
        call(WHOLE, compression="half")


@pytest.mark.parametrize("call", [run, train])
def test_a_plan_is_of_one_model(call):
    with pytest.raises(pipesched.ArgumentError, match=f"^model: got mlp:.*, expected {MODEL}, the model of the plan"):
        call(WHOLE, model="mlp:layers=10")
