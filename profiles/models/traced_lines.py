"""The lines of a user's code from which the operations of a traced graph come."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch.fx import GraphModule, Node

from pipesched.schedules.common import USERS_LINE

_NOT_THE_USERS = tuple(Path(file).parent for file in (torch.__file__, __file__))


class UsersLine(NamedTuple):
    """A call in a user's code."""

    file: str
    line: int
    function: str


def is_of_torch(file: str) -> bool:
    """Return whether a file is a part of torch, or of the tracer."""
    return any(Path(file).is_relative_to(folder) for folder in _NOT_THE_USERS)


def users_line(node: Node) -> UsersLine | None:
    """Return the innermost call in a user's code that made a node of a traced graph, or None if unknown."""
    calls = re.findall(r'File "(.+)", line (\d+), in (\S+)', node.meta.get("stack_trace") or "")
    own = [UsersLine(file, int(line), function) for file, line, function in calls if not is_of_torch(file)]
    return own[-1] if own else None


def keep_users_lines(module: GraphModule) -> None:
    """Let `users_lines` find the user's code at an error in the generated forward of a module."""
    module.forward.__globals__[USERS_LINE] = partial(_line_of, module)


def _line_of(module: GraphModule, number: int) -> UsersLine | None:
    """Return the user's call behind a line of the generated forward, which assigns to the name of its node."""
    made = re.match(r"\s*(\w+)\b.* = ", module.code.splitlines()[number - 1])
    node = next((node for node in module.graph.nodes if made is not None and node.name == made[1]), None)
    return None if node is None else users_line(node)
