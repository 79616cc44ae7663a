"""What needs no torch works where there is none; what needs it says in one line how to get it."""

import os
import sys
from pathlib import Path

import pytest

from tests.processes import run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HIDE_TORCH = """
import sys
from importlib.machinery import PathFinder


class WithoutTorch(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        is_hidden = name.partition(".")[0] in ("torch", "safetensors")
        return None if is_hidden else PathFinder.find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTorch
"""
"""Runs as every Python starts, those that a command starts too."""

CALL_ALL = """
import sys
from pipesched.cli.main import main

if __name__ == "__main__":
    for line in sys.stdin:
        sys.argv[1:] = line.split()
        sys.stdout = open("answer.txt", "w")
        try:
            main()
        except SystemExit as done:
            print(done.code, file=sys.stderr, flush=True)
"""
PROFILE = ROOT / "profiles" / "data" / "gpt-10m-epyc.json"
TRACES = " ".join(str(ROOT / "notebooks" / "traces" / f"rank{rank}.json.gz") for rank in range(2))
WITHOUT = (
    "list",
    "show -s interleaved -p 2 -m 4 -v 2",
    "check -s 1f1b -p 2 -m 4",
    "versions -s pipedream -p 2 -m 4",
    "simulate -s 1f1b -p 2 -m 4 --uniform f=1,b=2 --out 1f1b.html",
    f"compare -s gpipe,zb_h1 -p 2 -m 4 --profile {PROFILE}",
    "gantt -s 1f1b -p 2 -m 4 --uniform f=1,b=2 --out 1f1b.png",
    "trace -s 1f1b -p 2 -m 4 --uniform f=1,b=2 --out trace.json",
    f"import {TRACES} --out run.json",
    "profile --from run.json --out costs.json",
    "replay run.json",
    "what-if run.json --schedule zb_h1",
    "profile gpt:layers=4 --gpu h100 --out gpt.json",
    "partition gpt.json -p 2",
    "plan gpt.json -b 8 --devices 2 --out plan.json",
    "simulate --plan plan.json --profile gpt.json",
    "export torchtitan --plan plan.json",
    f"tune {PROFILE} -p 2 -b 8",
)
WITH = (
    "profile mlp",
    "profile-links -p 2 --out links.json",
    "run -s 1f1b -p 2 -m 4 --uniform f=5ms,b=10ms",
    "run -s 1f1b -p 2 -m 4 --model mlp",
    "verify mlp -s 1f1b -p 2 -m 4",
    "train mlp -s 1f1b -p 2 -m 4 --steps 1",
    f"tune {PROFILE} -p 2 -b 8 --verify 1",
)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Return the lines on stderr of every command, the exit code last."""
    folder = tmp_path_factory.mktemp("without_torch")
    (folder / "sitecustomize.py").write_text(HIDE_TORCH)
    (folder / "commands.txt").write_text("\n".join(WITHOUT + WITH))
    (folder / "call_all.py").write_text(CALL_ALL)
    paths = os.pathsep.join((str(folder), str(ROOT)))
    with (folder / "commands.txt").open() as lines:
        done = run([sys.executable, "call_all.py"], cwd=folder, stdin=lines, env=os.environ | {"PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    said, answers = [], []
    for line in done.stderr.splitlines():
        said.append(line)
        if line.isdecimal():
            answers.append(said)
            said = []
    return dict(zip(WITHOUT + WITH, answers, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("command", WITHOUT)
def test_a_command_works_without_torch(answers, command):
    assert answers[command][-1] == "0", answers[command]


@pytest.mark.parametrize("command", WITH)
def test_a_command_that_needs_torch_says_how_to_install_it(answers, command):
    assert answers[command] == ['pipesched: torch is not installed; try pip install "pipesched[run]"', "4"]


@pytest.mark.slow
def test_the_library_is_imported_and_simulates_without_torch():
    done = run(
        [
            sys.executable,
            "-c",
            f"{HIDE_TORCH}\nimport pipesched; costs = pipesched.DeviceCost(1.0, 2.0)\n"
            "print(pipesched.simulate(pipesched.build('1f1b', 2, 4), costs).makespan_s)",
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert (done.stdout, done.stderr) == ("15.0\n", "")
