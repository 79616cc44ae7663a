"""Memory over time as rows: the memory of every device at each change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeVar

from pipesched.schedules import MemorySample
from pipesched.simulator.analysis import CellValue
from pipesched.simulator.memory import InFlight

_Sample = TypeVar("_Sample", InFlight, MemorySample)


def memory_table(counts: Iterable[InFlight], samples: Sequence[MemorySample]) -> list[dict[str, CellValue]]:
    """Return a row per device and instant: micro-batches, and the bytes if known, in all and by kind.

    Args:
        counts: Counts in order of device, then time.
        samples: Samples in order of device, then time; empty where no bytes are known.
    """
    changes: dict[tuple[int, float, int], dict[str, CellValue]] = {
        place: {"microbatches": count.microbatches} for place, count in _placed(counts)
    }
    for place, sample in _placed(samples):
        sizes: dict[str, CellValue] = {"total_bytes": sample.total_bytes}
        sizes |= {f"{kind}_bytes": num_bytes for kind, num_bytes in sample.bytes_by_kind}
        changes.setdefault(place, {}).update(sizes)
    rows: list[dict[str, CellValue]] = []
    held: dict[str, CellValue] = {}
    for (device, time_s, _), changed in sorted(changes.items(), key=lambda item: item[0]):
        if not rows or rows[-1]["device"] != device:
            held = {}
        held |= changed  # other columns keep their values
        rows.append({"device": device, "time_s": time_s, **held})
    return rows


def _placed(samples: Iterable[_Sample]) -> Iterator[tuple[tuple[int, float, int], _Sample]]:
    """Yield each sample with its device, its time, and its place among simultaneous samples: -1 is the last."""
    for (device, time_s), group in groupby(samples, key=lambda sample: (sample.device, sample.time_s)):
        together = list(group)
        for place, sample in enumerate(together, -len(together)):
            yield (device, time_s, place), sample
