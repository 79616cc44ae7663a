"""``pipesched export``, and ``pipesched plan --export``."""

import json

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
    assert (answer.code, answer.err.split(", expected")[0]) == (
        2,
        "pipesched: --microbatch-size: got this option with --plan, which gives the size",
    )
