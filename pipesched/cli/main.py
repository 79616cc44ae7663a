"""``pipesched``: simulate, run and compare pipeline schedules."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.abc import MetaPathFinder
from typing import Any

import typer

from pipesched.cli.errors import (
    BAD_INPUT,
    FINE,
    NEGATIVE,
    NOT_THERE,
    RANK_FAILED,
    STOPPED,
    NotThereError,
    forget_files,
    in_flags,
)
from pipesched.cli.output.output_files import say_written
from pipesched.cli.program import COMMANDS, complaint, make_program
from pipesched.cli.terminal import complain, silence
from pipesched.profiles.processes import end_interrupts, is_interrupted, tell_once
from pipesched.schedules.columns import machine_code
from pipesched.schedules.common import address_space_bytes, is_out_of_memory, require_room_for_torch
from pipesched.schedules.formats import MORE_FILES, NO_MORE_FILES, FileWarning, drop_files, finish_files

_EXTRAS = {"torch": "run", "safetensors": "run", "ortools": "optimize", "ray": "ray"}
"""The extra of ours that installs a package."""

_COMPLETION = "_PIPESCHED_COMPLETE"
"""Environment variable of a shell's completion."""


def main() -> None:
    """Run the command line; a mistake of the user is one line on stderr, never a traceback."""
    if _COMPLETION in os.environ:
        sys.exit(_complete())
    _drop_odd_sizes()
    _spare_address_space()
    try:
        code = _answer(_run)
        if code not in (BAD_INPUT, STOPPED):
            code = _answer(_finish) or code
    finally:
        drop_files()
    say_written()
    try:
        sys.stdout.flush()
    except OSError:  # which has been reported; else Python reports it again while it shuts down
        silence(sys.stdout)
    sys.exit(code)


def _drop_odd_sizes() -> None:
    """Remove an unusual terminal size from the environment, because rich reads it without a check."""
    for name in ("COLUMNS", "LINES"):
        if not re.fullmatch("[1-9][0-9]{0,5}", os.environ.get(name, "")):
            os.environ.pop(name, None)


def _spare_address_space() -> None:
    """Prevent libraries from exiting or hanging if the address space is limited.

    OpenBLAS reserves memory for every core, so it gets one thread; torch is not loaded without room.
    """
    if address_space_bytes() is not None:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        sys.meta_path.insert(0, _TorchRoom())


class _TorchRoom(MetaPathFinder):
    """Refuses to import torch without room; finds no module."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:  # noqa: ARG002 -- importlib's
        if fullname == "torch":
            require_room_for_torch()


_EXHAUSTED = (
    "memory: got too little, expected enough for this command; try fewer micro-batches, ranks or workers, or a higher "
    "limit (ulimit -v)"
)

_FORESEEN = (
    typer.TyperException,
    ValueError,
    NotThereError,
    ImportError,
    OSError,
    KeyboardInterrupt,
    MemoryError,
    RuntimeError,  # also raised without memory, as SystemError
    SystemError,
)


def _answer(work: Callable[[], int]) -> int:
    """Do a part of the command and return its exit code; errors are printed."""
    try:
        return work()
    except _FORESEEN as error:
        if is_interrupted():
            return _say(KeyboardInterrupt())
        with suppress(MemoryError):  # the printing code has to be loaded
            if type(error).__module__.startswith("pipesched.") or not is_out_of_memory(error):
                return _say(error)
    # outside of the handler, which keeps the frames with the large objects alive
    return _print(_EXHAUSTED, BAD_INPUT)


def _run() -> int:
    machine_code.on_compile(_say_compiling)
    code = _invoke(sys.argv[1:] or ["--help"])
    sys.stdout.flush()
    return code


def _say_compiling(is_kept: bool) -> None:
    if is_kept:
        complain("compiling once, up to a minute")
    else:
        complain("compiling again, up to a minute, as no folder for machine code is writable (set NUMBA_CACHE_DIR)")


def _finish() -> int:
    """Move the files to their places, after all other output; from here on no interrupt is raised."""
    end_interrupts()
    finish_files()
    return FINE


def _invoke(arguments: list[str]) -> int:
    """Run one subcommand; typer's own main would turn an interrupt and a closed pipe into exit codes of its choice."""
    forget_files()
    warnings.simplefilter("always", FileWarning)
    warnings.showwarning = partial(_show_warning, warnings.showwarning)
    try:
        with make_program().make_context("pipesched", arguments) as context:
            context.command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return FINE


def _show_warning(
    show_other: Callable[..., None], message: Warning | str, category: type[Warning], *others: Any
) -> None:
    """Print a warning on how a file is read as a line on stderr; leave every other warning to `show_other`."""
    if issubclass(category, FileWarning):
        complain(str(message))
    else:
        show_other(message, category, *others)


def _complete() -> int:
    """Print completions for a shell."""
    from typer.completion import shell_complete

    return shell_complete(make_program(), {}, "pipesched", _COMPLETION, os.environ[_COMPLETION])


def _say(error: BaseException) -> int:
    """Print an error and return the exit code; unexpected errors are raised again."""
    match error:
        case BrokenPipeError():  # the reader has left; drop the rest of the output
            silence(sys.stdout)
            return FINE
        case KeyboardInterrupt():
            tell_once(partial(complain, "stopped"))
            return STOPPED
        case typer.TyperException():
            name = " ".join(["pipesched", *(word for word in sys.argv[1:2] if word in COMMANDS)])
            return _print(complaint(error, name), BAD_INPUT)
        case NotThereError():
            return _print(str(error), NOT_THERE)
        case ModuleNotFoundError(name=str(name)):
            extra = _EXTRAS.get(name)
            package = name if extra is None else f'"pipesched[{extra}]"'
            return _print(f"{name} is not installed; try pip install {package}", NOT_THERE)
        case OSError():
            return _print(_of_system(error), BAD_INPUT)
        case UnicodeEncodeError():
            return _print(f"output: got {error.object[error.start]!a}, expected {error.encoding}; try UTF-8", BAD_INPUT)
    from pipesched.executor import RankFailed
    from pipesched.schedules import NotRunnableError
    from pipesched.workflows import MissingDeviceError

    text = in_flags(error)
    if isinstance(error, NotRunnableError):
        return _print(text, NEGATIVE)
    if type(error).__module__.startswith("pipesched."):
        code = RANK_FAILED if isinstance(error, RankFailed) else BAD_INPUT
        return _print(text, NOT_THERE if isinstance(error, MissingDeviceError) else code)
    raise error


def _of_system(error: OSError) -> str:
    """Return the message of a system error; errors of sockets, pipes and the output have no file name."""
    if error.errno in NO_MORE_FILES:
        return f"{error.filename or 'files'}: got {error.strerror}, expected room for one more open file; {MORE_FILES}"
    return f"{error.filename or 'output'}: got {error.strerror}, expected a working file; try another path"


def _print(text: str, code: int) -> int:
    complain(text)
    return code
