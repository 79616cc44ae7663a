"""Find the ranks of one pipeline among all ranks: tensor-parallel and data-parallel ranks repeat passes of others.

The process groups in a trace of torch.profiler define the ranks of a pipeline. Without process groups, ranks with the
same passes are copies. Passes are the same by their names, or by their times if the names contain no stages.

{"rank": 2, "pg_config": [{"pg_name": "3", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [0, 2, 4, 6]}]}
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipesched.profiles import ProfileError
from pipesched.profiles.traces.rank_trace import RankTrace
from pipesched.profiles.traces.steps import Pass, passes_of

_PIPELINE = re.compile(r"(^|[^a-z])(pp|pipe|pipeline)([^a-z]|$)", re.IGNORECASE)
_OTHER = re.compile(r"(^|[^a-z])(tp|dp|ep|cp|tensor|data|expert|context)([^a-z]|$)", re.IGNORECASE)
_RANKS = re.compile(r"\[?\s*\d{1,9}(\s*,\s*\d{1,9})*\s*\]?$")


def process_groups(info: object) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each process group by its description; groups without ranks or description are left out."""
    groups = info.get("pg_config") if isinstance(info, dict) else None
    if not isinstance(groups, list):
        return {}
    about = [(group.get("pg_desc"), _ranks(group.get("ranks"))) for group in groups if isinstance(group, dict)]
    return {name: ranks for name, ranks in about if isinstance(name, str) and ranks}


def pipeline_group(groups: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return the name of the group of a pipeline's ranks, or None without such a group."""
    names = [name for name in groups if _PIPELINE.search(name) is not None and _OTHER.search(name) is None]
    return names[0] if names else None


def _ranks(value: object) -> tuple[int, ...]:
    """Return ranks from a list, or from its text, as profilers write long ones."""
    if isinstance(value, str):
        value = [int(digits) for digits in re.findall(r"\d+", value)] if _RANKS.match(value.strip()) else None
    return tuple(rank for rank in value if isinstance(rank, int)) if isinstance(value, list) else ()


_SAME_TIME = 0.9
"""Least overlap of the same pass on two ranks, as a share of the time from the first start to the last end."""


def pipeline_ranks(traces: Sequence[RankTrace], noun: str) -> tuple[list[RankTrace], str | None]:
    """Return the ranks of one pipeline, and a sentence about the other ranks, or None without other ranks.

    Args:
        traces: The ranks, in order.
        noun: Word for the traces in messages, such as ``files``.

    Raises:
        ProfileError: The process group of the pipeline has a rank without a trace.
    """
    by_rank = {trace.rank: trace for trace in traces if trace.rank is not None}
    first = traces[0]
    group = pipeline_group(first.groups)
    if group is not None and len(by_rank) == len(traces):
        kept = [by_rank[rank] for rank in first.groups[group] if rank in by_rank]
        missing = [str(rank) for rank in first.groups[group] if rank not in by_rank]
        if missing:
            raise ProfileError(
                f"{first.file}: got no trace of rank {', '.join(missing)}, expected every rank of the process group "
                f"{group!a}; try all {noun} of this pipeline"
            )
        if 1 < len(kept) < len(traces):
            return kept, _sentence(traces, kept, f"the process group {group!a}", noun)
    passes = list(map(passes_of, traces))
    alike = _same_names if all(work.stage is not None for own in passes for work in own) else _same_times
    places: list[int] = []
    for place, own in enumerate(passes):
        if not any(alike(passes[other], traces[other], own, traces[place]) for other in places):
            places.append(place)
    if len(places) in (1, len(traces)) or len(traces) % len(places):
        return list(traces), None
    kept = [traces[place] for place in places]
    return kept, _sentence(traces, kept, "the others do the same passes, as tensor-parallel ranks do", noun)


def _same_names(first: Sequence[Pass], _: RankTrace, second: Sequence[Pass], __: RankTrace) -> bool:
    counts = [Counter((work.phase, work.stage, work.microbatch) for work in own) for own in (first, second)]
    return counts[0] == counts[1]


def _same_times(first: Sequence[Pass], trace: RankTrace, second: Sequence[Pass], other: RankTrace) -> bool:
    """Return whether two ranks run the same forwards and backwards at the same times."""
    if [work.phase for work in first] != [work.phase for work in second] or not first:
        return False
    shift_ns = other.base_ns - trace.base_ns
    for work, other_work in zip(first, second, strict=True):
        (start_ns, end_ns), (from_ns, to_ns) = work.range.time, other_work.range.time
        both_ns = min(end_ns, to_ns + shift_ns) - max(start_ns, from_ns + shift_ns)
        if both_ns < _SAME_TIME * (max(end_ns, to_ns + shift_ns) - min(start_ns, from_ns + shift_ns)):
            return False
    return True


def _sentence(traces: Sequence[RankTrace], kept: Sequence[RankTrace], why: str, noun: str) -> str:
    stages = {work.stage for trace in kept for work in passes_of(trace)}
    count = len(kept) if None in stages else len(stages)
    names = ", ".join(Path(trace.file).name for trace in kept)
    return f"{len(traces)} {noun}, {count} stages; read {names}: {why}"
