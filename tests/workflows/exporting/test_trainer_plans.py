"""Plans for one trainer: each plan found can be exported, and each refusal names a way out that works."""

from dataclasses import replace
from typing import get_args

import pytest

import pipesched
from pipesched.profiles.clusters import Cluster, Device, Link, of_nodes
from pipesched.questions import TrainerName
from pipesched.workflows.exporting import export_setting

PROFILE = "profiles/data/gpt-10m-epyc.json"
TWO_NODES = of_nodes(
    Cluster((Device(),) * 2, intra=Link(bandwidth_bytes_per_s=1e11), inter=Link(bandwidth_bytes_per_s=1e9)), 2
)
SCHEDULES = ["gpipe", "1f1b", "interleaved", "zb_h1", "zbv", "hanayo", "chimera", "looped_bfs", "wpipe"]
TRAINERS = get_args(TrainerName)
RUNS = {
    "megatron": lambda c: c.schedule == "1f1b" or (c.schedule == "interleaved" and c.num_microbatches >= c.num_ranks),
    "torchtitan": lambda c: (
        c.schedule not in ("hanayo", "chimera", "wpipe") and (c.placement == "data" or 1 in (c.num_ranks, c.width))
    ),
    "deepspeed": lambda c: (
        c.schedule == "1f1b"
        and (c.placement == "data" or 1 in (c.num_ranks, c.width))
        and max(c.partition) - min(c.partition) <= 1
        and list(c.partition) == sorted(c.partition, reverse=True)
    ),
}
"""The rules of the trainers, as their documentation has them."""


def searched(**options):
    options = {"schedules": SCHEDULES, "asynchronous": True, "recompute": "no", "top": 60} | options
    return pipesched.plan(pipesched.Setup(PROFILE, TWO_NODES), batch_size=8, **options)


@pytest.fixture(scope="module")
def anything():
    return searched(compression="both")


def is_exported(plan, trainer):
    try:
        return bool(export_setting(plan, trainer))
    except ValueError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_plans_that_a_trainer_can_be_told_of_are_known_and_are_those_that_it_runs(anything, trainer):
    plans = dict(enumerate(anything.ranking.ranked, 1))
    assert len(plans) > 30
    runs = [
        number
        for number, outcome in plans.items()
        if outcome.setting.compression is None and RUNS[trainer](outcome.setting)
    ]
    assert list(anything.trainers[trainer]) == runs
    assert [n for n, outcome in plans.items() if is_exported(anything.request.plan_of(outcome), trainer)] == runs
    assert 0 < len(runs) < len(plans)


@pytest.mark.slow
@pytest.mark.parametrize("trainer", TRAINERS)
def test_only_what_the_trainer_runs_is_searched_for_it_and_all_of_that(anything, trainer):
    result = searched(trainer=trainer, compression="both")
    candidates = [outcome.setting for outcome in result.ranking.ranked]
    assert result.trainers[trainer] == tuple(range(1, len(candidates) + 1))
    assert all(RUNS[trainer](candidate) for candidate in candidates)
    asked = dict(enumerate(anything.ranking.ranked, 1))
    assert {asked[number].setting for number in anything.trainers[trainer]} <= set(candidates)
    assert export_setting(result.plan, trainer) == result.export(trainer)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainer_recomputes_late_and_its_plans_are_predicted_so(trainer):
    options = {"schedules": ["1f1b"], "depths": [4], "recompute": "yes", "top": 1}
    early, late = (searched(**options, trainer=asked) for asked in (None, trainer))
    assert (early.plan.schedule_spec.recompute_when, late.plan.schedule_spec.recompute_when) == ("early", "late")
    assert early.best.setting.recompute_when == "early"
    assert late.to_dict()["plans"][0]["candidate"]["recompute_when"] == "late"
    simulation = pipesched.simulate(late.plan, pipesched.Setup(PROFILE, TWO_NODES))
    assert simulation.makespan_s == pytest.approx(late.best.seconds, rel=1e-9)
    with pytest.raises(pipesched.ArgumentError, match=f"^recompute_when: got early with `trainer={trainer}`, expected"):
        searched(**options, trainer=trainer, recompute_when="early")


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_refused_plan_has_a_way_out(anything, trainer):
    """The advice is followed as it stands: other words of the plan, or a plan for the trainer."""
    for outcome in anything.ranking.ranked:
        plan, changes = anything.request.plan_of(outcome), {}
        for _ in range(3):
            try:
                assert export_setting(plan, trainer, **changes)
                break
            except pipesched.ArgumentError as error:
                advice = str(error).rpartition("; try ")[2]
            if advice == f"pipesched.plan with `trainer={trainer}`":
                break  # which is what the test above does
            name, value = advice.partition("`, or")[0].strip("`").split("=")
            changes[name] = value
        else:
            pytest.fail(f"{outcome.setting}: {advice}")


def test_a_profile_that_the_trainer_cannot_run_is_refused_with_its_reason():
    profile = pipesched.load_profile(PROFILE)
    half = replace(profile, provenance=replace(profile.provenance, dtype="float16"))
    with pytest.raises(pipesched.ProfileError, match=r"dtype: got float16, expected bfloat16 or float32"):
        pipesched.plan(pipesched.Setup(half, TWO_NODES), batch_size=8, trainer="torchtitan")


def test_an_unknown_trainer_is_refused():
    with pytest.raises(pipesched.ArgumentError, match="trainer: got 'nemo'"):
        pipesched.plan(pipesched.Setup(PROFILE, TWO_NODES), batch_size=8, trainer="nemo")
