"""A model may print, wherever it runs: stdout has what the command says, and nothing else."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.processes import run

ROOT = Path(__file__).parents[2]
MODEL = """
import os
import torch
from torch import nn
print("imported")

class Layer(nn.Linear):
    def forward(self, x):
        print("forward")
        return super().forward(x)

def batch(n, seed):
    print("batch")
    return torch.ones(n, 4), torch.zeros(n, 4)

def factory():
    print("called")
    os.write(1, b"not through Python\\n")
    os.system("echo from another process")
    return [Layer(4, 4), Layer(4, 4)], nn.functional.mse_loss, batch
"""


SAID_ONCE = {"imported", "called", "not through Python", "from another process"}


@pytest.mark.distributed
def test_whatever_a_model_prints_goes_to_stderr(folder):
    (folder / "prints.py").write_text(MODEL)
    line = "profile prints:factory --repeats 1 --companions 1 --json"
    command = [sys.executable, "-m", "pipesched", *line.split()]
    done = run(command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert set(done.stderr.splitlines()) == SAID_ONCE | {"batch", "forward"}


@pytest.mark.distributed
@pytest.mark.parametrize(
    "line",
    [
        "run --model prints:factory -s gpipe -p 2 -m 2 --iterations 1",
        "train prints:factory -s gpipe -p 2 -m 2 --batch-size 4 --steps 2",
    ],
)
def test_what_a_command_says_is_json_where_its_model_prints(pipesched, folder, line):
    (folder / "prints.py").write_text(MODEL)
    answer = pipesched(f"{line} --json")
    assert answer.code == 0
    assert json.loads(answer.out)
    assert "called" in answer.err.splitlines()
