"""Run a command line as a user does, in a separate process that may hang, crash or fill the memory."""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipesched.__main__ import main

LIMIT_S = 5.0
"""Time after which a command on a damaged file counts as hanging [s]."""
_LOOK_S = 1.0
"""Time between two polls of a running command [s]."""
LARGEST_MESSAGE = 1000
"""Longest error message [characters]: a third of a screen."""
LARGEST_MEMORY = 2**30
"""Largest main memory of a command [bytes]."""
ANSWERS = (0, 1, 2, 4)
"""Accepted exit codes: success, a negative verdict, bad input, a missing package."""
BAD_INPUT = 2


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of a command.

    Attributes:
        arguments: Arguments of ``pipesched``.
        exit_code: Exit code; negative for a signal, or None after the time limit.
        seconds: Time from start to end, without waiting for a processor.
        peak_bytes: Peak main memory.
        output: Text on stdout.
        errors: Text on stderr.
        changed: Files of the folder that are new, missing or different.
    """

    arguments: Sequence[str]
    exit_code: int | None
    seconds: float
    peak_bytes: int
    output: str
    errors: str
    changed: Sequence[str]

    def misbehaviour(self) -> str:
        """Return the fault of the result for a command with bad input, or an empty text."""
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


class Command:
    """A command line in a forked process with a session of its own, which keeps the imports of this process.

    Args:
        arguments: Arguments of ``pipesched``, or of `run`.
        folder: Working directory.
        run: Function in place of the command line.
        environment: Additional environment variables.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        run: Callable[[Sequence[str]], object] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._streams = [os.memfd_create(name) for name in ("output", "errors")]
        self._begun_s = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            os.environ |= environment or {}
            tempfile.tempdir = None  # found anew, as the environment says
            weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # noqa: SLF001 -- folders of who forked
            _be_the_command(list(arguments), folder, self._streams, run)
        self._ended = os.pidfd_open(self.pid)
        self.code: int | None = None
        self.seconds = 0.0
        self.peak_bytes = 0

    def poll(self, limit_s: float = 0.0) -> int | None:
        """Return the exit code of the command, negative for a signal, or None if it does not end in time.

        Args:
            limit_s: Remaining time [s], without waiting for a processor.
        """
        if self.code is None:
            until_s = self._elapsed_s() + limit_s
            while not select.select([self._ended], [], [], min(limit_s, _LOOK_S))[0]:
                if self._elapsed_s() >= until_s:
                    return None
            self.seconds = self._elapsed_s()
            _, status, usage = os.wait4(self.pid, 0)
            self.code, self.peak_bytes = os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
        return self.code

    def _elapsed_s(self) -> float:
        """Return the time since the start, without waiting for a processor [s]."""
        waited_ns = int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1])
        return time.monotonic() - self._begun_s - waited_ns / 1e9

    def said(self) -> str:
        """Return the text on stderr so far, of a process that may still write."""
        return os.pread(self._streams[1], os.fstat(self._streams[1]).st_size, 0).decode(errors="replace")

    def end(self) -> tuple[str, str]:
        """End the command if it still runs; return its texts on stdout and stderr."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.poll(LIMIT_S)
        os.close(self._ended)
        output, errors = (_text(stream) for stream in self._streams)
        return output, errors


def attempt(
    arguments: Sequence[str], folder: Path, run: Callable[[Sequence[str]], object] | None = None, limit_s: float = 0
) -> Attempt:
    """Run ``pipesched`` with these arguments in `folder`, or `run` in its place; return the result.

    Args:
        arguments: Arguments of ``pipesched``, or of `run`.
        folder: Working directory.
        run: Function in place of the command line.
        limit_s: Time limit [s]; 0 for twice `LIMIT_S`.
    """
    before = contents(folder)
    command = Command(arguments, folder, run)
    code = command.poll(limit_s or 2 * LIMIT_S)
    output, errors = command.end()
    after = contents(folder)
    changed = tuple(sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)))
    return Attempt(tuple(arguments), code, command.seconds, command.peak_bytes, output, errors, changed)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of the files below `folder`, by path."""
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
