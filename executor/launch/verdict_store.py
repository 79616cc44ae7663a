"""The verdict of a run under torchrun, the cause of its end, in torchrun's store; needs no torch.

A process without torch uses PyTorch's own protocol (TCPStore.cpp). It is the same for both servers of PyTorch; numbers
have the byte order of this machine::

    to it    u8 0, u32 0x3C85F7CE                     once: which protocol
    to it    u8 2, key, expected value, new value     compare and set: a text each, as u64 length and bytes
    from it  value                                    that is there now
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import NamedTuple, final

VERDICT = "verdict"
"""The key, behind `board_name`."""
_GREETING = struct.pack("=BI", 0, 0x3C85F7CE)
_COMPARE_SET = b"\2"
_LENGTH = struct.Struct("=Q")
_CONNECT_S = 10.0
_ANSWER_S = 5.0


class EndingCause(NamedTuple):
    """The cause of the end of the run.

    Attributes:
        node: Number of the torchrun agent whose rank reported the cause.
        text: The message.
    """

    node: int
    text: str

    @classmethod
    def of(cls, value: bytes) -> EndingCause | None:
        """Return the cause stored in `value`, or None if it is empty."""
        return cls(*json.loads(value)) if value else None

    def value(self) -> str:
        """Return the value for the store."""
        return json.dumps(self)


def board_name() -> str:
    """Return the prefix of all keys of this start of the run."""
    return f"pipesched.guards{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def node_number() -> int:
    """Return the number of the agent that has started this process."""
    return int(os.environ.get("GROUP_RANK", "0"))


def is_told_here(cause: EndingCause) -> bool:
    """Return whether this process prints the cause from another node: the first process of each node does."""
    return int(os.environ.get("LOCAL_RANK", "0")) == 0 and cause.node != node_number()


@final
class VerdictStore:
    """A connection to torchrun's store.

    Raises:
        OSError: The store is gone, here as in every method.
    """

    def __init__(self) -> None:
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.socket = socket.create_connection(address, timeout=_CONNECT_S)
        """Has something to be read only when the store goes."""
        self.socket.settimeout(_ANSWER_S)
        self.socket.sendall(_GREETING)

    def __enter__(self) -> VerdictStore:
        return self

    def __exit__(self, *args: object) -> None:
        self.socket.close()

    def decide(self, text: str) -> EndingCause:
        """Write the cause of the end of the run; return the first cause that was written."""
        own = EndingCause(node_number(), text)
        return EndingCause.of(self._compare_set(own.value())) or own

    def verdict(self) -> EndingCause | None:
        """Return the cause of the end of the run, or None while the run continues."""
        return EndingCause.of(self._compare_set(""))

    def _compare_set(self, value: str) -> bytes:
        words = (f"/{board_name()}/{VERDICT}".encode(), b"", value.encode())
        self.socket.sendall(_COMPARE_SET + b"".join(_LENGTH.pack(len(word)) + word for word in words))
        return self._received(_LENGTH.unpack(self._received(_LENGTH.size))[0])

    def _received(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            part = self.socket.recv(size - len(parts))
            if not part:
                raise ConnectionResetError("the store is gone")
            parts += part
        return parts
