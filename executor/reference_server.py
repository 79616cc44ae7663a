"""The process that adds up for one device: ``python -m executor.reference_server``.

`executor.reference_process` starts it. It is told on its standard input what it holds, adds up updates while the
pipelines go on, and ends with the rank that started it.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from executor.reference import Reference

TOKEN = struct.Struct("<q")
"""What goes over a connection: a pipeline's rank at first, then the number of a stage whose slot is full; and back, the
process' id at first, then a stage each time that the updates of all pipelines are in its reference."""

_END_WITH_PARENT = 1
"""Linux: ``PR_SET_PDEATHSIG``."""


def receive(connection: socket.socket) -> int | None:
    """Return the next token; None where the other side is gone."""
    try:
        token = connection.recv(TOKEN.size, socket.MSG_WAITALL)
    except ConnectionError:
        return None
    return TOKEN.unpack(token)[0] if len(token) == TOKEN.size else None


def serve(reference: Reference, owner: socket.socket, owner_rank: int, listener: socket.socket, memory: int) -> None:
    """Add up updates until the owner is gone.

    Args:
        owner: Connection of the rank that started this process.
        owner_rank: That rank.
        listener: Where the others come; each tells its rank and gets the memory.
        memory: File descriptor of the memory.
    """
    ranks = {owner: owner_rank}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(owner, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                connection = cast("socket.socket", key.fileobj)
                if connection is listener:
                    connection, _ = listener.accept()
                    selector.register(connection, selectors.EVENT_READ)
                    continue
                token = receive(connection)
                if token is None and connection is owner:
                    return
                if token is None:
                    selector.unregister(connection)
                    connection.close()
                elif connection not in ranks:
                    ranks[connection] = token
                    socket.send_fds(connection, [TOKEN.pack(os.getpid())], [memory])
                elif reference.give(token, ranks[connection]):
                    _tell(token, [c for c, rank in ranks.items() if rank in reference.shared[token].slots])


def _tell(stage: int, connections: Iterable[socket.socket]) -> None:
    for connection in connections:
        try:
            connection.send(TOKEN.pack(stage))
        except OSError:
            continue  # that rank is gone, as its connection will show


def main() -> None:
    """Be the process of one device."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells all processes; the ranks end, and with them this
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)  # also where it cannot see its owner go
    told = json.loads(sys.stdin.read())
    if told["cores"]:
        os.sched_setaffinity(0, told["cores"])  # not only those of the rank that started it
    import torch  # takes seconds, in which the owner may go

    from executor.reference import Averaged, Reference, map_memory, memory_bytes

    torch.set_num_threads(1)
    stages = [Averaged(stage, tuple(ranks), tuple(map(tuple, tensors))) for stage, ranks, tensors in told["stages"]]
    reference = Reference(map_memory(os.dup(told["memory"]), memory_bytes(stages)), stages)
    owner, listener = (socket.socket(fileno=told[name]) for name in ("owner", "listener"))
    serve(reference, owner, told["rank"], listener, told["memory"])


if __name__ == "__main__":
    main()
    os._exit(0)
