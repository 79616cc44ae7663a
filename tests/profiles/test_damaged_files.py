"""Damaged profiles, clusters, plans and cost tables are read as they say, or refused in one line with the place."""

import random
from contextlib import suppress

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.profiles.io import (
    Plan,
    load_cluster,
    load_plan,
    load_profile,
    load_run_costs,
    load_stage_costs,
    save_json,
)
from pipesched.schedules import ScheduleError
from tests.profiles.hand_profiles import layer, measurement, profile
from tests.profiles.io.test_plan import PLAN
from tests.profiles.io.test_run_costs_json import COSTS as COSTS_OF_RUNS
from tests.schedules.formats.random_ops import damaged, damaged_bytes

PROFILE = profile(layer(measurement(1), measurement(4)), layer(measurement(1), measurement(4)))
CLUSTER = Cluster(
    (Device(), Device(0.5, 10**9, 1)), intra=Link(1e-5, 1e9), links=((0, 1, Link(2e-5, 3e9)),), origin="by hand"
)
COSTS = (
    "stage,forward_s,backward_s,output_bytes,saved_bytes\n0,0.010,0.020,1048576,50000000\n1,0.012,2.4e-2,1048576,6\n"
)


def read_damaged(path, load, seed):
    """Return what 150 damaged copies of the file are read as; refusals are looked at."""
    chance, text, values = random.Random(seed), path.read_text(), []
    for _ in range(150):
        path.write_bytes(damaged_bytes(text, chance) if chance.random() < 0.3 else damaged(text, chance).encode())
        refusal = ""
        try:
            values.append(load(path))
        except ProfileError as error:
            refusal = str(error)
        if refusal:
            assert len(refusal.splitlines()) == 1
            assert refusal.startswith(f"{path}: ")
            assert "got" in refusal
    assert 0 < len(values) < 150
    return values


@pytest.mark.parametrize(
    ("value", "load"),
    [(PROFILE, load_profile), (CLUSTER, load_cluster), (PLAN, load_plan), (COSTS_OF_RUNS, load_run_costs)],
    ids=["profile", "cluster", "plan", "run"],
)
def test_damaged_json_is_refused_or_means_what_it_is_read_as(tmp_path, value, load):
    save_json(value, tmp_path / "damaged.json")
    for read in read_damaged(tmp_path / "damaged.json", load, seed=0):
        save_json(read, tmp_path / "again.json")
        assert load(tmp_path / "again.json") == read
        if isinstance(read, Plan):
            with suppress(ProfileError, ScheduleError):
                read.run(1)


def test_a_damaged_table_is_refused_or_has_costs_that_can_be(tmp_path):
    (tmp_path / "damaged.csv").write_text(COSTS)
    for read in read_damaged(tmp_path / "damaged.csv", load_stage_costs, seed=1):
        for cost in read.stages:
            assert min(cost.forward_s, cost.backward_s, cost.output_bytes, cost.saved_bytes) >= 0
