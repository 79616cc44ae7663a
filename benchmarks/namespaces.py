"""Two nodes on one machine: network namespaces, joined by a link whose bandwidth the kernel limits.

    node 0  10.77.0.1 ── veth, token bucket on both ends ── 10.77.0.2  node 1

Each node has a host name of its own. The benchmark needs Linux, iproute2, util-linux and root.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_BURST_BYTES = 4096
"""Bytes that pass at full speed: few, so that the bandwidth limits short messages too."""
_QUEUE_BYTES = 8 * 1024 * 1024
_PORT = 29511
_TORCHRUN_S = 600.0
_NAMED = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"')
"""Prefix of a command: the next word is the host name under which the rest runs."""


class NotAllowed(Exception):  # noqa: N818 -- named for what happened
    """The system refuses namespaces or a limited link; the message has the command and its output."""


@dataclass(frozen=True, slots=True)
class Node:
    """A namespace, and its end of the link."""

    name: str
    interface: str
    address: str


@contextmanager
def two_nodes(bandwidth_bytes_per_s: float) -> Iterator[tuple[Node, Node]]:
    """Make two nodes inside the block; they are removed at its end.

    Raises:
        NotAllowed: The system refuses namespaces or a limited link.
    """
    pid = os.getpid()
    nodes = tuple(Node(f"pipesched-{pid}-{i}", f"veth{i}", f"10.77.0.{i + 1}") for i in range(2))
    first, second = nodes
    try:
        for node in nodes:
            _ip("netns", "add", node.name)
        _ip("link", "add", first.interface, "netns", first.name,
            "type", "veth", "peer", "name", second.interface, "netns", second.name)  # fmt: skip
        for node in nodes:
            _ip("-n", node.name, "address", "add", f"{node.address}/24", "dev", node.interface)
            for interface in ("lo", node.interface):
                _ip("-n", node.name, "link", "set", interface, "up")
            bucket = ["burst", str(_BURST_BYTES), "limit", str(_QUEUE_BYTES)]
            rate = ["tbf", "rate", f"{round(8 * bandwidth_bytes_per_s)}bit", *bucket]
            _run(["tc", "-n", node.name, "qdisc", "add", "dev", node.interface, "root", *rate])
        yield first, second
    finally:
        for node in nodes:  # with a namespace goes its end of the link
            subprocess.run(["ip", "netns", "delete", node.name], capture_output=True, check=False)  # noqa: S607


def torchrun(nodes: Sequence[Node], ranks_per_node: int, words: Sequence[str]) -> str:
    """Run ``torchrun WORDS``, an agent in each node; return the output of node 0.

    Raises:
        RuntimeError: A node failed; the message has its output.
    """
    agents = start_torchrun(nodes, ranks_per_node, words)
    try:
        said = [agent.communicate(timeout=_TORCHRUN_S) for agent in agents]
    finally:
        for agent in agents:
            agent.terminate()  # torchrun then ends its ranks
            agent.wait()
    for agent, (_, errors) in zip(agents, said, strict=True):
        if agent.returncode:
            raise RuntimeError(errors)
    return said[0][0]


def start_torchrun(
    nodes: Sequence[Node], ranks_per_node: int, words: Sequence[str], environment: Mapping[str, str] | None = None
) -> list[subprocess.Popen[str]]:
    """Start ``torchrun WORDS`` with additional environment variables; return its agents, one in each node."""
    given = {**os.environ, **(environment or {})}
    return [_agent(nodes, index, ranks_per_node, words, given) for index in range(len(nodes))]


def torchrun_words(nodes: Sequence[Node], index: int, ranks_per_node: int, words: Sequence[str]) -> list[str]:
    """Return the arguments of ``torchrun`` on one of the nodes."""
    return [
        "--nnodes", str(len(nodes)), "--node-rank", str(index), "--nproc-per-node", str(ranks_per_node),
        "--master-addr", nodes[0].address, "--master-port", str(_PORT), *words,
    ]  # fmt: skip


def _agent(
    nodes: Sequence[Node], index: int, ranks_per_node: int, words: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", *torchrun_words(nodes, index, ranks_per_node, words)]
    return subprocess.Popen(
        ["ip", "netns", "exec", nodes[index].name, *_NAMED, f"node{index}", *command],  # noqa: S607 -- wherever they are
        env=dict(environment, GLOO_SOCKET_IFNAME=nodes[index].interface, OMP_NUM_THREADS="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotAllowed(f"{' '.join(command)}: {error.strerror}") from None
    if done.returncode:
        raise NotAllowed(f"{' '.join(command)}: {' '.join(done.stderr.split())}")
