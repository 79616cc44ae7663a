"""Memory that is left, and errors that say that none is."""

import errno
import sys

import pytest

from pipesched.schedules.common import is_out_of_memory
from tests.processes import run

LIMITED = """
import resource
from pathlib import Path
from pipesched.schedules.common import is_out_of_memory, room_bytes

def limited(name, num_bytes, ask):
    kind = getattr(resource, name)
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (num_bytes, before[1]))
    answer = ask()
    resource.setrlimit(kind, before)
    return answer

def is_import_out_of_memory():
    return is_out_of_memory(ImportError("cannot import name 'x' from 'y'"))

used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
print(room_bytes(), *(limited(name, 2**29, room_bytes) for name in ("RLIMIT_AS", "RLIMIT_DATA")))
print(*(limited("RLIMIT_AS", used + room, is_import_out_of_memory) for room in (2**26, 2**30)))
"""


@pytest.mark.slow
def test_limits_of_the_process_bound_its_memory_and_a_library_that_fails_to_load_near_one_is_out_of_it():
    done = run([sys.executable, "-c", LIMITED])
    assert done.returncode == 0, done.stderr
    rooms, answers = map(str.split, done.stdout.splitlines())
    before, *after = map(int, rooms)
    assert all(0 < limited < 2**29 <= before for limited in after)
    assert answers == ["True", "False"]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("can't start new thread"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        ImportError("libLLVM.so: failed to map segment from shared object"),
        OSError("Could not find/load shared object file"),
    ],
)
def test_every_library_may_say_that_no_memory_is_left(error):
    assert is_out_of_memory(error)
    outer = ValueError("outer")
    outer.__cause__ = error
    assert is_out_of_memory(outer)


@pytest.mark.parametrize(
    "error", [ValueError("out of range"), OSError(errno.ENOSPC, "No space left"), RuntimeError("x"), ImportError("y")]
)
def test_other_errors_are_not_of_memory(error):
    assert not is_out_of_memory(error)
