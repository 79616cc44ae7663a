import os
import signal
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from pipesched.profiles.processes import exit_code_of
from tests.processes import eventually, processes_in, run, started

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
IMPORT = (
    "import os, signal, sys, time\n"
    "from pipesched.profiles.processes.child_process import command, end_with, environment\n"
)
ELSEWHERE = "sys.platform = 'elsewhere'\n"


def python(code, **how):
    return run([sys.executable, "-c", IMPORT + code], cwd=ROOT, **how)


@pytest.mark.parametrize("system", ["", ELSEWHERE], ids=["here", "elsewhere"])
def test_a_process_whose_parent_was_gone_before_it_asked_ends(system):
    code = f"{system}end_with(os.getppid() + 1)\ntime.sleep(1000)"
    assert python(code).returncode == -signal.SIGKILL


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("system", ["", ELSEWHERE], ids=["here", "elsewhere"])
def test_a_process_ends_with_its_parent_however_that_ends(tmp_path, system):
    child = f"{IMPORT}{system}end_with(int(sys.argv[1]))\nprint('ready', flush=True)\ntime.sleep(1000)"
    code = f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}, str(os.getpid())])"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with started([sys.executable, "-c", code], cwd=tmp_path, env=environment, stdout=PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        assert len(processes_in(tmp_path)) == 2
        process.kill()
        process.wait()
        assert eventually(lambda: processes_in(tmp_path) == [])


def test_it_may_be_asked_to_end_by_itself():
    code = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nend_with(1 << 30, signal.SIGTERM)\ntime.sleep(1000)"
    assert python(code).returncode == 7


def test_a_child_finds_the_same_pipesched_and_nothing_of_the_working_directory(tmp_path):
    (tmp_path / "queue.py").write_text("raise ImportError('the queue of the working directory')")
    code = f"""import subprocess, pipesched
os.chdir({str(tmp_path)!r})
code = "import queue, pipesched; print(pipesched.__file__)"
assert command("pipesched")[1:] == ["-P", "-m", "pipesched"]
said = subprocess.run([sys.executable, "-P", "-c", code], env=environment(), capture_output=True, text=True)
assert (said.stdout.strip(), said.stderr) == (pipesched.__file__, ""), said"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = python(code, env=environment)  # found in the folder where it is started
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_how_a_process_ended_is_known_until_its_parent_has_asked():
    for code, expected in (("os._exit(7)", 7), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)):
        with started([sys.executable, "-c", f"import os, signal; {code}"]) as process:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            assert exit_code_of(process.pid) == expected
            process.wait()
            assert exit_code_of(process.pid) is None
    assert exit_code_of(os.getpid()) is None
