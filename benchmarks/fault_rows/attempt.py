"""A command line tried as a user would try it, in a process of its own that may hang, crash or eat memory."""

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
"""A command that works on a damaged file for longer hangs [s]."""
_LOOK_S = 1.0
"""Time between two looks at a command that runs [s]."""
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
        seconds: From start to end, less the time that it waited for a processor [s].
        peak_bytes: Main memory at its largest.
        output: What it printed.
        errors: What it printed on stderr.
        changed: Files of its folder that are there, are gone or differ since.
    """

    arguments: Sequence[str]
    exit_code: int | None
    seconds: float
    peak_bytes: int
    output: str
    errors: str
    changed: Sequence[str]

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


class Command:
    """A command line in a forked process, with a session of its own: what is imported need not be imported again.

    Args:
        arguments: Behind ``pipesched``, or what `run` gets.
        folder: Where it works.
        run: Takes the place of the command line.
        environment: Variables that it has besides.
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
        """Return its exit code, negative for a signal, if it ends soon.

        Args:
            limit_s: How long it may run from now on [s]; time that it waits for a processor does not count.
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
        """Return the time since the start, less the time that it waited for a processor [s]."""
        waited_ns = int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1])
        return time.monotonic() - self._begun_s - waited_ns / 1e9

    def said(self) -> str:
        """Return what it has printed on stderr so far, as a process that still writes there."""
        return os.pread(self._streams[1], os.fstat(self._streams[1]).st_size, 0).decode(errors="replace")

    def end(self) -> tuple[str, str]:
        """End it, if it is not over, and return its output and what it printed on stderr."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.poll(LIMIT_S)
        os.close(self._ended)
        output, errors = (_text(stream) for stream in self._streams)
        return output, errors


def attempt(
    arguments: Sequence[str], folder: Path, run: Callable[[Sequence[str]], object] | None = None, limit_s: float = 0
) -> Attempt:
    """Run ``pipesched`` with these arguments in `folder`, or `run` in its place, and say what came of it.

    Args:
        arguments: Behind ``pipesched``, or what `run` gets.
        folder: Where it works.
        run: Takes the place of the command line.
        limit_s: When it is ended [s]; 0: twice `LIMIT_S`.
    """
    before = contents(folder)
    command = Command(arguments, folder, run)
    code = command.poll(limit_s or 2 * LIMIT_S)
    output, errors = command.end()
    after = contents(folder)
    changed = tuple(sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)))
    return Attempt(tuple(arguments), code, command.seconds, command.peak_bytes, output, errors, changed)


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
