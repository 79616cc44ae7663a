"""Ctrl-C ends a command within a second and with a line, though other code may swallow KeyboardInterrupt.

While the command line is imported too; a library's import ends as at any other.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.processes import PATIENCE_S, eventually, started

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LINE = "simulate -s 1f1b -p 2 -m 4 --uniform f=1,b=2 --timeline t.csv --out x.json"
STOPPED = "pipesched: stopped\n"

BEGUN = """
import signal, sys, time
from pathlib import Path
from pipesched.__main__ import main
def begin():
    Path("begun").touch()
    time.sleep(60)
"""
SWALLOWED = """
import pipesched as room
class Library:
    def __del__(self):
        begin()
def simulate(*given, **named):
    Library()
    time.sleep(60)
room.simulate = simulate
"""
TRANSLATED = """
import pipesched as room
def simulate(*given, **named):
    try:
        begin()
    except BaseException as error:
        raise ValueError("a library was surprised") from error
room.simulate = simulate
"""
STUCK = """
import pipesched as room
def simulate(*given, **named):
    try:
        begin()
    finally:
        time.sleep(60)
room.simulate = simulate
"""
PRINTING = """
import pipesched.cli.commands.simulate as command
command.print_answer = lambda *given, **named: begin()
"""
CLEANING = (
    """
import atexit
def clean():
    for _ in range(3):
        time.sleep(0.15)
    Path("cleaned").touch()
atexit.register(clean)
"""
    + SWALLOWED
)
LONG_CLEANING = (
    """
import atexit
atexit.register(lambda: time.sleep(60))
"""
    + SWALLOWED
)
KEPT = """
import atexit
import pipesched.cli.main as program
program.say_written = lambda: atexit.register(begin)
"""
DONE = """
import pipesched.cli.main as program
program.say_written = lambda: (Path("begun").touch(), time.sleep(1))
"""


LOADING = "import time\nfrom pathlib import Path\nPath('begun').touch()\ntime.sleep(60)\n"
SWALLOWING = LOADING.replace("time.sleep(60)", "try:\n    time.sleep(60)\nexcept BaseException:\n    time.sleep(60)")
SCRIPT = "import sys\nfrom pipesched.__main__ import main\nsys.exit(main())\n"
ASKING = (
    "import sys\nsys.argv[0] = 'pipesched'\nimport pipesched, signal\nprint(signal.getsignal(signal.SIGINT).name)\n"
)


def interrupted(folder, words, number=signal.SIGINT):
    """Return the exit code and stderr of a Python that gets the signal when it has begun, and its files."""
    before = sorted(folder.iterdir())
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    command = [sys.executable, *words]
    with started(command, cwd=folder, env=environment, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert eventually(lambda: (folder / "begun").exists())
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    (folder / "begun").unlink()
    return process.returncode, errors, sorted(path.name for path in {*folder.iterdir()} - {*before})


def command_of(code):
    return ["-c", f"{BEGUN}{code}\nmain()", *LINE.split()]


@pytest.mark.parametrize(
    ("code", "number", "expected"),
    [
        (TRANSLATED, signal.SIGINT, (130, STOPPED, [])),
        (STUCK, signal.SIGINT, (130, STOPPED, [])),
        (PRINTING, signal.SIGINT, (130, STOPPED, [])),
        (LONG_CLEANING, signal.SIGINT, (130, STOPPED, [])),
        (SWALLOWED, signal.SIGTERM, (130, STOPPED, [])),
        (CLEANING, signal.SIGINT, (130, STOPPED, ["cleaned"])),  # which is not interrupted again
        (KEPT, signal.SIGINT, (0, "", ["t.csv", "x.json"])),  # at the end nobody may keep a command that is done
        (DONE, signal.SIGINT, (0, "", ["t.csv", "x.json"])),  # when all files are in their places it is too late
    ],
    ids=["translated", "stuck", "printing", "swallowed, cleaning", "sigterm", "cleaning", "kept", "done"],
)
def test_an_interrupt_is_answered_by_a_line_and_leaves_no_file_unless_all_is_done(tmp_path, code, number, expected):
    begun_s = time.monotonic()
    assert interrupted(tmp_path, command_of(code), number) == expected
    assert time.monotonic() - begun_s < 60, "it waited for what sleeps"


@pytest.mark.parametrize("how", ["module", "script", "library"])
def test_an_interrupt_during_imports_is_answered_by_a_line_too(tmp_path, how):
    """Of the first library of all."""
    (tmp_path / "lazy_loader.py").write_text(SWALLOWING if how == "script" else LOADING)
    (tmp_path / "pipesched").write_text(SCRIPT)
    words = {"module": ["-m", "pipesched", "list"], "script": [str(tmp_path / "pipesched"), "list"]}
    code, errors, _ = interrupted(tmp_path, words.get(how, ["-c", "import pipesched"]))
    if how == "library":
        assert (code, errors.rstrip().endswith("KeyboardInterrupt")) == (-signal.SIGINT, True)
    else:
        assert (code, errors) == (130, STOPPED)


def test_where_interrupts_are_ignored_they_stay_so(tmp_path):
    """As a shell starts what goes on behind it."""
    (tmp_path / "ask.py").write_text(ASKING)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        answer = subprocess.check_output([sys.executable, "ask.py"], cwd=tmp_path, env=environment, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert answer == "SIG_IGN\n"
