"""A rank's side of the process with a device's reference model: start, connection, and messages.

A rank forks the process before any library has started a thread, so the process has nothing to load. It receives its
stages later. The memory has no name, and the socket's name is removed once all ranks have connected. The process ends
when the rank that started it is gone, for any reason: no process or file is left behind.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from multiprocessing import get_context
from multiprocessing.context import ForkContext, SpawnContext
from pathlib import Path
from typing import final

from torch import Tensor

from pipesched.executor import START_S, ExecutionError, PeerLost, RankFailed
from pipesched.executor.averaging.elastic_averager import Pool
from pipesched.executor.averaging.reference_memory import Averaged, map_memory, memory_bytes
from pipesched.executor.averaging.reference_server import TOKEN, be_reference, receive
from pipesched.profiles.processes import can_fork

_GRACE_S = 5.0


@final
class SharedPool(Pool):
    """A rank's connection to the reference process of its device.

    Args:
        connection: The socket to the process; only this object may read it.
        memory: The shared memory of the device, uint8, shape (num_bytes,).
        who: The process, in words.
        timeout_s: Longest wait for the other pipelines.
        gone: Returns the error to raise if the process is gone.
    """

    def __init__(
        self, connection: socket.socket, memory: Tensor, who: str, timeout_s: float, gone: Callable[[], RankFailed]
    ) -> None:
        connection.settimeout(timeout_s)
        self.memory = memory
        self._connection = connection
        self._who = who
        self._timeout_s = timeout_s
        self._gone = gone
        self._versions: Counter[int] = Counter()

    def give(self, stage: int) -> None:
        try:
            self._connection.sendall(TOKEN.pack(stage))
        except ConnectionError as error:
            raise self._gone() from error

    def has(self, stage: int, version: int) -> bool:
        """Wait until the reference has seen `version` iterations; always return True.

        Raises:
            PeerLost: The wait took longer than `timeout_s`.
            RankFailed: The process is gone.
        """
        while self._versions[stage] < version:
            try:
                token = receive(self._connection)
            except TimeoutError as error:
                raise PeerLost(
                    f"waited {self._timeout_s:g} s for {self._who} to have the updates of the other pipelines"
                ) from error
            if token is None:
                raise self._gone()
            self._versions[token] += 1
        return True


@final
class ReferenceProcess:
    """The reference process of one device, for the rank that starts it.

    Args:
        device: The number of the device.
        rank: The rank that starts it.
        num_ranks: Number of ranks on the device.

    Raises:
        ExecutionError: The process cannot be started.
    """

    def __init__(self, device: int, rank: int, num_ranks: int) -> None:
        self._name = f"the reference process of device {device}"
        self._rank = rank
        self._folder = Path(tempfile.mkdtemp(prefix="ps"))
        self._connection, owner = socket.socketpair()
        self.address = str(self._folder / "socket")
        with owner, socket.socket(socket.AF_UNIX) as listener:
            try:
                with _short(self.address) as address:
                    listener.bind(address)
                listener.listen(num_ranks)
                context: ForkContext | SpawnContext = get_context("fork") if can_fork() else get_context("spawn")
                self._process = context.Process(target=be_reference, args=(owner, listener, self._connection))
                self._process.start()
            except OSError as error:
                self.all_have_come()
                raise ExecutionError(
                    f"{self._name}: got {str(error)!r}, expected to start it; try another TMPDIR"
                ) from error

    def hold(self, stages: Sequence[Averaged], timeout_s: float) -> SharedPool:
        """Send the averaged `stages` of the device to the process; return the rank's own connection.

        Raises:
            RankFailed: The process is gone.
        """
        num_bytes, pid = memory_bytes(stages), self._process.pid
        file = _anonymous_file(num_bytes)
        memory = map_memory(os.dup(file), num_bytes)

        def gone() -> RankFailed:
            return RankFailed(self.death(_GRACE_S) or f"{_who(self._name, pid)} does not answer any more")

        held = json.dumps([astuple(stage) for stage in stages]).encode()
        try:
            socket.send_fds(self._connection, [TOKEN.pack(self._rank), TOKEN.pack(len(held))], [file])
            self._connection.sendall(held)
        except ConnectionError as error:
            raise gone() from error
        finally:
            os.close(file)
        return SharedPool(self._connection, memory, _who(self._name, pid), timeout_s, gone)

    def all_have_come(self) -> None:
        """Remove the socket's address: all ranks of the device have connected."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def death(self, patience_s: float = 0.0) -> str | None:
        """Return how the process ended, if it did within `patience_s` seconds, or None while it runs."""
        self._process.join(patience_s)
        code = self._process.exitcode
        if code is None:
            return None
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"{_who(self._name, self._process.pid)} {how}"

    def close(self) -> None:
        """End the process of the reference, when all ranks have connected to it."""
        self.all_have_come()
        self._connection.close()
        if self.death(_GRACE_S) is None:
            self._process.kill()
            self._process.join()


def come_to(address: str, device: int, owner: int, rank: int, num_bytes: int, timeout_s: float) -> SharedPool:
    """Connect to the process of a device, as one of its other ranks.

    Args:
        address: Address of the reference process.
        device: The number of the device.
        owner: The rank that has started it.
        rank: This rank.
        num_bytes: Bytes of the memory.
        timeout_s: Longest wait for the other pipelines.

    Raises:
        ExecutionError: The process is not on this machine.
        PeerLost: The process does not answer.
    """
    name = f"the reference process of device {device}"
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(START_S)
    try:
        with _short(address) as short:
            connection.connect(short)
    except FileNotFoundError as error:
        raise ExecutionError(
            f"device {device}: got its ranks {owner} and {rank} on different machines, expected one: they share its "
            "memory; order the hosts so that they are together"
        ) from error
    try:
        connection.sendall(TOKEN.pack(rank))
        told, files, _, _ = socket.recv_fds(connection, TOKEN.size, 1)
    except OSError as error:
        raise PeerLost(f"waited for {name}, which rank {owner} has started: {error}") from error
    if not files:
        raise PeerLost(f"waited for {name}, which rank {owner} has started: it is gone")
    who = _who(name, TOKEN.unpack(told)[0])
    return SharedPool(
        connection, map_memory(files[0], num_bytes), who, timeout_s, lambda: PeerLost(f"waited for {who}: it is gone")
    )


@contextmanager
def _short(address: str) -> Iterator[str]:
    """Yield a short alias of a socket's path (the limit is 107 bytes), or the path if the system has no alias."""
    path = Path(address)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        own = Path(f"/proc/self/fd/{folder}")
        yield str(own / path.name) if own.exists() else address
    finally:
        os.close(folder)


def _who(name: str, pid: int | None) -> str:
    return f"{name} (pid {pid})"


def _anonymous_file(num_bytes: int) -> int:
    """Return the descriptor of an anonymous file of zeros, in memory if the system can, freed with its last user."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pipesched-reference")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, num_bytes)
    return descriptor
