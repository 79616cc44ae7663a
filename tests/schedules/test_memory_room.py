"""Memory that is left, and errors that say that none is."""

import errno
import sys

import pytest

from pipesched.schedules.common import is_out_of_memory
from tests.processes import run

LIMITED = """
import resource
from pipesched.schedules.common import room_bytes
before = room_bytes()
resource.setrlimit(resource.{limit}, ({bytes}, {bytes}))
print(before, room_bytes())
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_limits_of_the_process_bound_its_memory(limit):
    done = run([sys.executable, "-c", LIMITED.format(limit=limit, bytes=2**29)])
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    assert 0 < after < 2**29 <= before


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


IMPORTING = """
import resource
from pathlib import Path
from pipesched.schedules.common import is_out_of_memory
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {room}, used + {room}))
print(is_out_of_memory(ImportError("cannot import name 'x' from 'y'")))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("room", "answer"), [(2**26, "True"), (2**30, "False")])
def test_a_library_that_fails_to_load_near_the_limit_of_the_process_is_out_of_memory(room, answer):
    assert run([sys.executable, "-c", IMPORTING.format(room=room)]).stdout.strip() == answer
