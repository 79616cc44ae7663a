"""Nothing that is read from a file is imported, unless the user has typed it too or says --trust-model."""

import copy
import json
import pickle
import sys
from dataclasses import replace

import pytest

from pipesched.cli.errors import InputError
from pipesched.cli.program import COMMANDS, make_program
from pipesched.executor.launch import Measure, RunSpec, Train, job_from_json, job_to_json
from pipesched.executor.rank_command import main as run_rank
from pipesched.executor.runs import launch, launch_training
from pipesched.profiles import ProfileError
from pipesched.profiles.io import Plan, Predicted, load_plan, load_profile, save_json
from pipesched.profiles.models import resolve_model
from pipesched.schedules.builders import build
from pipesched.schedules.formats import timeline_to_json, to_json
from pipesched.schedules.transforms import ScheduleSpec
from tests.hand_runs import run_by_hand
from tests.profiles.hand_profiles import layer, profile

COMMAND = "os:system:command=touch PLANTED"
MODULE = "mymod:factory"
SOURCE = """
from pathlib import Path
from pipesched.profiles.models.mlp import mlp
Path(__file__).with_name("PLANTED").touch()
def factory(): return mlp(width=16, layers=4)
"""
BUILT_IN = "mlp:width=16,layers=4"
ONE = "-s 1f1b -p 2 -m 2"


@pytest.fixture
def plant(folder, monkeypatch):
    """Return what writes a plan, a profile and both kinds of job that name a model."""
    (folder / "mymod.py").write_text(SOURCE)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(model):
        schedule_spec = ScheduleSpec(name="1f1b", num_ranks=2, num_microbatches=2)
        save_json(Plan(model=model, schedule_spec=schedule_spec, partition=(2, 2), microbatch_size=1, batch_size=2,
                       compression=None, predicted=Predicted(1.0, 2.0)), folder / "plan.json")  # fmt: skip
        save_json(replace(profile(*[layer()] * 4), model=model), folder / "profile.json")
        save_json(replace(profile(*[layer()] * 4), model=BUILT_IN), folder / "other.json")
        run = run_by_hand(build("1f1b", 2, 2), 0.0, 0.0)
        (folder / "measured.json").write_text(timeline_to_json(run))
        job = RunSpec(job=Measure(schedule=to_json(build("gpipe", 1, 1))), model=model, bounds=((0, 4),))
        (folder / "job.json").write_text(job_to_json(job))
        training = Train(schedule_spec=ScheduleSpec(name="gpipe"), num_steps=1, batch_size=1)
        (folder / "training.json").write_text(job_to_json(replace(job, job=training)))

    yield write
    sys.modules.pop("mymod", None)


@pytest.mark.parametrize(("model", "option", "warns"), [
    (COMMAND, "", True), (BUILT_IN, "", False), (MODULE, "", True), (MODULE, "--trust-model", False)
])  # fmt: skip
def test_lines_to_be_typed_that_import_what_a_file_names_are_marked(plant, pipesched, model, option, warns):
    plant(model)
    answer = pipesched(f"tune profile.json -p 2 -b 2 {option}")
    assert answer.code == 0
    assert "pipesched train" in answer.out
    assert (f"these lines import {model}, which profile.json names" in answer.out) == warns


LINES = {
    ("show", "plan"): ["show --plan plan.json"],
    ("check", "plan"): ["check --plan plan.json"],
    ("versions", "plan"): ["versions --plan plan.json"],
    ("simulate", "plan"): [f"simulate --plan plan.json --profile {name}.json" for name in ("other", "profile")],
    ("simulate", "profile"): [f"simulate {ONE} --profile profile.json"],
    ("compare", "plan"): ["compare gpipe -p 2 -m 2 --plan plan.json --profile profile.json"],
    ("compare", "profile"): ["compare gpipe,1f1b -p 2 -m 2 --profile profile.json"],
    ("gantt", "plan"): [f"gantt --plan plan.json --profile {name}.json" for name in ("other", "profile")],
    ("gantt", "profile"): [f"gantt {ONE} --profile profile.json"],
    ("trace", "plan"): [f"trace --plan plan.json --profile {name}.json" for name in ("other", "profile")],
    ("trace", "profile"): [f"trace {ONE} --profile profile.json"],
    ("import", "plan"): ["import measured.json --plan plan.json"],
    ("profile", "profile"): ["profile --from measured.json --profile profile.json --microbatch-size 1"],
    ("sweep", "profile"): ["sweep -s gpipe,1f1b -p 2 -m 2 --profile profile.json"],
    ("optimize", "plan"): ["optimize --plan plan.json --profile profile.json --seconds 0"],
    ("optimize", "profile"): [f"optimize {ONE} --profile profile.json --seconds 0"],
    ("replay", "profile"): ["replay measured.json --profile profile.json --microbatch-size 1"],
    ("what-if", "plan"): ["what-if measured.json --plan plan.json"],
    ("what-if", "profile"): ["what-if measured.json --profile profile.json --microbatch-size 1 --partition 1,3"],
    ("partition", "profile"): ["partition profile.json -p 2"],
    ("plan", "profile"): ["plan profile.json -b 2 --devices 2"],
    ("run", "plan"): [
        "run --plan plan.json",
        "run --plan plan.json --job new.json",
        "run --plan plan.json --model mlp",
        "run --plan plan.json --profile other.json --job new.json",
        "run --plan plan.json --profile profile.json --job new.json",
    ],
    ("export", "plan"): ["export megatron --plan plan.json"],
    ("run", "profile"): [
        f"run {ONE} --model {BUILT_IN} --profile profile.json",
        f"run {ONE} --profile profile.json --job new.json",
    ],
    ("train", "plan"): [
        "train --plan plan.json --steps 1 --uniform f=1,b=2",
        "train --plan plan.json --steps 1 --profile profile.json",
        "train --plan plan.json --steps 1 --distributed",
        "train --plan plan.json --job new.json",
        "train mlp --plan plan.json",
    ],
    ("train", "profile"): [f"train {BUILT_IN} {ONE} --steps 1 --profile profile.json"],
    ("tune", "model"): [
        "tune profile.json -b 1 -p 2",
        "tune profile.json -b 1 -p 2 --verify 1",
        "tune profile.json -b 1 -p 2 --budget 9",
        "tune profile.json -b 1 -p 2 --evaluator measure",
    ],
    ("verify", "plan"): [f"verify {BUILT_IN} {ONE} --plan plan.json --profile profile.json"],
    ("verify", "profile"): [f"verify {BUILT_IN} {ONE} --profile profile.json"],
}
"""By command, and by the option or argument that is a file which names a model."""


def test_every_command_that_takes_a_file_which_names_a_model_is_tried():
    commands = {name: make_program().get_command(None, name) for name in COMMANDS}
    taken = {(name, option.name) for name, command in commands.items() for option in command.params}
    assert {(name, option) for name, option in taken if option in ("plan", "profile")} | {("tune", "model")} == {*LINES}


@pytest.mark.parametrize("line", [line for lines in LINES.values() for line in lines])
def test_what_a_file_names_is_not_imported(pipesched, folder, plant, line):
    plant(MODULE)
    answer = pipesched(line)
    assert not (folder / "PLANTED").exists()
    assert answer.code in (0, 2)
    assert answer.err.count("\n") == (1 if answer.code else 0)


@pytest.fixture
def as_rank(monkeypatch, capsys):
    """Return a function that runs the first of one or two ranks of a job for one, and returns (code, err)."""

    def call(num_processes, *words):
        names = {"RANK": 0, "WORLD_SIZE": num_processes, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}
        for name, value in names.items():
            monkeypatch.setenv(name, str(value))
        return run_rank([*words]), capsys.readouterr().err

    return call


@pytest.mark.parametrize(("file", "model"), [("job.json", COMMAND), ("training.json", MODULE)])
def test_a_rank_imports_nothing_that_its_job_names_unless_it_is_told_to_trust_it(folder, plant, as_rank, model, file):
    plant(model)
    code, line = as_rank(1, file)
    assert not (folder / "PLANTED").exists()
    assert (code, line.count("\n"), "--trust-model" in line) == (2, 1, True)
    assert line.startswith(f"executor: {file}: ")
    code, line = as_rank(2, file, "--trust-model")  # one process too many: refused before ranks meet
    assert (code, "2 processes" in line) == (2, True)


@pytest.mark.parametrize(
    "line",
    [
        "run --plan plan.json --job new.json --trust-model",
        f"run --plan plan.json --job new.json --model {MODULE}",
        "train --plan plan.json --job new.json --trust-model",
        f"train {MODULE} --plan plan.json --job new.json",
    ],
)
def test_a_model_that_the_user_types_or_trusts_is_imported(pipesched, folder, plant, line):
    plant(MODULE)
    answer = pipesched(line)
    assert (answer.code, answer.err) == (0, "")
    assert (folder / "PLANTED").exists()
    assert json.loads((folder / "new.json").read_text())["model"] == MODULE


def test_a_profile_that_is_trusted_is_built_to_be_run(pipesched, folder, plant, monkeypatch):
    def stopped(setup, **_):
        raise InputError(f"found {setup.profile.model}")

    monkeypatch.setattr("pipesched.tune", stopped)
    plant(MODULE)
    answer = pipesched("tune profile.json -b 1 -p 2 --verify 1 --trust-model")
    assert answer.err == f"pipesched: found {MODULE}\n"
    assert (folder / "PLANTED").exists()


@pytest.mark.parametrize("line", LINES["simulate", "plan"][1:] + LINES["gantt", "plan"][1:])
def test_models_of_two_files_are_the_same_if_their_names_are(pipesched, plant, line):
    plant(MODULE)
    assert pipesched(line).code == 0


def test_a_built_in_model_is_the_same_however_a_file_spells_it(pipesched, folder, plant):
    plant("mlp: layers=4, width=16")
    assert pipesched("simulate --plan plan.json --profile other.json").code == 0
    assert pipesched("run --plan plan.json --job new.json").code == 0
    assert json.loads((folder / "new.json").read_text())["model"] == "mlp: layers=4, width=16"


@pytest.mark.parametrize("again", [lambda name: name, copy.deepcopy, lambda name: pickle.loads(pickle.dumps(name))])
def test_a_name_stays_that_of_a_file_wherever_it_is_handed(folder, plant, again):
    plant(COMMAND)
    for name in (load_plan("plan.json").model, load_profile("profile.json").model):
        with pytest.raises(ProfileError, match=r"p[a-z]+.json: model: "):
            resolve_model(again(name))
    assert not (folder / "PLANTED").exists()


def test_a_job_from_a_file_does_not_become_the_launchers_own(folder, plant):
    plant(COMMAND)
    job = job_from_json((folder / "job.json").read_text(), "job.json")
    training = job_from_json((folder / "training.json").read_text(), "training.json")
    for start, spec in ((launch, job), (launch_training, training)):
        with pytest.raises(ProfileError, match=r"[a-z]+.json: model: "):
            start(spec)
    assert not (folder / "PLANTED").exists()
