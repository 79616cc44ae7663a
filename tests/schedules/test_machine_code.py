"""Machine code that is on disk is loaded without what compiling it needs, and anything can be compiled after it."""

import subprocess
import sys

import pytest

LOOP = """
def add(numbers, factor):
    total = numbers[0]
    for number in numbers[1:]:
        total += factor * number
    return total
"""
CALLS = """
import sys
import numba
import numpy as np
from pipesched.schedules import machine_code
from loop import add

loop = machine_code.compiled(add)
print(loop(np.arange(4.0), 2.0), *loop.stats.cache_hits.values(), "numba.np.arraymath" in sys.modules)
print(numba.njit(lambda number: np.full(2, number).sum())(2.0))
"""


def test_code_on_disk_is_loaded_quickly_and_other_code_is_compiled_after_it(tmp_path):
    pytest.importorskip("numba")
    (tmp_path / "loop.py").write_text(LOOP)
    path = [str(tmp_path), *sys.path]
    code = f"import sys; sys.path[:] = {path}\n{CALLS}"
    first, second = (subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(2))
    assert first.stdout.split("\n") == ["12.0 True", "4.0", ""], first.stderr
    assert second.stdout.split("\n") == ["12.0 1 False", "4.0", ""], second.stderr
