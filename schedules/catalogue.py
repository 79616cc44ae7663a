"""Every schedule by name: its builder, its parameters, where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod

from schedules.gpipe import gpipe
from schedules.interleaved import interleaved
from schedules.naive import naive
from schedules.one_f_one_b import one_f_one_b, one_f_one_b_afp
from schedules.pipedream import pipedream
from schedules.schedule import Schedule, ScheduleError

_MAX_CELLS = 5_000_000
"""Most stages times micro-batches, as in a file."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One ``key=value`` that a builder takes beyond ranks, micro-batches and chunks; an integer."""

    name: str
    default: int
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One schedule of the catalogue.

    Attributes:
        build: Called with (num_ranks, num_microbatches), and with keywords num_chunks and `parameters`.
        text: What it is, in a line.
        source: Paper and section.
        is_asynchronous: Whether it steps without a flush.
        takes_chunks: Whether a rank may hold several stages (``-v``).
    """

    name: str
    build: Callable[..., Schedule]
    text: str
    source: str
    is_asynchronous: bool = False
    takes_chunks: bool = False
    parameters: tuple[Parameter, ...] = ()


_ENTRIES = (
    Entry("naive", naive, "one micro-batch at a time through all stages", "model parallelism without a pipeline"),
    Entry("gpipe", gpipe, "all forwards, then all backwards", "arXiv:1811.06965"),
    Entry("1f1b", one_f_one_b, "one forward, one backward, with a flush", "arXiv:2006.09503"),
    Entry(
        "1f1b_afp",
        one_f_one_b_afp,
        "1f1b with advance forward propagation (AvgPipe)",
        "PPoPP 2023, section 4.2",
        parameters=(Parameter("advance", 1, "forwards run further ahead than in 1f1b, on every rank but the last"),),
    ),
    Entry(
        "interleaved",
        interleaved,
        "1f1b with several chunks of the model per rank",
        "arXiv:2104.04473",
        takes_chunks=True,
    ),
    Entry(
        "pipedream",
        pipedream,
        "asynchronous 1f1b with weight stashing, a step per micro-batch",
        "arXiv:1806.03377",
        is_asynchronous=True,
    ),
)

CATALOGUE: Mapping[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def build(
    name: str, num_ranks: int, num_microbatches: int, num_chunks: int | None = None, **parameters: int
) -> Schedule:
    """Build the schedule `name`.

    Raises:
        ScheduleError: No such schedule or parameter, or counts that it cannot have.
    """
    entry = find(name)
    counts = [count for count in (num_ranks, num_microbatches, num_chunks) if isinstance(count, int)]
    if min(counts) > 0 and prod(counts) > _MAX_CELLS:
        raise ScheduleError(
            f"schedule {name}: got {' x '.join(map(str, counts))} micro-batches on stages, expected at most "
            f"{_MAX_CELLS}; try fewer micro-batches"
        )
    keywords = dict(parameters)
    accepted = [parameter.name for parameter in entry.parameters]
    unknown = [key for key in parameters if key not in accepted]
    if unknown:
        expected = f"expected {', '.join(accepted)}" if accepted else "it takes none"
        raise ScheduleError(f"schedule {name}: got unknown parameter {', '.join(unknown)}, {expected}")
    if num_chunks is not None:
        if not entry.takes_chunks:
            takers = ", ".join(other.name for other in _ENTRIES if other.takes_chunks)
            raise ScheduleError(
                f"schedule {name}: got {num_chunks} chunks, but it takes one stage per rank; try {takers}"
            )
        keywords["num_chunks"] = num_chunks
    return entry.build(num_ranks, num_microbatches, **keywords)


def find(name: str) -> Entry:
    """Return the entry of `name`.

    Raises:
        ScheduleError: There is none; with the names that come near.
    """
    if name not in CATALOGUE:
        near = get_close_matches(name.lower(), CATALOGUE, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ScheduleError(
            f"schedule: got {name!r}, expected one of {', '.join(CATALOGUE)}; {hint}see 'pipesched list'"
        )
    return CATALOGUE[name]
