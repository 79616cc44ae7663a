"""What lies in the folder where a command is started is a user's model when it is named as one, and else nothing."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.processes import run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
OUR_NAMES = ("executor.py", "profiles.py", "profiles/__init__.py", "simulator.py", "schedules.py")
STANDARD_NAMES = ("queue.py", "random.py")
MODEL = """
import torch
from torch import nn
from first import width

class Layer(nn.Linear):
    def forward(self, x):
        from later import scale
        return scale * super().forward(x)

def factory():
    batch = lambda n, seed: (torch.ones(n, width), torch.zeros(n, width))
    return [Layer(width, width), Layer(width, width)], nn.functional.mse_loss, batch
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "profiles").mkdir()
    for name in OUR_NAMES:
        (tmp_path / name).write_text(f"raise ImportError('the {name} of the folder')")
    return tmp_path


@pytest.fixture
def worse(folder):
    """Return a folder in which ``python -m`` does not come far, but a script that lies elsewhere does."""
    for name in STANDARD_NAMES:
        (folder / name).write_text(f"raise ImportError('the {name} of the folder')")
    (folder / "mymodel.py").write_text(MODEL)
    (folder / "first.py").write_text("width = 4")
    (folder / "later.py").write_text("scale = 2.0")
    return folder


@pytest.fixture
def script(tmp_path_factory):
    """Return a script as an installation writes it."""
    path = tmp_path_factory.mktemp("bin") / "pipesched"
    path.write_text("from pipesched.cli.main import main\nif __name__ == '__main__':\n    main()\n")
    return str(path)


def python(folder, *arguments):
    done = run([sys.executable, *arguments], cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0
    said = [line for line in done.stderr.splitlines() if not re.fullmatch(r"pipesched: (wrote .*|.*: \d+ s.*)", line)]
    assert said == [], "but for what was written, and how far a slow machine is"
    return done.stdout


@pytest.mark.distributed
@pytest.mark.parametrize(
    "line",
    [
        "run -s 1f1b -p 2 -m 4 --model mymodel:factory",
        "profile mymodel:factory --repeats 1 --companions 1",
    ],
)
def test_a_command_takes_nothing_from_its_folder_but_the_model(worse, script, line):
    assert python(worse, script, *line.split())


@pytest.mark.distributed
def test_files_named_as_our_folders_are_in_nobodys_way(folder):
    line = f"tune {ROOT}/profiles/data/gpt-10m-epyc.json --ranks 2 --batch-size 8 -n 1-8 --workers 2"
    assert python(folder, "-m", "pipesched", *line.split())
