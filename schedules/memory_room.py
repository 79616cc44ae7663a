"""How much memory is left for what is about to be made, so that what does not fit is refused before it is begun."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_UNKNOWN_BYTES = 8 << 30
"""What is supposed where no system tells."""

_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def room_bytes() -> int:
    """Return how many bytes of memory this process can still take: of the machine, and of its container."""
    rooms = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        rooms += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for limit, used in _CGROUPS:
        with suppress(OSError, ValueError):
            rooms.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
    if not rooms:
        with suppress(OSError, ValueError, AttributeError):
            rooms.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return max(0, min(rooms, default=_UNKNOWN_BYTES))


def too_many_objects(count: int, num_microbatches: int, op_bytes: int = 150) -> str | None:
    """Return why so many ops are not looked at one by one; None where they fit into memory.

    Args:
        count: The number of ops.
        num_microbatches: Micro-batches that they are of.
        op_bytes: What is made of each [bytes]; as an object alone it is a computation or a message of 80 to 150.
    """
    most = room_bytes() // op_bytes if count > 500_000 else count
    if count <= most:
        return None
    return (
        f"got {count} ops, expected at most {most} to be looked at one by one, for which there is memory; try "
        f"{max(1, num_microbatches * most // count)} micro-batches"
    )
