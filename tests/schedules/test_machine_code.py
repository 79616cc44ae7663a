"""Machine code is kept on disk, made anew after a change, and does the same as Python."""

import os
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

from pipesched.schedules.columns import machine_code


class Pair(NamedTuple):
    sums: list[float]
    rows: list[list[int]]


def add_up(columns, nothing):
    given, pair = columns
    total = 0
    for i in range(len(given)):
        total += given[i]
        pair.sums[i] = total
    pair.rows[1][2] = total + len(nothing)
    return total


LOOP = """
def add(numbers, factor):
    total = numbers[0]
    for number in numbers[1:]:
        total += factor * number
    return total
"""
PROGRAM = """
import numba
import numpy as np
from pipesched.schedules.columns import machine_code
from loop import add

machine_code.on_compile(lambda is_kept: print("compiling", is_kept))
machine_code.BREAK_EVEN = 10
print(*(machine_code._is_hot(num_steps, add, ()) for num_steps in (9, 1, 109, 1)))
print(machine_code.compiled(add)(np.arange(4.0), 2.0), machine_code.compiled(add)(np.arange(4), 2))
print(machine_code.compiling_s() > 0)
print(numba.njit(lambda number: np.full(2, number).sum())(2.0))
"""


def told_by(program, folder, **environment):
    """Return what a program has said that runs in a folder."""
    environment = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
def test_machine_code_is_made_anew_when_a_part_or_a_constant_in_another_file_of_its_room_has_changed(tmp_path):
    pytest.importorskip("numba")
    parts, constants = tmp_path / "parts", tmp_path / "constants"
    for room in (parts, constants):
        room.mkdir()
    (parts / "doubling.py").write_text("from part import part\n\ndef loop(number):\n    return part(number) + 1\n")
    (constants / "scaling.py").write_text("from codes import FACTOR\n\ndef loop(number):\n    return FACTOR * number\n")
    program = (
        "import sys; sys.path += ['parts', 'constants']; from pipesched.schedules.columns import machine_code; "
        "import doubling, part, scaling; "
        "print(machine_code.compiled(doubling.loop, (part.part,))(3), machine_code.compiled(scaling.loop)(3))"
    )
    for factor in (2, 5):
        (parts / "part.py").write_text(f"def part(number):\n    return {factor} * number\n")
        (constants / "codes.py").write_text(f"FACTOR = {factor}\n")
        told = told_by(program, tmp_path, PYTHONDONTWRITEBYTECODE="1")
        assert told.stdout.split() == [str(3 * factor + 1), str(3 * factor)]


@pytest.mark.slow
def test_an_index_below_0_counts_from_the_end_and_one_outside_is_refused_where_machine_code_asks(tmp_path):
    pytest.importorskip("numba")
    (tmp_path / "last.py").write_text("def last(numbers, index):\n    return numbers[index]\n")
    program = (
        "import numpy; from pipesched.schedules.columns import machine_code; from last import last; "
        "print(machine_code.compiled(last)(numpy.arange(3), -1)); machine_code.compiled(last)(numpy.arange(3), 3)"
    )
    told = told_by(program, tmp_path, NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))
    assert told.stdout.split() == ["2"]
    assert told.stderr.splitlines()[-1] == "IndexError: index is out of bounds"


@pytest.mark.slow
def test_code_on_disk_is_loaded_earlier_than_a_loop_is_compiled_and_compiling_is_reported_once(tmp_path):
    """Also where a loop of no file has no folder for its machine code, and other code is compiled after it.

    The seconds of compiling leave out loading.
    """
    pytest.importorskip("numba")
    (tmp_path / "loop.py").write_text(LOOP)
    code = f"import sys; sys.path[:] = {[str(tmp_path), *sys.path]}\n{PROGRAM}"
    homeless = code.replace("from loop import add", LOOP)
    kept = str(tmp_path / "kept")
    first, again, anew = (told_by(program, tmp_path, NUMBA_CACHE_DIR=kept) for program in (code, code, homeless))
    assert (first.stdout, first.stderr) == ("False False False True\ncompiling True\n12.0 12\nTrue\n4.0\n", "")
    assert (again.stdout, again.stderr) == ("False True True True\n12.0 12\nFalse\ncompiling False\n4.0\n", "")
    assert (anew.stdout, anew.stderr) == ("False False False True\ncompiling False\n12.0 12\nTrue\n4.0\n", "")


@pytest.mark.slow
def test_of_two_processes_that_start_together_one_compiles_a_loop(tmp_path):
    pytest.importorskip("numba")
    (tmp_path / "loop.py").write_text(f"import numpy as np\n{LOOP}")
    program = (
        "import numba; from loop import add, np; from pipesched.schedules.columns import machine_code; "
        "machine_code.on_compile(lambda _: print('compiling')); machine_code.BREAK_EVEN = 0; "
        "print('ready', flush=True); input(); print(machine_code.run_loop(add, np.arange(4.0), 2.0, num_steps=1))"
    )
    pipes, environment = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}, dict(os.environ)
    environment["NUMBA_CACHE_DIR"] = str(tmp_path / "kept")
    started = [
        subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=environment, **pipes) for _ in range(2)
    ]
    assert [process.stdout.readline() for process in started] == ["ready\n"] * 2
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    assert sorted(process.communicate(timeout=120)[0] for process in started) == ["12.0\n", "compiling\n12.0\n"]


@pytest.mark.slow
def test_a_loop_changes_its_arrays_and_no_others_in_both_ways(monkeypatch):
    pytest.importorskip("numba")
    for break_even in (10**12, 0):
        monkeypatch.setattr(machine_code, "BREAK_EVEN", break_even)
        given, sums, rows, nothing = np.arange(4), np.zeros(4), np.zeros((2, 3), np.int32), np.zeros((0, 3))
        given.flags.writeable = False
        assert machine_code.run_loop(add_up, (given, Pair(sums, rows)), nothing, num_steps=10) == 6
        assert sums.tolist() == [0, 1, 3, 6]
        assert rows.tolist() == [[0, 0, 0], [0, 0, 6]]
