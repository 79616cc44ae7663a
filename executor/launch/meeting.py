"""How the ranks of a run meet: the default group, messages between all ranks, and agreement on the run."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.nn.functional  # noqa: F401 -- loaded later, it keeps the default group as a default argument
from pydantic import TypeAdapter
from torch._C._distributed_c10d import PrefixStore, Store

from pipesched.executor import ExecutionError, RankFailed, waiting_for
from pipesched.executor.launch.run_spec import RunSpec
from pipesched.executor.transport import Groups, gather_texts
from pipesched.profiles.io import costs_file_of
from pipesched.profiles.processes import open_sockets, owned_folder, strangers


def group_beside() -> dist.ProcessGroup:
    """Return a second group of all ranks, for a thread of each rank that uses it beside the default group."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    return group


@contextmanager
def shared_file(num_bytes: int | None, source: int | None, what: str) -> Iterator[Path | None]:
    """Yield the path of a file of zeros that rank `source` makes; all ranks call this together, and open it inside.

    The file is in memory if the system can do that. Its path is valid on this machine, for this user, inside the block.

    Args:
        num_bytes: Size of the file that this rank makes, or None if it makes none.
        source: The rank whose file this rank opens, or None if it opens none; then None is yielded.
        what: The use of the file, for error messages.

    Raises:
        ExecutionError: Rank `source` is on another machine.
    """
    with nullcontext() if num_bytes is None else _file_of_zeros(num_bytes) as own:
        told = [json.loads(text) for text in gather_texts(json.dumps([socket.gethostname(), str(own)]))]
        if source is None:
            yield None
            return
        host, path = told[source]
        if host != socket.gethostname():
            raise ExecutionError(
                f"{what}: got its ranks {source} and {dist.get_rank()} on different machines, expected one machine, "
                "whose memory they share; order the hosts so that these ranks are on one machine"
            )
        yield Path(path)


@contextmanager
def _file_of_zeros(num_bytes: int) -> Iterator[Path]:
    if not hasattr(os, "memfd_create"):
        with owned_folder() as folder:
            (folder / "memory").touch()
            os.truncate(folder / "memory", num_bytes)
            yield folder / "memory"
        return
    descriptor = os.memfd_create("pipesched")
    try:
        os.truncate(descriptor, num_bytes)
        yield Path(f"/proc/{os.getpid()}/fd/{descriptor}")
    finally:
        os.close(descriptor)


@contextmanager
def default_group(groups: Groups, rank: int, size: int, store: Store, patience: timedelta) -> Iterator[None]:
    """Create the default group, over gloo, for the block, and destroy all groups afterwards.

    `abort_failed` later aborts the communicators of a failed rank. The destruction of a communicator waits for its
    kernels, which may wait for another rank forever, and the rank must report its error first.
    """
    is_over = False
    try:
        with waiting_for(f"the other ranks of rank {rank}"), among_ourselves(rank):
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
        yield
        is_over = True
    finally:
        if groups.are_communicators and not is_over:
            if not _failed:
                atexit.register(abort_failed)
            _failed.append(groups)
        elif dist.is_initialized():
            # the last reference ends gloo's threads: one that frees a tensor while Python shuts down aborts the process
            dist.destroy_process_group()


def scripts_store(number: int) -> Store:
    """Return a store of the processes of the default group that the script has made, for the `number`-th run."""
    return PrefixStore(f"pipesched.own{number}", dist.distributed_c10d._get_default_store())  # noqa: SLF001 -- there is no public one


@contextmanager
def scripts_group(groups: Groups, rank: int) -> Iterator[None]:
    """Use the default group that the script has made; in the end only the groups of the run are destroyed.

    Raises:
        ExecutionError: The group carries no tensors of CPUs, or numbers the processes differently.
    """
    if "cpu:gloo" not in dist.get_backend_config():
        raise ExecutionError(
            f"torch.distributed: got a default group of {dist.get_backend_config()}, expected gloo for the CPU; try "
            "init_process_group('cpu:gloo,cuda:nccl')"
        )
    if rank != dist.get_rank():
        raise ExecutionError(
            f"torch.distributed: got a default group in which rank {rank} of the schedule has rank {dist.get_rank()} "
            "in the group, expected equal ranks; let pipesched make the group"
        )
    is_over = False
    try:
        yield
        is_over = True
    finally:
        if groups.are_communicators and not is_over:
            groups.abort()
        else:
            groups.destroy()


_failed: list[Groups] = []
"""The groups of a failed run."""


def abort_failed(*, gives_up: bool = False) -> None:
    """Abort the communicators that a failed run has left; call it after the error is written.

    Args:
        gives_up: Whether the process continues, and may make other groups. It then waits for NCCL's threads.
    """
    for groups in _failed:
        groups.abort()
    if gives_up and _failed:
        dist.distributed_c10d._abort_process_group()  # noqa: SLF001 -- to destroy them would wait for their kernels
    _failed.clear()


@contextmanager
def among_ourselves(rank: int) -> Iterator[None]:
    """Refuse connections that another user of this machine makes to this rank inside the block.

    Raises:
        RankFailed: Another user has connected; the message has the number of this user.
    """
    known = open_sockets()
    yield
    others = strangers(known)
    if others:
        raise RankFailed(
            f"rank {rank}: user {others[0]} of this machine has connected in place of another rank; no data of this "
            "connection was used"
        )


_OWN = ("save", "threads", "timeout_s", "is_pinned")
"""Fields that may differ between processes: no tensor depends on them."""


def digests_of(spec: RunSpec) -> dict[str, str]:
    """Return a digest of every field of a run, and of its job, that must be the same in all processes."""
    values: dict[str, Any] = TypeAdapter(RunSpec).dump_python(spec, mode="json")
    job = values.pop("job")
    if spec.model is not None:
        values["model"] = costs_file_of(spec.model) or spec.model  # a file may lie elsewhere
    return field_digests({**job, **{name: value for name, value in values.items() if name not in _OWN}})


def field_digests(fields: Mapping[str, object]) -> dict[str, str]:
    """Return a digest of every field, given its value as JSON can hold it."""
    texts = {name: json.dumps(value, sort_keys=True) for name, value in fields.items()}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}


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
        raise ExecutionError(f"{faults}; expected the same values in every process")


def _faults(digests: list[dict[str, str]]) -> Iterator[str]:
    """Yield a message for each process whose fields differ from process 0, with the names of the fields."""
    first = digests[0]
    for number, other in enumerate(digests):
        names = [name for name in sorted({**first, **other}) if first.get(name) != other.get(name)]
        if names:
            yield f"{', '.join(names)}: process {number} got another value than process 0"


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
