import os
import signal
from pathlib import Path

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.measuring import ProfilerSettings, profile_model
from pipesched.profiles.measuring.background_load import Companions
from pipesched.profiles.models import resolve_model
from pipesched.profiles.processes import command
from tests.processes import eventually, run

pytestmark = pytest.mark.slow

CHATTY = """
import sys
import torch
from torch import nn
print("imported")

class Chatty(nn.Linear):
    def forward(self, x):
        print("out")
        print("err", file=sys.stderr, flush=True)
        with open("runs", "a") as file:
            file.write(".")
        return super().forward(x)

def factory():
    print("called")
    return [Chatty(4, 4)], nn.functional.mse_loss, lambda n, seed: (torch.ones(n, 4), torch.zeros(n, 4))
"""


def children():
    """Return the processes whose parent we are, zombies included."""
    me = str(os.getpid())
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == me:
            pids.append(entry.name)
    return pids


def companions(model, count=1):
    return Companions(model, count, "cpu", ProfilerSettings(microbatch_sizes=(1,)))


@pytest.mark.distributed
def test_a_profile_says_that_it_was_measured_in_company():
    before = children()
    settings = ProfilerSettings(microbatch_sizes=(1, 2), repeats=1, companions=1)
    profile = profile_model(resolve_model("mlp:width=4,layers=2"), settings)
    assert profile.provenance.companions == 1
    assert children() == before


def test_a_companion_ends_with_its_parent_also_while_torch_is_loaded(tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit(7)")
    sizes = ["--dtype", "float32", "--device", "cpu", "--threads", "1", "--seed", "0"]
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])

    def code(parent):
        words = command("pipesched.profiles.measuring.background_load", "mlp", *sizes, "--ends", "0", str(parent))
        return run(words, env=os.environ | {"PYTHONPATH": path}).returncode

    assert code(os.getpid()) == 7  # it came to load torch
    assert code(os.getpid() + 1) == -signal.SIGKILL


@pytest.mark.distributed
def test_a_companion_that_cannot_run_the_model_says_why():
    with companions("not_there_at_all:f") as others, pytest.raises(ProfileError, match="ModuleNotFoundError"):
        others.use(1)


@pytest.mark.distributed
def test_what_a_companions_model_prints_is_no_answer_and_does_not_pile_up_and_it_ends_where_the_measurement_fails(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chatty.py").write_text(CHATTY)
    runs, before = tmp_path / "runs", children()
    with pytest.raises(KeyError), companions("chatty:factory") as others:  # noqa: PT012  # fails at the end
        for size in (1, 2, 1):
            others.use(size)
            written = runs.stat().st_size
            assert eventually(lambda written=written: runs.stat().st_size > written + 100)
        assert os.fstat(others._errors[0].fileno()).st_size <= 3 * len("err\n")
        assert len(children()) == len(before) + 1
        raise KeyError
    assert children() == before
