"""The process that adds the updates of all pipelines of one device to its reference model.

`averaging.reference_client` starts the process. It receives its stages, adds up updates while the pipelines continue,
and ends with the rank that started it.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import struct
from collections.abc import Iterable
from multiprocessing import parent_process
from typing import cast

import torch

from pipesched.executor.averaging.reference_memory import Averaged, Reference, map_memory, memory_bytes
from pipesched.profiles.processes import end_with

TOKEN = struct.Struct("<q")
"""The one message of a connection. A rank sends its number first, then a stage each time that its slot is full; the
process answers with its id first, then with a stage each time that all updates are in its reference."""


def receive(connection: socket.socket) -> int | None:
    """Return the next token, or None if the other side is gone."""
    try:
        token = connection.recv(TOKEN.size, socket.MSG_WAITALL)
    except ConnectionError:
        return None
    return TOKEN.unpack(token)[0] if len(token) == TOKEN.size else None


def serve(reference: Reference, owner: socket.socket, owner_rank: int, listener: socket.socket, memory: int) -> None:
    """Add up updates until the owner is gone.

    Args:
        reference: The reference model.
        owner: Connection of the rank that started this process.
        owner_rank: Rank of the owner.
        listener: Socket for the other ranks; each sends its rank and gets the memory.
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


def be_reference(owner: socket.socket, listener: socket.socket, others_end: socket.socket) -> None:
    """Run the process of one device, until the rank at the other end of `owner` is gone.

    Args:
        owner: Receives the rank's number and a length with the memory, and then JSON of that length: the stages.
        listener: Socket for the other ranks.
        others_end: The owner's end of the connection, which a fork leaves open here.
    """
    others_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells all processes; the ranks end, and with them this
    parent = parent_process()
    assert parent is not None
    assert parent.pid is not None
    end_with(parent.pid)  # also where it cannot see its owner go
    torch.set_num_threads(1)
    tokens, files, _, _ = socket.recv_fds(owner, 2 * TOKEN.size, 1)
    if not files:
        return
    rank, num_bytes = (number for (number,) in TOKEN.iter_unpack(tokens))
    text = owner.recv(num_bytes, socket.MSG_WAITALL)  # and nothing of the tokens behind it
    if len(text) < num_bytes:
        return
    held = [Averaged(stage, tuple(ranks), tuple(map(tuple, tensors))) for stage, ranks, tensors in json.loads(text)]
    reference = Reference(map_memory(os.dup(files[0]), memory_bytes(held)), held)
    serve(reference, owner, rank, listener, files[0])
