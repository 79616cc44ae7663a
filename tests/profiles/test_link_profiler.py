import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pipesched.profiles.files import load_cluster
from pipesched.profiles.link_profiler import main

ROOT = Path(__file__).parents[2]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(rank, size, port, *arguments):
    env = os.environ | {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pipesched.profiles.link_profiler", "--repeats", "2", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(processes):
    try:
        outputs = [process.communicate(timeout=90) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [process.returncode for process in processes], [error for _, error in outputs]


@pytest.mark.distributed
def test_two_processes_measure_the_link_between_them(tmp_path):
    path = tmp_path / "c.json"
    port = free_port()
    arguments = ("--out", str(path), "--sizes", "64", "4096", "65536", "--timeout-s", "60")
    codes, errors = finish([start(rank, 2, port, *arguments) for rank in range(2)])
    assert codes == [0, 0], errors
    found = load_cluster(path)
    assert len(found.devices) == 2
    assert {device.node for device in found.devices} == {0}
    assert found.inter is None
    assert found.links == ()
    assert found.link(0, 1).transfer_s(4096) > 0
    assert "gloo" in found.origin


@pytest.mark.distributed
@pytest.mark.parametrize("seconds", ["1e300", "nan", "0", "604801"])
def test_a_timeout_beyond_all_reason_is_refused_in_one_line(capsys, seconds):
    assert main(["--out", "x.json", "--timeout-s", seconds]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"links: --timeout-s: got {float(seconds):g}, expected seconds above 0, and at most a week")
    assert told.count("\n") == 1


def test_a_rank_alone_gives_up_within_its_timeout(tmp_path):
    path = tmp_path / "c.json"
    codes, errors = finish([start(0, 2, free_port(), "--out", str(path), "--timeout-s", "2")])
    assert codes == [3]
    assert "is every rank up?" in errors[0]
    assert "Traceback" not in errors[0]
    assert not path.exists()


@pytest.mark.distributed
def test_a_single_rank_is_told_to_bring_another(tmp_path):
    codes, errors = finish([start(0, 1, free_port(), "--out", str(tmp_path / "c.json"))])
    assert codes == [2]
    assert errors[0].startswith("links: got 1 rank, expected at least 2")


def test_without_torchruns_environment_the_missing_variables_are_named():
    env = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}}
    command = [sys.executable, "-m", "pipesched.profiles.link_profiler", "--out", "c.json"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "RANK, WORLD_SIZE" in done.stderr
    assert len(done.stderr.splitlines()) == 1
