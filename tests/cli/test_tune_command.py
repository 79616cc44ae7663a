"""The command ``tune``."""

import csv
import json
import re
import sys
from dataclasses import replace

import pytest

from pipesched.profiles.clusters import flat
from pipesched.profiles.io import save_json
from pipesched.simulator.search import Outcome
from pipesched.simulator.tuner import Problem, tuned
from pipesched.workflows.tuning import TuneResult
from tests.simulator.tuner.problems import model

LINE = "tune m.json --batch-size 8 --ranks 3 --link latency_s=0.1,bandwidth_bytes_per_s=100"


@pytest.fixture
def tune(pipesched, folder):
    save_json(model(), folder / "m.json")
    return lambda more="": pipesched(f"{LINE} {more}")


@pytest.fixture(scope="module")
def answers():
    """Return the answers that several tests read."""
    return []


@pytest.fixture
def asked(tune, answers):
    """Return the answer where pipelines are asked for."""
    if not answers:
        answers.append(tune("-n 1-4 --json").out)
    return json.loads(answers[0])


def test_the_chosen_setting_is_the_fastest_and_its_gain_is_over_plain_1f1b(asked):
    times = [row["seconds_per_batch"] for row in asked["settings"]]
    assert asked["chosen"] == asked["settings"][0]
    assert asked["chosen"]["seconds_per_batch"] == pytest.approx(min(times), rel=5e-3)
    plain = asked["plain_1f1b"]
    assert (plain["num_pipelines"], plain["advance"]) == (1, 0)
    assert asked["gain_over_plain_1f1b"] == plain["seconds_per_batch"] / asked["chosen"]["seconds_per_batch"] > 1.1
    assert {row["num_microbatches"] for row in asked["settings"]} == {1, 2, 4, 8}
    assert asked["smallest_advance_as_fast_as_afab"] in range(8)
    assert {row["num_pipelines"] for row in asked["settings"]} == {1, 2, 3, 4}


def test_unless_pipelines_are_asked_for_the_answer_trains_as_plain_training_does_with_the_other_beside_it(tune, asked):
    data = json.loads(tune("--json").out)
    assert data["settings"] == asked["settings"]
    plainly = [row for row in data["settings"] if row["num_pipelines"] == 1]
    assert data["chosen"] == plainly[0]
    assert (data["training"], data["chosen"]["training"]) == ("plain", "plain")
    other = data["with_elastic_averaging"]
    assert other["chosen"] == asked["chosen"]
    assert other["gain_over_plain_1f1b"] == asked["gain_over_plain_1f1b"] > 1.1
    assert (asked["training"], asked["chosen"]["training"]) == ("elastic averaging", "elastic averaging")
    assert asked["with_elastic_averaging"] is None
    assert {row["training"] for row in data["settings"] if row["num_pipelines"] > 1} == {"elastic averaging"}


def test_people_see_the_ranking_what_was_chosen_and_why_others_were_not(tune):
    answer = tune("--memory-limit 30kB --top 3 --wide")
    assert answer.code == 0
    assert re.search(r"chosen by simulate: 1f1b M=\d N=1, .*; training: plain", answer.out)
    assert re.search(r"x as fast as plain 1F1B at its best \(1f1b M=\d N=1\)", answer.out)
    assert "settings that fit have elastic averaging, which changes the training" in answer.out
    assert re.search(
        r"with elastic averaging simulate chooses avgpipe M=\d N=2 advance=\d, .*; give -n to choose it", answer.out
    )
    assert "rank after these are left out" in answer.out
    assert "over memory: device" in answer.out
    averaged = tune("-n 1-4 --top 1 --wide").out
    assert re.search(r"chosen by simulate: avgpipe M=\d N=[34] advance=\d, .*; training: elastic averaging", averaged)
    assert "M per pipeline" in averaged
    assert "which is another training" not in averaged  # it is in the one table that there is


def test_where_only_averaging_fits_it_is_the_answer_and_says_so():
    row = Outcome(tuned("avgpipe", 3, 4, 2, 0), 1.0, 1)
    problem = Problem(model(), 8, flat(2))
    result = TuneResult(
        problem, "measure", (row, Outcome(tuned("avgpipe", 3, 4, 1, 0), reason="failed")), None, averages=False
    )
    assert (result.chosen, result.averaged, result.candidates) == (row, None, (row,))
    assert result.to_dict()["training"] == "elastic averaging"


def test_one_pipeline_is_called_by_its_own_name_everywhere(tune):
    for more in ("", "--json", "--memory-limit 1kB"):
        answer = tune(f"-n 1 --advance 0-1 -m 4 {more}")
        assert "1f1b_afp" in answer.out
        assert "avgpipe" not in answer.out + answer.err


def test_tables_and_pictures_are_written(tune, folder):
    answer = tune("-n 1 --out all.csv --plot map.png")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out
    assert (folder / "map.png").read_bytes().startswith(b"\x89PNG")
    with (folder / "all.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(json.loads(tune("-n 1 --json --out all.md").out)["settings"])
    assert (folder / "all.md").read_text().startswith("| ")


@pytest.mark.parametrize("more", ["-n 2", "-s zb_h1,interleaved -v 2"])
def test_what_takes_a_plan_takes_the_settings_with_the_answer_in_them(tune, pipesched, more):
    rows = json.loads(tune(f"{more} --out settings.json --json").out)["settings"]
    answer = next(row for row in rows if row["reason"] is None)
    shown = json.loads(pipesched("show --plan settings.json --format json").out)
    assert shown["name"].startswith(answer["schedule"])
    simulated = json.loads(pipesched("simulate --plan settings.json --profile m.json --json").out)
    times = answer["num_pipelines"] * answer["seconds_per_batch"]
    if answer["num_pipelines"] == 1:  # several drift apart, which one batch does not show
        assert simulated["makespan_s"] == pytest.approx(times, rel=1e-9)


def test_settings_of_which_none_fits_hold_no_plan(tune, pipesched, folder):
    assert tune("-n 1 --memory-limit 1B --out settings.json").code == 1
    refused = pipesched("show --plan settings.json")
    assert refused.code == 2
    assert (
        "settings without a plan, expected one setting with its plan; write it with 'plan ... --out plan.json' or"
        in refused.err
    )
    for text in ("[]", "[1]", '[{"plan": 1}]', '[{"plan": {}}]', "[" * 9999, "[{}", '[{"plan": null}]'):
        (folder / "settings.json").write_text(text)
        refused = pipesched("show --plan settings.json")
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
        assert "settings.json: " in refused.err


def test_where_nothing_fits_the_answer_is_no_with_the_limit_that_would_do(tune):
    answer = tune("-n 1 --memory-limit 1kB --json")
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert json.loads(answer.out)["chosen"] is None
    enough = int(answer.err.split("--memory-limit ")[1].split(",")[0])
    assert [tune(f"-n 1 --memory-limit {limit}").code for limit in (enough, enough - 1)] == [0, 1]


@pytest.mark.distributed
def test_the_best_are_run_and_set_beside_the_prediction_and_plain_1f1b(pipesched, folder):
    small = replace(model(), model="mlp:layers=6,width=8")
    save_json(small, folder / "m.json")
    line = "tune m.json -b 8 -p 2 -m 4 -n 1-2 --advance 0 --verify 1 --iterations 1"
    data = json.loads(pipesched(f"{line} --json").out)
    verified = data["verified"]
    assert [row["num_pipelines"] for row in verified["settings"]] == [2, 1]
    assert verified["settings"][0]["num_microbatches"] == data["chosen"]["num_microbatches"]
    measured_s = [row["measured_s"] for row in verified["settings"]]
    assert min(measured_s) > 0
    assert verified["regret"] == measured_s[0] / min(measured_s) - 1
    assert verified["rank_correlation"] is None  # of two settings it would be 1 or -1 whatever they take
    assert verified["gain_over_plain_1f1b"] == measured_s[1] / measured_s[0]
    assert [row["training"] for row in verified["settings"]] == ["elastic averaging", "plain"]


def test_without_ray_it_is_said_what_to_install(tune, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    answer = tune("--ray local")
    assert (answer.code, answer.out) == (4, "")
    assert "pipesched[ray]" in answer.err


@pytest.mark.parametrize(("options", "code"), [("-n 1-2", 0), ("-n 1-2 --memory-limit 1KB", 1)])
def test_a_page_has_every_setting_and_marks_the_answer(tune, folder, options, code):
    data = json.loads(tune(f"{options} --out all.html --json").out)
    page = json.loads(re.search(r'id="data">(.*)</script>', (folder / "all.html").read_text())[1])
    assert len(page["search"]["rows"]) == len(data["settings"])
    assert page["search"]["best"] == (None if code else 0)
    assert ("runs" in page) == (data["chosen"] is not None)
    assert tune(f"{options} --out all.html").code == code
