"""The process groups of a rank, as torch.profiler writes them in ``distributedInfo``, and the pipeline among them.

{"rank": 2, "pg_config": [{"pg_name": "3", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [0, 2, 4, 6]}]}
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_PIPELINE = re.compile(r"(^|[^a-z])(pp|pipe|pipeline)([^a-z]|$)", re.IGNORECASE)
_OTHER = re.compile(r"(^|[^a-z])(tp|dp|ep|cp|tensor|data|expert|context)([^a-z]|$)", re.IGNORECASE)
_RANKS = re.compile(r"\[?\s*\d{1,9}(\s*,\s*\d{1,9})*\s*\]?$")


def process_groups(info: object) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each process group by its description; groups without either are left out."""
    groups = info.get("pg_config") if isinstance(info, dict) else None
    if not isinstance(groups, list):
        return {}
    about = [(group.get("pg_desc"), _ranks(group.get("ranks"))) for group in groups if isinstance(group, dict)]
    return {name: ranks for name, ranks in about if isinstance(name, str) and ranks}


def pipeline_group(groups: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return the name of the group of a pipeline's ranks, or None if no group is called one."""
    names = [name for name in groups if _PIPELINE.search(name) is not None and _OTHER.search(name) is None]
    return names[0] if names else None


def _ranks(value: object) -> tuple[int, ...]:
    """Return ranks from a list, or from its text, as profilers write long ones."""
    if isinstance(value, str):
        value = [int(digits) for digits in re.findall(r"\d+", value)] if _RANKS.match(value.strip()) else None
    return tuple(rank for rank in value if isinstance(rank, int)) if isinstance(value, list) else ()
