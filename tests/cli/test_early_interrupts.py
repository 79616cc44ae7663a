"""Ctrl-C while the command line is imported ends it with a line, and a library's import as it ends any other."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.processes import PATIENCE_S, eventually, started

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SLOW = "import time\nfrom pathlib import Path\nPath('begun').touch()\ntime.sleep(60)\n"
SWALLOWING = SLOW.replace("time.sleep(60)", "try:\n    time.sleep(60)\nexcept BaseException:\n    time.sleep(60)")
SCRIPT = "import sys\nfrom pipesched.__main__ import main\nsys.exit(main())\n"


def interrupted(folder, words, slow=SLOW, **how):
    """Interrupt a command while it imports the first library of all."""
    (folder / "lazy_loader.py").write_text(slow)
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    command = [sys.executable, *words]
    with started(command, cwd=folder, env=environment, stdout=PIPE, stderr=PIPE, text=True, **how) as process:
        assert eventually(lambda: (folder / "begun").exists())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, errors


@pytest.mark.parametrize(("how", "slow"), [("module", SLOW), ("script", SWALLOWING)], ids=["module", "script"])
def test_the_command_line_says_that_it_is_stopped(how, slow, tmp_path):
    script = tmp_path / "bin" / "pipesched"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    words = ["-m", "pipesched", "list"] if how == "module" else [str(script), "list"]
    assert interrupted(tmp_path, words, slow) == (130, "pipesched: stopped\n")


def test_who_imports_the_library_is_interrupted_as_by_any_other(tmp_path):
    code, errors = interrupted(tmp_path, ["-c", "import pipesched"])
    assert code == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")


def test_where_interrupts_are_ignored_they_stay_so(tmp_path):
    """As a shell starts what goes on behind it."""
    (tmp_path / "ask.py").write_text(
        "import sys\nsys.argv[0] = 'pipesched'\nimport pipesched, signal\nprint(signal.getsignal(signal.SIGINT).name)\n"
    )
    command = [sys.executable, "ask.py"]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=PIPE, text=True, check=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.stdout == "SIG_IGN\n"
