"""Child processes: their import paths, their end with their parent, and stdout, which is for results."""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from itertools import dropwhile
from pathlib import Path

import pipesched

MODEL_PATH = "PIPESCHED_MODEL_PATH"
"""Environment variable with the folders in which a child looks for a user's model."""
_END_WITH_PARENT = 1
"""Linux: ``PR_SET_PDEATHSIG``."""
_ADOPT_ORPHANS = 36
"""Linux: ``PR_SET_CHILD_SUBREAPER``."""
_EXIT_STATUS = 49
"""Linux: index of an ended process' exit status in ``/proc/PID/stat``, counted from the state."""
_LOOK_S = 0.5
"""Time between two checks whether the parent lives, on systems without a notification [s]."""


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of our modules; files in the working directory do not shadow its imports."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Return an environment in which a child process imports the same pipesched and the same models of users."""
    root = str(Path(pipesched.__file__).absolute().parents[1])
    standard = sysconfig.get_path("stdlib")
    is_installed = root in dropwhile(lambda entry: entry != standard, sys.path)  # where the child looks too
    path = [*([] if is_installed else [root]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    models = [str(Path(entry).absolute()) for entry in sys.path]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, dict.fromkeys(path))),
        MODEL_PATH: os.pathsep.join(models),
    }


def end_with(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """End this process when its parent is gone, for any reason.

    Args:
        parent: The parent, which may be gone already.
        by: The signal that ends this process.
    """
    if sys.platform == "linux":
        # sent at the end of the thread that started this process, so this thread must last
        _prctl(_END_WITH_PARENT, by)
    else:
        threading.Thread(target=_outlive, args=(parent, by), daemon=True).start()
    if os.getppid() != parent:  # the parent ended before the call
        os.kill(os.getpid(), by)


def _outlive(parent: int, by: signal.Signals) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), by)


def tell_main_thread(pid: int, number: signal.Signals) -> None:
    """Send a signal to the main thread of a process, or to any thread if the system has no such call.

    Raises:
        OSError: There is no such process.
    """
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "tgkill"):
        os.kill(pid, number)
    elif library.tgkill(pid, pid, number):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value)


def adopt_orphans() -> None:
    """Adopt descendants of this process whose own parent ends, on Linux."""
    if sys.platform == "linux":
        _prctl(_ADOPT_ORPHANS, 1)


def end_children() -> None:
    """Kill all children of this process, adopted ones included, on Linux."""
    while pids := _children():
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def _children() -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger has stopped a process; False if the system does not report it."""
    return _fields(pid)[0] in ("T", "t")


def exit_code_of(pid: int) -> int | None:
    """Return the exit code of an ended process that its parent has not yet collected; negative for a signal.

    None if the process runs or was collected, or the system does not report its exit code to this user.
    """
    fields = _fields(pid)
    return os.waitstatus_to_exitcode(int(fields[_EXIT_STATUS])) if fields[0] == "Z" else None


def _fields(pid: int) -> list[str]:
    """Return the fields of a process in Linux's ``/proc/PID/stat``, from its state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return [""]


def can_fork() -> bool:
    """Return whether a process that has loaded torch can be forked safely on this system."""
    return sys.platform == "linux"


@contextmanager
def prints_to_stderr() -> Iterator[None]:
    """Redirect stdout to stderr inside the block, also for libraries and child processes."""
    if sys.__stdout__ is None or sys.__stderr__ is None:  # closed before the start of the process
        with redirect_stdout(sys.stderr):
            yield
        return
    sys.stdout.flush()
    with redirect_stdout(sys.stderr), descriptor_as(1, 2):
        yield


@contextmanager
def descriptor_as(descriptor: int, other: int) -> Iterator[None]:
    """Redirect a file descriptor to another one inside the block."""
    kept = os.dup(descriptor)
    try:
        os.dup2(other, descriptor)
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
