"""Agreement: the texts that all processes exchange before anything is built, and the check that their runs agree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter
from torch._C._distributed_c10d import Store

from pipesched.executor import ExecutionError, waiting_for
from pipesched.executor.launch.run_spec import RunSpec
from pipesched.profiles.io import costs_file_of

_OWN = ("save", "threads", "timeout_s", "is_pinned")
"""Fields that may differ between processes: no tensor depends on them."""


def digests_of(spec: RunSpec) -> dict[str, str]:
    """Return a digest of every field of a run, and of its job, that must be the same in all processes."""
    values: dict[str, Any] = TypeAdapter(RunSpec).dump_python(spec, mode="json")
    job = values.pop("job")
    if spec.model is not None:
        values["model"] = costs_file_of(spec.model) or spec.model  # a file may lie elsewhere
    fields = {**job, **{name: value for name, value in values.items() if name not in _OWN}}
    return {name: _digest(value) for name, value in fields.items()}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def require_agreement(digests: Mapping[str, str], store: Store, process: int, size: int) -> None:
    """Refuse runs that differ between processes; all processes raise the same error.

    Args:
        digests: Digests of the fields that must be equal, by name.
        store: Store that all processes share.
        process: Number of this process.
        size: Number of processes.

    Raises:
        ExecutionError: The digests differ; names the processes and the fields.
        PeerLost: Another process did not come.
    """
    texts = everyones("digests", json.dumps(digests), store, process, size)
    faults = "; ".join(_faults([json.loads(text) for text in texts]))
    if faults:
        raise ExecutionError(f"{faults}; expected the same in every process")


def _faults(digests: list[dict[str, str]]) -> Iterator[str]:
    """Yield a message for each process whose fields differ from process 0, with the names of the fields."""
    first = digests[0]
    for number, other in enumerate(digests):
        names = [name for name in sorted({**first, **other}) if first.get(name) != other.get(name)]
        if names:
            yield f"{', '.join(names)}: process {number} got something else than process 0"


def everyones(name: str, text: str, store: Store, process: int, size: int) -> list[str]:
    """Return the text of every process; all processes call this together.

    Args:
        name: Name of the text, unique in a store.
        text: Text of this process.
        store: Store that all processes share.
        process: Number of this process.
        size: Number of processes.

    Raises:
        PeerLost: Another process did not come.
    """
    with waiting_for(f"the other processes of process {process}"):
        store.set(f"{name}{process}", text)
        if process == 0:
            store.set(name, json.dumps([store.get(f"{name}{number}").decode() for number in range(size)]))
        texts: list[str] = json.loads(store.get(name))
        store.set(f"heard-{name}{process}", "")
        if process == 0:  # the store may end with this process
            store.wait([f"heard-{name}{number}" for number in range(size)])
    return texts
