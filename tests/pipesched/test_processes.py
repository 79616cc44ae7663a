"""What only whole processes show: what is loaded, closed pipes, and being stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "pandas", "matplotlib")


def python(*arguments, cwd=ROOT):
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


def loaded_by(code, modules):
    done = python("-c", f"{code}\nimport sys, json\nprint(json.dumps([m for m in {modules!r} if m in sys.modules]))")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "line", ["--help", "simulate -s 1f1b -p 2 -m 4 --uniform f=1,b=2 --json", "list", "run --help"]
)
def test_light_commands_load_nothing_heavy(line):
    code = f"import sys\nsys.argv = ['pipesched', *{line.split()!r}]\nfrom pipesched.__main__ import main\n"
    code += "try:\n    main()\nexcept SystemExit as done:\n    assert not done.code, done.code"
    assert loaded_by(code, HEAVY) == []


def test_the_libraries_load_nothing_heavy():
    rooms = "from pipesched import schedules, profiles, simulator; import pipesched.schedules.formats"
    assert loaded_by(rooms, (*HEAVY, "pydantic")) == []
    assert loaded_by("import pipesched.executor", HEAVY) == []


@pytest.mark.parametrize(
    "package", [f"pipesched.{room}" for room in ("schedules", "schedules.formats", "profiles", "simulator", "executor")]
)
def test_every_public_name_can_be_imported(package):
    module = __import__(package, fromlist=["__all__"])
    assert sorted(module.__all__) == list(dict.fromkeys(sorted(module.__all__)))
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_a_closed_pipe_ends_it_quietly():
    command = [sys.executable, "-m", "pipesched", "trace", "-s", "1f1b", "-p", "4", "-m", "300", "--uniform", "f=1,b=2"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 0


def test_a_full_disk_is_said_in_one_line():
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "pipesched", "list"]
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"No space left" in done.stderr


def ranks_in(folder):
    """Return the processes that work in `folder`."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "cwd").readlink() == folder:
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.distributed
@pytest.mark.timeout(60)
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks for the ranks in /proc")
@pytest.mark.parametrize(
    ("stop", "line", "count"),
    [
        (signal.SIGINT, "run -s 1f1b -p 2 -m 4 --uniform f=9,b=9", 3),
        (signal.SIGTERM, "run -s 1f1b -p 2 -m 4 --uniform f=9,b=9", 3),
        # a reference process beside two ranks
        (signal.SIGINT, "run -s avgpipe -p 1 -m 2 --model mlp:layers=1,width=8 --iterations 1000000", 4),
    ],
    ids=["interrupted", "terminated", "averaged"],
)
def test_a_run_that_is_stopped_leaves_no_process_and_no_file(tmp_path, stop, line, count):
    line += " --out x.json"
    command = [sys.executable, "-m", "pipesched", *line.split()]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 30
        while len(ranks_in(tmp_path)) < count and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(stop)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, "", "pipesched: stopped\n")
    while ranks_in(tmp_path) and time.monotonic() < deadline:  # a reference ends just after its rank
        time.sleep(0.05)
    assert ranks_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.distributed
@pytest.mark.timeout(60)
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks for the ranks in /proc")
def test_a_run_that_is_killed_leaves_no_process(tmp_path):
    line = "run -s 1f1b -p 2 -m 4 --uniform f=9,b=9"
    command = [sys.executable, "-m", "pipesched", *line.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as process:
        deadline = time.monotonic() + 30
        while len(ranks_in(tmp_path)) < 4 and time.monotonic() < deadline:  # it, what ranks are forked from, the ranks
            time.sleep(0.05)
        process.kill()
    while ranks_in(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ranks_in(tmp_path) == []
