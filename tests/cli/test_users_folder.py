"""What lies in the folder of a command is a user's model when it is named as one, and stdout has the answer alone."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.processes import run

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).parents[2]
OUR_NAMES = ("executor.py", "profiles.py", "profiles/__init__.py", "simulator.py", "schedules.py")
STANDARD_NAMES = ("queue.py", "random.py")
MODEL = """
import os
import torch
from torch import nn
from first import width
print("imported")

class Layer(nn.Linear):
    def forward(self, x):
        from later import scale
        print("forward")
        return scale * super().forward(x)

def batch(n, seed):
    print("batch")
    return torch.ones(n, width), torch.zeros(n, width)

def factory():
    print("called")
    os.write(1, b"not through Python\\n")
    os.system("echo from another process")
    return [Layer(width, width), Layer(width, width)], nn.functional.mse_loss, batch
"""
PRINTED = {"imported", "called", "not through Python", "from another process", "batch", "forward"}


@pytest.fixture
def same_names(tmp_path):
    """Return a folder with files that are named as our folders."""
    (tmp_path / "profiles").mkdir()
    for name in OUR_NAMES:
        (tmp_path / name).write_text(f"raise ImportError('the {name} of the folder')")
    return tmp_path


@pytest.fixture
def worse(same_names):
    """Return a folder in which ``python -m`` does not come far, but a script that lies elsewhere does."""
    for name in STANDARD_NAMES:
        (same_names / name).write_text(f"raise ImportError('the {name} of the folder')")
    write_model(same_names)
    return same_names


def write_model(folder):
    for name, text in {"mymodel": MODEL, "first": "width = 4", "later": "scale = 2.0"}.items():
        (folder / f"{name}.py").write_text(text)


@pytest.fixture
def script(tmp_path_factory):
    """Return a script as an installation writes it."""
    path = tmp_path_factory.mktemp("bin") / "pipesched"
    path.write_text("from pipesched.cli.main import main\nif __name__ == '__main__':\n    main()\n")
    return str(path)


def answer_and_rest(folder, *arguments):
    """Return the JSON on stdout, and the lines on stderr but for how far a slow machine is."""
    done = run([sys.executable, *arguments, "--json"], cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), {
        line for line in done.stderr.splitlines() if not re.fullmatch(r"pipesched: .*: \d+ s.*", line)
    }


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("run -s 1f1b -p 2 -m 4 --model mymodel:factory", PRINTED - {"batch", "forward"}),  # ranks print into logs
        ("profile mymodel:factory --repeats 1 --companions 1", PRINTED),
    ],
)
def test_a_command_takes_nothing_from_its_folder_but_the_model_which_prints_to_stderr(worse, script, line, printed):
    answer, rest = answer_and_rest(worse, script, *line.split())
    assert (bool(answer), rest) == (True, printed)


def test_files_named_as_our_folders_are_in_nobodys_way(same_names):
    line = f"tune {ROOT}/profiles/data/gpt-10m-epyc.json --ranks 2 --batch-size 8 -n 1-8 --workers 2"
    answer, rest = answer_and_rest(same_names, "-m", "pipesched", *line.split())
    assert (bool(answer), rest) == (True, set())


def test_a_model_prints_to_stderr_in_a_training_in_this_process_too(pipesched, folder, monkeypatch):
    write_model(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    answer = pipesched("train mymodel:factory -s gpipe -p 2 -m 2 --batch-size 4 --steps 2 --json")
    assert answer.code == 0
    assert json.loads(answer.out)
    assert "called" in answer.err.splitlines()
