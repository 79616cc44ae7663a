"""The lines that ``tune`` prints for a setting, and its verdict on settings that were run."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pipesched.cli.commands.tune import CommandLines, TunedModel
from pipesched.cli.terminal import print_result
from pipesched.executor.launch import job_from_json
from pipesched.profiles.clusters import flat
from pipesched.profiles.io import save_json
from pipesched.questions import MeasureSettings
from pipesched.schedules.builders import build
from pipesched.schedules.formats import from_json
from pipesched.schedules.transforms import recompute
from pipesched.simulator.search import Outcome
from pipesched.simulator.tuner import Problem, tuned
from pipesched.workflows.tuning import RunSetting, Verdict
from tests.simulator.tuner.problems import model

MLP = "mlp:width=8,layers=6"
LINES = [
    (tuned("avgpipe", 3, 4, 1, 0), build("1f1b", 3, 4)),
    (tuned("avgpipe", 3, 4, 1, 2), build("1f1b_afp", 3, 4, advance=2)),
    (tuned("avgpipe", 3, 4, 3, 1), build("avgpipe", 3, 12, pipelines=3, advance=1)),
    (tuned("avgpipe", 3, 2, 2, 0, recompute_when="early"), recompute(build("avgpipe", 3, 4, pipelines=2, advance=0))),
    (tuned("zb_h1", 3, 8), build("zb_h1", 3, 8)),
    (tuned("zb_h1", 3, 8, recompute_when="late"), recompute(build("zb_h1", 3, 8), None, "late")),
    (tuned("interleaved", 3, 4, num_chunks=2), build("interleaved", 3, 4, num_chunks=2)),
]


@pytest.mark.parametrize(("setting", "lists"), LINES, ids=[str(setting) for setting, _ in LINES])
def test_the_lines_of_a_setting_run_and_train_with_its_lists(pipesched, folder, setting, lists):
    profile = replace(model(), model=MLP)
    save_json(profile, folder / "m.json")
    commands = CommandLines(
        Problem(profile, 8, flat(3)), TunedModel(model="m.json"), MeasureSettings(optimizer="sgd", is_pinned=False)
    )
    run, train = (line.removeprefix("pipesched ") for line in commands(setting).values())
    assert pipesched(f"{run} --job run.json").code == 0
    job = job_from_json((folder / "run.json").read_text(), "run.json")
    assert from_json(job.job.schedule, "run.json").ops == lists.ops
    assert (job.model, job.optimizer, job.is_pinned) == (MLP, "sgd", False)
    assert (job.job.microbatch_size, len(job.bounds)) == (8 // setting.num_each, lists.num_stages)
    assert pipesched(f"{train} --steps 5 --job train.json").code == 0
    trained = job_from_json((folder / "train.json").read_text(), "train.json")
    assert trained.job.schedule_spec.run(5).lists(1).held().ops == lists.ops
    assert (trained.job.batch_size, trained.bounds, trained.optimizer) == (8, job.bounds, "sgd")


def test_a_graph_without_a_model_is_run_by_its_costs(pipesched, folder):
    graph = Path(__file__).parents[2] / "profiles" / "data" / "pipedream" / "vgg16.graph.txt"
    data = json.loads(pipesched(f"tune {graph} -b 64 -p 2 -n 2 --advance 0 --json").out)
    assert list(data["commands"]) == ["run"]
    assert "--model" not in data["commands"]["run"]
    assert pipesched(f"{data['commands']['run'].removeprefix('pipesched ')} --job run.json").code == 0
    assert job_from_json((folder / "run.json").read_text(), "run.json").job.emulate is not None


def test_the_lines_that_are_printed_are_those_of_the_data(pipesched, folder):
    save_json(replace(model(), model=MLP), folder / "m.json")
    line = "tune m.json -b 8 -p 2 -m 4 -n 2 --advance 1"
    printed = re.findall(r"^    (pipesched .*)$", pipesched(line).out, re.MULTILINE)
    commands = json.loads(pipesched(f"{line} --json").out)["commands"]
    assert [command.partition(" --link ")[0] for command in commands.values()] == printed


def verified(*pairs):
    """Settings that were run, of these seconds predicted and measured."""
    outcomes = [[Outcome(tuned("avgpipe", 3, 4, 1, 0), seconds, 1) for seconds in pair] for pair in pairs]
    return tuple(RunSetting(predicted, (measured,)) for predicted, measured in outcomes)


def test_too_few_settings_are_not_ranked(capsys):
    three, four = verified((1, 1), (2, 2), (3, 3)), verified((1, 1), (2, 2), (3, 4), (4, 3))
    for few in (three[:1], three[:2], three):
        assert Verdict(few).to_dict()["rank_correlation"] is None
        print_result(Verdict(few).table())
        said = " ".join(capsys.readouterr().out.split())
        assert "too few settings verified to rank" in said
        assert "rank correlation" not in said
    assert Verdict(four).to_dict()["rank_correlation"] == pytest.approx(0.8)  # 1 - 6 * (1 + 1) / (4 * 15)
    print_result(Verdict(four).table())
    assert "rank correlation of prediction and measurement 0.800" in " ".join(capsys.readouterr().out.split())
