"""The agents of torchrun on two nodes, forked from a process that has imported torch."""

from __future__ import annotations

import ctypes
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from namespaces import Node, torchrun_words

from fault_rows.attempt import Command

_NETWORK, _HOST_NAME = 0x40000000, 0x04000000
"""Linux: ``CLONE_NEWNET`` and ``CLONE_NEWUTS``."""


class Agents:
    """An agent in each node, each with a host name of its own; the ranks are children of the agents.

    Args:
        nodes: The nodes.
        ranks_per_node: Ranks of each node.
        words: Arguments of ``torchrun``.
        folder: Working directory.
        environment: Additional environment variables.
    """

    generations = 1
    is_anothers = True

    def __init__(
        self,
        nodes: Sequence[Node],
        ranks_per_node: int,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
    ) -> None:
        self._commands = [
            Command(
                torchrun_words(nodes, index, ranks_per_node, words),
                folder,
                partial(_be_agent, node, f"node{index}"),
                {**environment, "GLOO_SOCKET_IFNAME": node.interface, "OMP_NUM_THREADS": "1"},
            )
            for index, node in enumerate(nodes)
        ]
        self.pids: Sequence[int] = [command.pid for command in self._commands]

    def poll(self) -> int | None:
        """Return the largest non-zero exit code of the agents when all have ended, 0 if all are 0, or None before."""
        codes = [command.poll() for command in self._commands]
        return None if None in codes else max((code for code in codes if code), default=0)

    def said(self) -> Sequence[str]:
        """Return the text of each agent and its ranks on stderr so far."""
        return [command.said() for command in self._commands]

    def end(self) -> str:
        """End the agents; return the text of all on stderr."""
        return "".join(command.end()[1] for command in self._commands)


def _be_agent(node: Node, name: str, words: Sequence[str]) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    with Path(f"/var/run/netns/{node.name}").open() as file:
        entered = library.setns(file.fileno(), _NETWORK) or library.unshare(_HOST_NAME)
    if entered:
        raise OSError(ctypes.get_errno(), f"node {node.name}")
    socket.sethostname(name)
    from torch.distributed import run

    try:
        run.main(list(words))
    except Exception:  # noqa: BLE001 -- as Python does where nobody catches it
        traceback.print_exc()
        sys.exit(1)
