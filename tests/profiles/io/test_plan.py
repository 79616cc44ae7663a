"""Plans as files, and what does not fit together in them."""

import json
from dataclasses import replace

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.profiles.costs import LayerSharding
from pipesched.profiles.io import Plan, Predicted, load_plan, save_json
from pipesched.schedules.builders import build
from pipesched.schedules.formats import to_json
from pipesched.schedules.transforms import ScheduleSpec

PLAN = Plan(
    model="gpt:layers=8",
    schedule_spec=ScheduleSpec(name="1f1b", num_ranks=2, num_microbatches=4, width=2, placement="data", recompute=(0,)),
    partition=(3, 5),
    microbatch_size=2,
    batch_size=16,
    compression="half",
    predicted=Predicted(0.5, 32.0, (1e9, 2e9, 1e9, 2e9), bubble_fraction=0.2),
    origin="by hand",
    dtype="bfloat16",
    sharding=LayerSharding(tensor=4, has_sequence=True, recompute="selective"),
    cluster=Cluster(
        (Device(memory_bytes=10**9), Device(node=1)) * 2, Link(1e-6), Link(1e-5, 1e10), nics=((0, 2), (1, 3))
    ),
)
OTHERS = {
    "replicas": replace(
        PLAN,
        schedule_spec=ScheduleSpec(name="1f1b_rr", num_ranks=3, num_microbatches=2, parameters={"replicas": (2, 1)}),
        batch_size=4,
        compression=None,
    ),
    "lists": replace(
        PLAN, schedule_spec=ScheduleSpec(lists=to_json(build("zb_h1", 2, 8)), recompute="all"), batch_size=16
    ),
    "number": replace(
        PLAN, schedule_spec=ScheduleSpec(name="zb_auto", num_ranks=2, num_microbatches=8, parameters={"limit": 2.5})
    ),
}


@pytest.mark.parametrize("plan", [PLAN, *OTHERS.values()], ids=["width", *OTHERS])
def test_a_plan_comes_back_from_its_file(tmp_path, plan):
    save_json(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan


def test_its_file_names_itself_and_its_version(tmp_path):
    save_json(PLAN, tmp_path / "plan.json")
    written = json.loads((tmp_path / "plan.json").read_text())
    assert (written["format"], written["version"]) == ("pipesched-plan", 3)
    assert written["schedule_spec"]["width"] == 2
    assert written["predicted"]["memory_bytes"] == [1e9, 2e9, 1e9, 2e9]


def test_a_plan_by_hand_may_leave_out_its_machines_and_the_split_of_its_layers(tmp_path):
    save_json(PLAN, tmp_path / "plan.json")
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written.pop("cluster")["format"] == "pipesched-cluster"
    assert written.pop("sharding")["tensor"] == 4
    assert written.pop("dtype") == "bfloat16"
    (tmp_path / "plan.json").write_text(json.dumps(written))
    assert load_plan(tmp_path / "plan.json") == replace(PLAN, sharding=None, dtype="", cluster=None)


def test_bounds_are_the_sums_of_the_layers():
    assert PLAN.bounds == ((0, 3), (3, 8))


@pytest.mark.parametrize("plan", [PLAN, *OTHERS.values()], ids=["width", *OTHERS])
def test_its_run_takes_the_batch_in_micro_batches_of_all_copies(plan):
    run = plan.run(2)
    assert run.microbatches_per_step * plan.microbatch_size == plan.batch_size
    assert run.lists(2).num_microbatches == 2 * run.microbatches_per_step


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"partition": (8,)}, "partition: got 1 stages, expected 2, the stages of 1f1bx2"),
        ({"batch_size": 8}, "batch_size: got 8 samples, expected 8 micro-batches of 2"),
    ],
)
def test_what_does_not_fit_the_schedule_is_refused_in_one_line(change, words):
    with pytest.raises(ProfileError, match=words):
        replace(PLAN, **change).run(1)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"pipesched-plan"', '"pipesched.plan"', "got an answer with layouts, expected a plan; try a plan for"),
        ('"version": 1', '"version": 2', "version: got 2, expected 1"),
        ('"version": 3', '"version": 2', ": version: got 2, expected 3; correct it, or make the plan again"),
        ('"width": 2', '"width": 0', "schedule_spec.width: got 0"),
        ('"data"', '"diagonal"', "schedule_spec.placement: got 'diagonal'"),
        ('"seconds": 0.5', '"seconds": NaN', "predicted.seconds"),
        ('"batch_size": 16', '"batches": 16', "batch_size: got nothing"),
        ('"schedule_spec"', '"recipe"', "recipe: got an unknown field, "),
        ('"half"', '"quarter"', "compression: got 'quarter'"),
        (
            '"bubble_fraction": 0.2',
            '"bubble_fraction": 1.2',
            "predicted.bubble_fraction: got 1.2, expected at most 1; ",
        ),
        (
            '"recompute": [\n   0\n  ]',
            '"recompute": 3',
            ": schedule_spec.recompute: got 3, expected a list or 'all'; correct it",
        ),
        (
            '"recompute": [\n   0\n  ]',
            '"recompute": [[]]',
            ": schedule_spec.recompute.0: got [], expected an integer; correct it",
        ),
        (
            '"parameters": {}',
            '"parameters": {"a": {}}',
            ": schedule_spec.parameters.a: got {}, expected an integer or ",
        ),
    ],
)
def test_a_bad_field_is_refused_in_one_line_with_its_place(tmp_path, old, new, words):
    path = tmp_path / "plan.json"
    save_json(PLAN, path)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ProfileError) as refused:
        load_plan(path)
    message = str(refused.value)
    assert len(message.splitlines()) == 1
    assert message.startswith(f"{path}: ")
    assert words in message
