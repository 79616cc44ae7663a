"""``pipesched export``, and ``pipesched plan --export``."""

import json

import pytest

from tests.cli.test_plan_command import measured  # noqa: F401 -- a fixture

NAMED = "-s 1f1b -p 4 -m 8 --partition 3,2,2,3 --microbatch-size 2"


def test_a_plan_is_exported_at_once_or_from_its_file(pipesched, measured, folder):  # noqa: F811
    line = f"plan {measured} -b 8 --devices 4 --depth 2 -s 1f1b --export torchtitan --out plan.json"
    at_once = pipesched(line)
    assert at_once.code == 0
    assert at_once.out.startswith("# torchtitan, 4 processes: 2 x 2 ranks of 1f1b\n")
    assert pipesched("export torchtitan --plan plan.json").out == at_once.out
    assert pipesched("export torchtitan --plan plan.json --out args.sh").out == ""
    assert (folder / "args.sh").read_text() == at_once.out


def test_a_schedule_by_name_is_exported(pipesched):
    assert "--pipeline-model-parallel-layout 'Ett|tt|tt|ttL'\n" in pipesched(f"export megatron {NAMED}").out
    assert pipesched(f"export megatron {NAMED.replace('3,2,2,3', 'Et*2|(tt|)*2t*2L')}") == pipesched(
        f"export megatron {NAMED}"
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"export deepspeed {NAMED}", "--partition: got 3,2,2,3, expected 3,3,2,2"),
        (f"export megatron {NAMED} --recompute 0,1", "--recompute: got stages 0, 1, expected all or none"),
        ("export megatron -s 1f1b -p 4 -m 8", "--partition: got none, expected it; try --partition 3,3,4"),
        (
            "export megatron -s zb_h1",
            "--schedule: got zb_h1, expected 1f1b or interleaved, as Megatron-LM has no other",
        ),
        ("export megatron -s 1f1b -p 4 --partition 3,3 --microbatch-size 2", "schedule 1f1b: -m missing"),
        (f"export megatron {NAMED} --partition 3,x", "--partition: got '3,x', expected layers per stage"),
        ("export nemo", "got 'nemo', expected one of 'torchtitan', 'megatron', 'deepspeed'"),
        ("plan nothing.json -b 8 --devices 4 --export megatron --json", "--export: got --json too"),
        ("plan nothing.json -b 8 --devices 4 --export megatron --explain", "--export: got --explain too"),
    ],
)
def test_what_cannot_be_exported_is_one_line(pipesched, line, said):
    answer = pipesched(line)
    assert answer.code == 2
    assert said in answer.err
    assert answer.err.count("\n") == 1


def test_the_table_of_plans_says_who_can_be_told_of_which(pipesched, measured):  # noqa: F811
    line = f"plan {measured} -b 8 --devices 2 --depth 2 -s gpipe,1f1b --recompute no"
    data = json.loads(pipesched(f"{line} --json").out)
    schedules = [plan["candidate"]["schedule"] for plan in data["plans"]]
    one_f_one_b = [number for number, name in enumerate(schedules, 1) if name == "1f1b"]
    assert data["trainers"]["megatron"] == one_f_one_b
    assert data["trainers"]["torchtitan"] == [*range(1, len(schedules) + 1)]
    assert "plans that each trainer can run (--export): torchtitan 1-" in pipesched(line).out


def test_beside_a_plan_nothing_is_said_again(pipesched, measured):  # noqa: F811
    pipesched(f"plan {measured} -b 8 --devices 2 --depth 2 -s 1f1b --out plan.json")
    answer = pipesched("export megatron --plan plan.json --microbatch-size 2")
    assert (answer.code, answer.err.split("; ")[0]) == (
        2,
        "pipesched: --microbatch-size: got it beside --plan, expected none",
    )
