"""What does happen: op lists on tensors. torch is loaded when a name is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipesched.executor.build import build_stages, make_batch
    from pipesched.executor.errors import ExecutionError, RankFailed
    from pipesched.executor.interpreter import Batch, Rank, execute_rank
    from pipesched.executor.job import Job
    from pipesched.executor.launcher import Measured, launch
    from pipesched.executor.local import local_ranks, run_local
    from pipesched.executor.transport import LocalTransport, Mailroom, Transport

_HOMES = {
    "Batch": "interpreter",
    "ExecutionError": "errors",
    "Job": "job",
    "LocalTransport": "transport",
    "Mailroom": "transport",
    "Measured": "launcher",
    "Rank": "interpreter",
    "RankFailed": "errors",
    "Transport": "transport",
    "build_stages": "build",
    "execute_rank": "interpreter",
    "launch": "launcher",
    "local_ranks": "local",
    "make_batch": "build",
    "run_local": "local",
}

__all__ = [
    "Batch",
    "ExecutionError",
    "Job",
    "LocalTransport",
    "Mailroom",
    "Measured",
    "Rank",
    "RankFailed",
    "Transport",
    "build_stages",
    "execute_rank",
    "launch",
    "local_ranks",
    "make_batch",
    "run_local",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
