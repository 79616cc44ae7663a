"""Ctrl-C ends a command within a second and with a line, whoever swallows what Python raises, and leaves no file."""

import os
import signal
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


def interrupted(folder, code, number=signal.SIGINT):
    command = [sys.executable, "-c", f"{BEGUN}{code}\nmain()", *LINE.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with started(command, cwd=folder, env=environment, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert eventually(lambda: (folder / "begun").exists())
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, errors, sorted(path.name for path in folder.iterdir() if path.name != "begun")


@pytest.mark.parametrize(
    "code",
    [TRANSLATED, STUCK, PRINTING, LONG_CLEANING],
    ids=["translated", "stuck", "printing", "swallowed, cleaning"],
)
def test_an_interrupt_is_answered_by_a_line_and_leaves_no_file(tmp_path, code):
    begun_s = time.monotonic()
    assert interrupted(tmp_path, code) == (130, STOPPED, [])
    assert time.monotonic() - begun_s < 60, "it waited for what sleeps"


def test_a_signal_that_ends_it_is_answered_as_an_interrupt(tmp_path):
    assert interrupted(tmp_path, SWALLOWED, signal.SIGTERM) == (130, STOPPED, [])


def test_what_is_cleaned_up_at_the_end_is_not_interrupted_again(tmp_path):
    assert interrupted(tmp_path, CLEANING) == (130, STOPPED, ["cleaned"])


def test_who_keeps_a_command_when_all_is_done_is_interrupted_and_the_command_ends_as_it_would_have(tmp_path):
    begun_s = time.monotonic()
    assert interrupted(tmp_path, KEPT) == (0, "", ["t.csv", "x.json"])
    assert time.monotonic() - begun_s < 60, "it waited for what sleeps"


def test_when_all_files_are_in_their_places_it_is_too_late_to_interrupt(tmp_path):
    assert interrupted(tmp_path, DONE) == (0, "", ["t.csv", "x.json"])
