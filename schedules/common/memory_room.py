"""Free memory, to refuse objects that are too large before they are made, and a pause of the garbage collector."""

from __future__ import annotations

import errno
import gc
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipesched.schedules.common.quoting import OneLineError

_TORCH_BYTES = 1_400 << 20
"""Least address space for a process with torch: ranks of torch 2.13 hung at 1,000 MiB and ran at 1,500 [bytes]."""
_NUMBA_BYTES = 1_000 << 20
"""Least address space for a process that compiles: LLVM hung at 500 MiB and ran at 900 [bytes]."""
_UNKNOWN_BYTES = 8 << 30
"""Assumed memory if no system reports it."""

_CGROUPS = (
    ("/sys/fs/cgroup", "", "memory.max", "memory.current"),
    ("/sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""By version of control groups: root folder, controller in /proc/self/cgroup, and the files of limit and use."""

_LIMITS = (("RLIMIT_AS", 0), ("RLIMIT_DATA", 5))
"""Limits of this process (ulimit -v and -d), each with the field of /proc/self/statm that counts the pages in use."""

_EXHAUSTED = re.compile(
    "(cannot|can't|unable to|could not|failed to) (allocate|map segment|start new thread|start a thread)|"
    "out of memory|not enough memory|load shared object|without exception set|without setting an exception",
    re.IGNORECASE,
)


_SCARCE_BYTES = 256 << 20
"""Free memory below which any failure to load a library counts as a lack of memory [bytes]."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, reports a lack of memory in the words of any library."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return True
        if isinstance(error, RuntimeError | ImportError | SystemError | OSError) and _EXHAUSTED.search(str(error)):
            return True
        if type(error) is ImportError and min(_limit_rooms(), default=_SCARCE_BYTES) < _SCARCE_BYTES:
            return True
        error = error.__cause__ or error.__context__
    return False


def require_room_for_torch() -> None:
    """Refuse to load torch into a small address space, where torch would end the process or wait forever.

    Raises:
        OneLineError: The address space is too small.
    """
    limit_bytes = address_space_bytes()
    if limit_bytes is not None and limit_bytes < _TORCH_BYTES:
        raise OneLineError(
            f"memory: got a limit of {limit_bytes >> 20} MiB (ulimit -v), expected at least {_TORCH_BYTES >> 20} MiB "
            "for torch; raise the limit"
        )


def has_room_for_numba() -> bool:
    """Return whether the address space is large enough to compile; in a smaller one LLVM would fail or wait forever."""
    limit_bytes = address_space_bytes()
    return limit_bytes is None or limit_bytes >= _NUMBA_BYTES


def address_space_bytes() -> int | None:
    """Return the limit of this process's address space [bytes]; None without a limit."""
    try:
        import resource
    except ImportError:  # another system than POSIX
        return None
    limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit_bytes == resource.RLIM_INFINITY else limit_bytes


def room_bytes() -> int:
    """Return the bytes that this process can still allocate: the least under the machine, control groups and limits."""
    rooms = [*_limit_rooms(), *_cgroup_rooms()]
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        rooms += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    if not rooms:
        with suppress(OSError, ValueError, AttributeError):
            rooms.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return max(0, min(rooms, default=_UNKNOWN_BYTES))


def _limit_rooms() -> Iterator[int]:
    with suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        pages = Path("/proc/self/statm").read_text().split()
        for name, field in _LIMITS:
            soft = resource.getrlimit(getattr(resource, name))[0]
            if soft != resource.RLIM_INFINITY:
                yield soft - int(pages[field]) * resource.getpagesize()


def _cgroup_rooms() -> Iterator[int]:
    groups: dict[str, str] = {}
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            groups.update(dict.fromkeys(controllers.split(","), group.strip("/")))
    for root, controller, limit, used in _CGROUPS:
        folder = Path(root, groups.get(controller, ""))
        for parent in (folder, *folder.parents):
            with suppress(OSError, ValueError):
                yield int((parent / limit).read_text()) - int((parent / used).read_text())
            if parent == Path(root):
                break


def too_many_objects(count: int, num_microbatches: int, op_bytes: int = 150) -> str | None:
    """Return the reason why this number of ops does not fit into memory as objects, or None if it fits.

    Args:
        count: The number of ops.
        num_microbatches: Micro-batches of these ops.
        op_bytes: Memory for each op [bytes]; the object of a computation or message takes 80 to 150.
    """
    most = room_bytes() // op_bytes if count > 500_000 else count
    if count <= most:
        return None
    return (
        f"got {count} ops, expected at most {most}, for which there is memory; try "
        f"{max(1, num_microbatches * most // count)} micro-batches"
    )


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the garbage collector until the end of the block.

    While the number of objects grows, the collector scans all of them repeatedly. In a simulation this took a third
    to a half of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
