"""``tune --budget``: the best settings race, and the answer is who leads."""

import json
from dataclasses import replace

import pytest

from pipesched.profiles.io import save_json
from pipesched.simulator.search import Outcome
from tests.simulator.tuner.problems import model

LINE = "tune m.json -b 8 -p 2 -n 1 --advance 0-2"


@pytest.fixture
def tune(pipesched, folder, monkeypatch):
    """Tune a model whose settings take, when they run, the less the more micro-batches they have."""

    def run(measurement, setting, tick=None):
        return Outcome(setting, 1e-3 / setting.num_microbatches, 1)

    save_json(replace(model(), model="mlp:layers=6,width=8"), folder / "m.json")
    monkeypatch.setattr("pipesched.workflows.tuning.setting_runs.Measurement.__call__", run)
    monkeypatch.setattr("pipesched.profiles.measuring.yardstick_s", lambda num_busy, device: 1e-3)
    return lambda more="": pipesched(f"{LINE} {more}")


def test_who_wins_is_the_answer_with_its_lines(tune):
    data, predicted = json.loads(tune("--budget 2000 --json").out), json.loads(tune("--json").out)
    race = data["race"]
    most = max(row["microbatches"] for row in race["contenders"])
    assert race["is_clear"]
    assert data["chosen"]["microbatches"] == race["leader"]["microbatches"] == most
    assert predicted["chosen"]["microbatches"] < most
    assert f"-m {most} " in data["commands"]["run"]
    assert data["settings"] == predicted["settings"]
    assert "race" not in predicted
    assert [row["rounds"] for row in race["contenders"]] == [3] * len(race["contenders"])
    assert {row["state"] for row in race["contenders"]} == {"won", "slower"}


def test_every_setting_may_be_run_in_place_of_predicted(tune):
    data = json.loads(tune("--evaluator measure --json").out)
    assert data["evaluator"] == "measure"
    seconds = [row["seconds_per_batch"] for row in data["settings"]]
    assert seconds == sorted(seconds) == [1e-3 / row["num_microbatches"] for row in data["settings"]]


def test_verify_says_how_many_race(tune):
    few, more = (json.loads(tune(f"--budget 2000 --verify {count} --json").out) for count in (1, 3))
    assert len(few["race"]["contenders"]) < len(more["race"]["contenders"])
    assert "verified" not in few


def test_the_race_is_told_in_a_table_of_80_columns(tune):
    said = tune("--budget 2000").out
    predicted, race = said.split("Race of settings")
    assert "ranked first by simulate: " in predicted
    assert "the race below chooses" in " ".join(predicted.split())
    assert "chosen by" not in said
    assert "pipesched train" not in predicted
    assert max(len(line.rstrip()) for line in race.splitlines() if "│" in line or "━" in line) <= 80
    assert "N=1 won: the next, " in race
    assert "pipesched train" in race


def test_a_budget_that_is_too_small_for_one_round_is_one_line(tune, folder):
    before = set(folder.iterdir())
    answer = tune("--budget 1 --out all.csv --plot map.png")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert "--budget" in answer.err
    assert set(folder.iterdir()) == before


def test_where_nothing_fits_nothing_races(tune):
    answer = tune("--budget 2000 --memory-limit 1kB --json")
    assert answer.code == 1
    assert "race" not in json.loads(answer.out)


def slower(profile, factor):
    """A profile whose forwards took `factor` times as long."""
    layers = [
        replace(layer, measurements=tuple(replace(m, forward_s=factor * m.forward_s) for m in layer.measurements))
        for layer in profile.layers
    ]
    return replace(profile, layers=tuple(layers))


def test_a_model_is_profiled_several_times_and_a_slow_moment_does_not_count(pipesched, folder, monkeypatch):
    moments = iter((1.0, 50.0, 2.0))
    measured = replace(model(), model="mlp:layers=6,width=8")
    monkeypatch.setattr("pipesched.profiles.measuring.profile_model", lambda *_, **__: slower(measured, next(moments)))
    setting_rows = json.loads(pipesched("tune mlp:layers=6,width=8 -b 8 -p 2 -n 1 --json").out)["settings"]
    save_json(slower(measured, 2.0), folder / "m.json")
    assert setting_rows == json.loads(pipesched("tune m.json -b 8 -p 2 -n 1 --json").out)["settings"]
    assert next(moments, None) is None
