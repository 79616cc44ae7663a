"""A command line tried as a user would try it, in a process of its own that may hang, crash or eat memory."""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipesched.cli.main import main

LIMIT_S = 5.0
"""A command that works on a damaged file for longer hangs [s]."""
LARGEST_MESSAGE = 1000
"""Characters of a refusal: a screen's third."""
LARGEST_MEMORY = 2**30
"""What a command may hold of main memory [bytes]."""
ANSWERS = (0, 1, 2, 4)
"""Exit codes of what is fine, of a verdict, of bad input, of what is not installed."""
BAD_INPUT = 2


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of a command.

    Attributes:
        arguments: Behind ``pipesched``.
        exit_code: What it left with; negative: the signal that ended it; None: it was ended after its time.
        seconds: From start to end [s].
        peak_bytes: Main memory at its largest.
        output: What it printed.
        errors: What it printed on stderr.
        changed: Files of its folder that are there, are gone or differ since.
    """

    arguments: tuple[str, ...]
    exit_code: int | None
    seconds: float
    peak_bytes: int
    output: str
    errors: str
    changed: tuple[str, ...]

    def misbehaviour(self) -> str:
        """Return what is wrong with it, as a command that got bad input; empty if nothing is."""
        wrongs = {
            f"over {LIMIT_S:g} s": self.exit_code is None or self.seconds > LIMIT_S,
            "traceback": "Traceback (most" in self.errors + self.output,
            f"exit code {self.exit_code}": self.exit_code is not None and self.exit_code not in ANSWERS,
            "over 1 GiB": self.peak_bytes > LARGEST_MEMORY,
            "changed files": self.exit_code == BAD_INPUT and bool(self.changed),
            "not one line": self.exit_code == BAD_INPUT and self.errors.count("\n") != 1,
            "too long": self.exit_code == BAD_INPUT and len(self.errors) > LARGEST_MESSAGE,
            "control characters": any(not c.isprintable() and c not in "\n\t" for c in self.errors),
        }
        return ", ".join(wrong for wrong, is_so in wrongs.items() if is_so)


def attempt(
    arguments: Sequence[str], folder: Path, run: Callable[[Sequence[str]], object] | None = None, limit_s: float = 0
) -> Attempt:
    """Run ``pipesched`` with these arguments in `folder`, or `run` in its place, and say what came of it.

    A fork: what is imported already need not be imported again.

    Args:
        arguments: Behind ``pipesched``, or what `run` gets.
        folder: Where it works.
        run: Takes the place of the command line.
        limit_s: When it is ended [s]; 0: twice `LIMIT_S`.
    """
    before = contents(folder)
    streams = [os.memfd_create(name) for name in ("output", "errors")]
    begun_s = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _be_the_command(list(arguments), folder, streams, run)
    ended = os.pidfd_open(pid)
    is_over = bool(select.select([ended], [], [], limit_s or 2 * LIMIT_S)[0])
    if not is_over:
        os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    seconds = time.monotonic() - begun_s
    os.close(ended)
    output, errors = (_text(stream) for stream in streams)
    after = contents(folder)
    changed = tuple(sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)))
    code = os.waitstatus_to_exitcode(status) if is_over else None
    return Attempt(tuple(arguments), code, seconds, usage.ru_maxrss * 1024, output, errors, changed)


def contents(folder: Path) -> dict[str, bytes]:
    """Return what the files below `folder` hold, by their paths."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _be_the_command(
    arguments: list[str], folder: Path, streams: Sequence[int], run: Callable[[Sequence[str]], object] | None
) -> None:
    code = 70  # of what nobody foresaw
    try:
        os.setsid()
        os.chdir(folder)
        for stream, descriptor in zip(streams, (1, 2), strict=True):
            os.dup2(stream, descriptor)
        sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115 -- whoever forked may have others
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["pipesched", *arguments]
        try:
            if run:
                run(arguments)
            else:
                main()
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
        except BaseException:  # noqa: BLE001 -- the traceback is what the attempt is there to find
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _text(stream: int) -> str:
    with os.fdopen(stream, "rb") as file:
        file.seek(0)
        return file.read().decode(errors="replace")
