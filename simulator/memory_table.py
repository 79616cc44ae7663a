"""Memory over time as rows: what every device holds whenever it changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pipesched.schedules.timeline import MemorySample
from pipesched.simulator.in_flight import InFlight
from pipesched.simulator.tables import Value


def memory_table(counts: Iterable[InFlight], samples: Sequence[MemorySample]) -> list[dict[str, Value]]:
    """Return a row per device and instant: micro-batches, and of what is known the bytes, in all and by kind.

    Args:
        counts: In order of device, then time.
        samples: Likewise; empty where no bytes are known.
    """
    changes: dict[tuple[int, float], dict[str, Value]] = {
        (count.device, count.time_s): {"microbatches": count.microbatches} for count in counts
    }
    for sample in samples:
        sizes: dict[str, Value] = {"total_bytes": sample.total_bytes}
        sizes |= {f"{kind}_bytes": num_bytes for kind, num_bytes in sample.bytes_by_kind}
        changes.setdefault((sample.device, sample.time_s), {}).update(sizes)
    rows: list[dict[str, Value]] = []
    held: dict[str, Value] = {}
    for (device, time_s), changed in sorted(changes.items(), key=lambda item: item[0]):
        if not rows or rows[-1]["device"] != device:
            held = {}
        held |= changed  # what does not change stays as it was
        rows.append({"device": device, "time_s": time_s, **held})
    return rows
