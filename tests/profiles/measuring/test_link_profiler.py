import os
import sys
from pathlib import Path

import pytest
import torch

from pipesched.profiles.measuring import link_profiler, main
from tests.processes import run_all

ROOT = Path(__file__).parents[3]


def profiled(folder, *arguments, size=2, ranks=None):
    """Run these ranks of `size`, which meet in `folder`; return their exit codes and what they say."""
    command = [sys.executable, "-m", "pipesched.profiles.measuring.link_profiler", "--meet", f"file://{folder}/store"]
    given = os.environ | {"WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    done = run_all([([*command, *arguments], given | {"RANK": str(rank)}) for rank in ranks or range(size)], cwd=ROOT)
    return [process.returncode for process in done], [process.stderr for process in done]


@pytest.mark.parametrize("seconds", ["1e300", "nan", "0", "604801"])
def test_a_timeout_beyond_all_reason_is_refused_in_one_line(capsys, seconds):
    assert main(["--out", "x.json", "--timeout-s", seconds]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"links: timeout_s: got {float(seconds):g}, expected seconds above 0, and at most a week")
    assert told.count("\n") == 1


@pytest.mark.distributed
def test_a_rank_alone_gives_up_within_its_timeout(tmp_path):
    path = tmp_path / "c.json"
    codes, errors = profiled(tmp_path, "--out", str(path), "--timeout-s", "2", ranks=[0])
    assert codes == [3]
    assert "is every rank up?" in errors[0]
    assert "Traceback" not in errors[0]
    assert not path.exists()


def test_a_single_rank_is_told_to_bring_another(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert main(["--meet", f"file://{tmp_path}/store", "--out", str(tmp_path / "c.json")]) == 2
    assert capsys.readouterr().err.startswith("links: got 1 rank, expected at least 2")


def test_without_torchruns_environment_the_missing_variables_are_named(monkeypatch, capsys):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert main(["--out", "c.json"]) == 2
    told = capsys.readouterr().err
    assert "RANK, WORLD_SIZE" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(("num_visible", "index"), [(4, 3), (1, 0)], ids=["all of the node", "its own alone"])
def test_over_nccl_a_rank_uses_the_gpu_of_its_local_rank_among_those_that_it_sees(num_visible, index, monkeypatch):
    for name, value in {"RANK": "7", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_visible)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    assert link_profiler._device("nccl", "file:///store") == torch.device("cuda", index)
