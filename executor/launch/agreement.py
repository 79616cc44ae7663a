"""Agreement: checks that all processes were given the same run, before anything is built."""

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
"""What each process may have its own way: no tensor depends on it."""


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
    """Refuse, in all processes alike, runs that differ from process to process.

    Args:
        digests: Digests of what must be the same, by name.
        store: Where the processes meet.
        process: This one's number.
        size: How many there are.

    Raises:
        ExecutionError: They differ; with the processes and the fields.
        PeerLost: Another process did not come.
    """
    with waiting_for(f"the other processes of process {process}"):
        store.set(f"digests{process}", json.dumps(digests))
        if process == 0:
            all_digests = [json.loads(store.get(f"digests{number}")) for number in range(size)]
            store.set("faults", "; ".join(_faults(all_digests)))
        faults = store.get("faults").decode()
        store.set(f"heard{process}", "")
        if process == 0 and faults:
            store.wait([f"heard{number}" for number in range(size)])  # the store may end with this process
    if faults:
        raise ExecutionError(f"{faults}; expected the same in every process")


def _faults(digests: list[dict[str, str]]) -> Iterator[str]:
    """Yield which processes have something else than the first one, and what."""
    first = digests[0]
    for number, other in enumerate(digests):
        names = [name for name in sorted({**first, **other}) if first.get(name) != other.get(name)]
        if names:
            yield f"{', '.join(names)}: process {number} got something else than process 0"
