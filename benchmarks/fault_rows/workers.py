"""Share work among forked processes, which keep the imports of this process."""

from __future__ import annotations

import json
import os
import struct
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

_TORCH = (
    "torch._dynamo",
    "torch.optim",
    "torch.distributed",
    "pipesched.executor.runs",
    "pipesched.workflows.training",
)
_NUMBER = struct.Struct("=I")
_MOST = 2**16 // _NUMBER.size
"""Most numbers in a pipe."""


def load_torch() -> None:
    """Import the modules of commands that run and train, so that forked processes need not."""
    for name in _TORCH:
        import_module(name)


def worked_off(task: Callable[[int], Any], count: int, num_workers: int) -> list[Any]:
    """Return the results of `task` for 0, 1, .. `count` - 1; each worker takes the next number when it is free.

    Args:
        task: Function from a number to a value for JSON.
        count: Number of numbers.
        num_workers: Number of processes.
    """
    assert count <= _MOST, "a pipe holds the numbers"
    numbers, feed = os.pipe()
    os.write(feed, b"".join(map(_NUMBER.pack, range(count))))
    os.close(feed)
    workers = [_worker(task, numbers) for _ in range(min(count, num_workers))]
    os.close(numbers)
    results = dict[int, Any]()
    for pid, answers in workers:
        if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            raise SystemExit(f"faults: a worker ended with exit code {code}")
        with os.fdopen(answers, "rb") as file:
            file.seek(0)
            results |= {int(number): result for number, result in json.load(file).items()}
    return [results[number] for number in range(count)]


def _worker(task: Callable[[int], Any], numbers: int) -> tuple[int, int]:
    """Fork a worker; return its process and the file of its answers."""
    answers = os.memfd_create("answers")
    pid = os.fork()
    if pid:
        return pid, answers
    code = 1
    try:
        results = {}
        while number := os.read(numbers, _NUMBER.size):
            results[_NUMBER.unpack(number)[0]] = task(_NUMBER.unpack(number)[0])
        os.write(answers, json.dumps(results).encode())
        code = 0
    except BaseException:  # noqa: BLE001 -- the parent is told by the exit code
        traceback.print_exc()
    finally:
        os._exit(code)
