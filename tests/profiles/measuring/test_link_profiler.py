import json
import os
import sys
from pathlib import Path

import pytest

from pipesched.profiles.io import load_cluster
from pipesched.profiles.measuring import main
from tests.processes import run, run_all

ROOT = Path(__file__).parents[3]


def profiled(folder, *arguments, size=2, ranks=None):
    """Run these ranks of `size`, which meet in `folder`; return their exit codes and what they say."""
    command = [sys.executable, "-m", "pipesched.profiles.measuring.link_profiler", "--meet", f"file://{folder}/store"]
    given = os.environ | {"WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    done = run_all([([*command, *arguments], given | {"RANK": str(rank)}) for rank in ranks or range(size)], cwd=ROOT)
    return [process.returncode for process in done], [process.stderr for process in done]


@pytest.mark.distributed
def test_two_processes_measure_the_link_between_them(tmp_path):
    path = tmp_path / "c.json"
    sizes = ("--sizes", "64", "4096", "65536")
    codes, errors = profiled(tmp_path, "--out", str(path), *sizes, "--repeats", "2", "--timeout-s", "600")
    assert codes == [0, 0], errors
    cluster = load_cluster(path)
    assert len(cluster.devices) == 2
    assert {device.node for device in cluster.devices} == {0}
    assert cluster.inter is None
    assert cluster.links == ()
    assert cluster.link(0, 1).transfer_s(4096) > 0
    assert "gloo" in cluster.origin


@pytest.mark.distributed
def test_two_processes_measure_by_how_much_a_message_slows_what_they_compute(tmp_path):
    path = tmp_path / "slowdowns.json"
    codes, errors = profiled(tmp_path, "--slowdown", "--out", str(path), "--sizes", "64", "4194304", "--repeats", "3")
    assert codes == [0, 0], errors
    slowdowns = json.loads(path.read_text())
    assert len(slowdowns) == 2
    assert all(0 <= slowdown < 100 for slowdown in slowdowns)


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


@pytest.mark.distributed
def test_a_single_rank_is_told_to_bring_another(tmp_path):
    codes, errors = profiled(tmp_path, "--out", str(tmp_path / "c.json"), size=1)
    assert codes == [2]
    assert errors[0].startswith("links: got 1 rank, expected at least 2")


def test_without_torchruns_environment_the_missing_variables_are_named():
    env = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}}
    command = [sys.executable, "-m", "pipesched.profiles.measuring.link_profiler", "--out", "c.json"]
    done = run(command, cwd=ROOT, env=env)
    assert done.returncode == 2
    assert "RANK, WORLD_SIZE" in done.stderr
    assert len(done.stderr.splitlines()) == 1
