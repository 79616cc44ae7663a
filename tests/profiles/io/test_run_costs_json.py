"""Costs from runs are read back as they were written, and everything else is refused with its place."""

import json
from dataclasses import replace

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import RunCosts, RunStage, StageCost, spread_of, variation_of
from pipesched.profiles.io import RUN_COSTS_FORMAT, load_profile, load_run_costs, save_json
from pipesched.schedules import Yardstick
from pipesched.schedules.formats import format_of

COSTS = RunCosts(
    ("a.json", "b.json"),
    (
        RunStage({"F": spread_of([0.1, 0.30000000000000004, 0.2]), "Step": spread_of([1e-9])}),
        RunStage({"F": spread_of([1.0]), "B": spread_of([2.0, 3.0])}, StageCost(1.0, 2.0, output_bytes=10**9)),
    ),
    {"Op": spread_of([1e-5, 2e-5]), "Send": spread_of([3e-4])},
    spread_of([1e-3]),
    warmup=1,
    microbatch_size=4,
    variation=variation_of([(0.1, 0.2), (0.2, 0.3)]),
    yardstick=Yardstick("cpu", 2, 0.0003),
)


def test_costs_are_read_back_as_they_were(tmp_path):
    save_json(COSTS, tmp_path / "costs.json")

    assert format_of(tmp_path / "costs.json") == RUN_COSTS_FORMAT
    assert load_run_costs(tmp_path / "costs.json") == COSTS


def test_costs_of_version_1_say_nothing_of_how_seconds_vary_and_how_fast_the_machine_was(tmp_path):
    def age(document):
        del document["variation"], document["yardstick"]
        document["version"] = 1

    path = changed(tmp_path, age)
    assert load_run_costs(path) == replace(COSTS, variation=None, yardstick=None)


def changed(tmp_path, change):
    save_json(COSTS, tmp_path / "costs.json")
    document = json.loads((tmp_path / "costs.json").read_text())
    change(document)
    (tmp_path / "costs.json").write_text(json.dumps(document))
    return tmp_path / "costs.json"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["stages"][0]["work"].pop("F"), r"stages\.0\.work: got no F, expected one in every stage"),
        (
            lambda d: d["hand_over"]["Op"]["deciles_s"].reverse(),
            r"hand_over\.Op\.deciles_s: got .*, expected rising numbers",
        ),
        (lambda d: d["message"]["deciles_s"].pop(), r"message\.deciles_s: got .* expected 11 or more entries"),
        (
            lambda d: d["message"].update(mean_s=2.0),
            r"message\.mean_s: got 2\.0, expected a mean between the least and",
        ),
        (lambda d: d["message"].update(count=0), r"message\.count: got 0, expected at least 1"),
        (lambda d: d["stages"][1]["work"].update(X=1), r"stages\.1\.work"),
        (lambda d: d.update(version=4), r"version: got 4, expected 1, 2 or 3"),
        (lambda d: d.update(version=1), r"costs: got a variation, expected none in version 1"),
        (lambda d: d.update(version=2), r"costs: got a yardstick, expected none in version 2"),
        (lambda d: d.pop("variation"), r"costs: got no variation, expected one, or null, in version 3"),
        (lambda d: d["variation"]["works"].reverse(), r"variation\.works: got .*, expected rising numbers"),
        (lambda d: d.update(stages=[]), r"stages: got .*, expected 1 or more entries"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path, change, message):
    path = changed(tmp_path, change)

    with pytest.raises(ProfileError, match=rf"^{path}: {message}.*; correct it, or make it again with pipesched"):
        load_run_costs(path)


def test_what_needs_layers_says_so_of_costs_of_stages(tmp_path):
    save_json(COSTS, tmp_path / "costs.json")

    with pytest.raises(ProfileError, match="got costs of a run's stages, expected a profile, which has layers"):
        load_profile(tmp_path / "costs.json")
