"""Every schedule by name: its builder, its parameters, where it comes from."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from math import prod

from pipesched.schedules.avgpipe import avgpipe
from pipesched.schedules.chimera import chimera
from pipesched.schedules.controllable_memory import v_half, v_min
from pipesched.schedules.data_parallel import data_parallel
from pipesched.schedules.dualpipe import dualpipe, dualpipe_v
from pipesched.schedules.entry import Entry, Parameter, Value
from pipesched.schedules.gems import gems
from pipesched.schedules.gpipe import gpipe
from pipesched.schedules.hanayo import hanayo
from pipesched.schedules.interleaved import interleaved
from pipesched.schedules.interleaved_zero_bubble import interleaved_zb
from pipesched.schedules.lazy import LazySchedule, repeat, whole
from pipesched.schedules.looped_bfs import looped_bfs
from pipesched.schedules.naive import naive
from pipesched.schedules.one_f_one_b import one_f_one_b, one_f_one_b_afp
from pipesched.schedules.one_f_one_b_rr import lazy_one_f_one_b_rr
from pipesched.schedules.pipedream import lazy_pipedream, lazy_pipedream_2bw
from pipesched.schedules.prediction import Rule, lazy_pipeoptim, lazy_spectrain, lazy_xpipe
from pipesched.schedules.schedule import Schedule, ScheduleError
from pipesched.schedules.stale_weights import lazy_hybrid, lazy_stale_weights, lazy_vanilla_1f1b
from pipesched.schedules.wpipe import lazy_wpipe
from pipesched.schedules.zbv import zbv
from pipesched.schedules.zero_bubble import zb_h1, zb_h2
from pipesched.schedules.zero_bubble_auto import zb_auto

_MAX_CELLS = 5_000_000
"""Most stages times micro-batches in memory, as in a file."""


def _asynchronous(
    name: str,
    lazy: Callable[..., LazySchedule],
    text: str,
    source: str,
    *parameters: Parameter,
    prediction: Rule | None = None,
) -> Entry:
    return Entry(
        name,
        whole(lazy),
        text,
        source,
        is_asynchronous=True,
        parameters=parameters,
        lazy=lazy,
        prediction=prediction,
    )


_ACCUMULATE = Parameter(
    "accumulate", None, "micro-batches per step, at least and unless given as many as ranks", "integer"
)

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
        "avgpipe",
        avgpipe,
        "several pipelines of 1f1b_afp on the same devices, with a batch and an optimizer each, averaged elastically",
        "PPoPP 2023, doi:10.1145/3572848.3577484",
        averages=True,
        parameters=(
            Parameter("pipelines", 2, "parallel pipelines, each a copy of the model, that share the micro-batches"),
            Parameter("advance", 1, "forwards run further ahead than in 1f1b, on every rank but a pipeline's last"),
        ),
    ),
    Entry(
        "interleaved",
        interleaved,
        "1f1b with several chunks of the model per rank",
        "arXiv:2104.04473",
        takes_chunks=True,
    ),
    Entry(
        "looped_bfs",
        looped_bfs,
        "gpipe with several chunks of the model per rank, one after the other",
        "arXiv:2211.05953",
        takes_chunks=True,
    ),
    Entry(
        "zb_h1",
        zb_h1,
        "zero bubble in the memory of 1f1b: the weights' share of the backward fills gaps",
        "arXiv:2401.10241, section 2.1",
    ),
    Entry(
        "zb_h2",
        zb_h2,
        "zero bubble, nearly twice the memory of 1f1b: no rank is idle between its first op and its last",
        "arXiv:2401.10241, section 2.2",
    ),
    Entry(
        "zb_auto",
        zb_auto,
        "zero bubble, scheduled for given costs under a memory limit (ZB-1p, ZB-2p)",
        "arXiv:2401.10241, section 3.1",
        parameters=(
            Parameter("f", 1.0, "seconds of F; only ratios matter"),
            Parameter("i", 1.0, "seconds of I"),
            Parameter("w", 1.0, "seconds of W"),
            Parameter("c", 0.0, "seconds of a transfer"),
            Parameter("limit", None, "micro-batches that a rank has memory for, as many as ranks unless given"),
            Parameter("kept", 1.0, "share of a micro-batch's memory that is kept from I to W"),
        ),
    ),
    Entry(
        "interleaved_zb",
        interleaved_zb,
        "zb_h1 with several chunks of the model per rank, as PyTorch orders it",
        "PyTorch 2.13, ScheduleInterleavedZeroBubble",
        takes_chunks=True,
    ),
    Entry(
        "dualpipe",
        dualpipe,
        "micro-batches from both ends at once, forwards overlapped with backwards; two replicas of every stage",
        "arXiv:2412.19437, section 3.2.1",
    ),
    Entry(
        "dualpipe_v",
        dualpipe_v,
        "dualpipe folded into a V: two stages per rank and no replicas",
        "arXiv:2412.19437; PyTorch's ScheduleDualPipeV",
    ),
    Entry("data_parallel", data_parallel, "a replica of the whole model on every rank", "arXiv:2006.15704"),
    Entry("zbv", zbv, "zero bubble in a V: two chunks per rank, the memory of 1f1b", "arXiv:2401.10241, section 6"),
    Entry("v_half", v_half, "a V with half the activations of 1f1b", "arXiv:2405.15362, section 3"),
    Entry("v_min", v_min, "a V with a third of the activations of 1f1b", "arXiv:2405.15362, section 3"),
    Entry("chimera", chimera, "two pipelines in opposite directions, two replicas", "arXiv:2107.06925, section 3"),
    Entry(
        "gems",
        gems,
        "two replicas that take turns, one micro-batch on a rank",
        "SC 2020, doi:10.1109/SC41405.2020.00049",
    ),
    Entry(
        "hanayo",
        hanayo,
        "waves over the ranks: work from both directions without replicas",
        "arXiv:2308.15762",
        parameters=(Parameter("waves", 2, "times that the stages go down the ranks and up again"),),
    ),
    _asynchronous(
        "pipedream", lazy_pipedream, "1f1b without a flush, weights stashed; a step per micro-batch", "arXiv:1806.03377"
    ),
    _asynchronous(
        "1f1b_rr",
        lazy_one_f_one_b_rr,
        "pipedream with replicated stages, micro-batches in turn",
        "arXiv:1806.03377, section 3.2",
        Parameter("replicas", None, "ranks of each stage, as 2:1:1, which is the default", "integers"),
    ),
    _asynchronous(
        "pipedream_2bw",
        lazy_pipedream_2bw,
        "1f1b without a flush, weights double-buffered",
        "arXiv:2006.09503, section 3.1",
        _ACCUMULATE,
    ),
    _asynchronous(
        "wpipe", lazy_wpipe, "two groups of stages in turn, half the delay of pipedream_2bw", "ICLR 2022", _ACCUMULATE
    ),
    _asynchronous(
        "vanilla_1f1b", lazy_vanilla_1f1b, "1f1b without a flush, the newest weights always", "arXiv:1806.03377"
    ),
    _asynchronous(
        "stale_weights",
        lazy_stale_weights,
        "pipelined backpropagation: twice as far ahead, the newest weights always",
        "arXiv:1912.12675, section 4.1",
    ),
    _asynchronous(
        "hybrid",
        lazy_hybrid,
        "stale_weights first, then one micro-batch at a time",
        "arXiv:1912.12675, section 4.2",
        Parameter(
            "pipelined", None, "micro-batches that are pipelined, half of them unless given", "integer", counts_run=True
        ),
    ),
    _asynchronous(
        "spectrain",
        lazy_spectrain,
        "1f1b without a flush, F and B read weights predicted by momentum",
        "arXiv:1809.02839",
        prediction=Rule.MOMENTUM,
    ),
    _asynchronous(
        "xpipe",
        lazy_xpipe,
        "spectrain, predicted by Adam's rule whatever the optimizer",
        "arXiv:1911.04610",
        prediction=Rule.ADAM,
    ),
    _asynchronous(
        "pipeoptim",
        lazy_pipeoptim,
        "1f1b without a flush, F reads weights predicted by the optimizer's own rule",
        "arXiv:2312.00839",
        Parameter("extra", 0, "steps that F looks beyond its backward; 1 in the authors' code"),
        prediction=Rule.OPTIMIZER,
    ),
)

CATALOGUE: Mapping[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def build(
    name: str, num_ranks: int, num_microbatches: int, num_chunks: int | None = None, **parameters: Value
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
    return entry.build(num_ranks, num_microbatches, **_keywords(entry, num_chunks, parameters))


def build_lazily(
    name: str, num_ranks: int, num_microbatches: int, num_chunks: int | None = None, **parameters: Value
) -> LazySchedule:
    """Build the schedule `name` without holding its lists, if it is asynchronous; another one once.

    Raises:
        ScheduleError: No such schedule or parameter, or counts that it cannot have.
    """
    entry = find(name)
    if entry.lazy is None:
        return repeat(build(name, num_ranks, num_microbatches, num_chunks, **parameters), 1)
    return entry.lazy(num_ranks, num_microbatches, **_keywords(entry, num_chunks, parameters))


def _keywords(entry: Entry, num_chunks: int | None, parameters: Mapping[str, Value]) -> dict[str, Value]:
    keywords = dict(parameters)
    name = entry.name
    accepted = [parameter.name for parameter in entry.parameters]
    unknown = [key for key in parameters if key not in accepted]
    if unknown:
        expected = f"expected {', '.join(accepted)}" if accepted else "it takes none"
        raise ScheduleError(f"schedule {name}: got unknown parameter {', '.join(unknown)}, {expected}")
    if num_chunks is not None:
        if not entry.takes_chunks:
            takers = ", ".join(other.name for other in _ENTRIES if other.takes_chunks)
            raise ScheduleError(
                f"schedule {name}: got {num_chunks} chunks, but its stages per rank are fixed; try {takers}"
            )
        keywords["num_chunks"] = num_chunks
    return keywords


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


def origin_of(name: str) -> Entry | None:
    """Return the entry that a schedule of this name was made from, copied (``x2``), recomputing (``+R``) or as it is.

    None if it was made from none.
    """
    return CATALOGUE.get(re.sub(r"(x\d+|\+R)*$", "", name))
