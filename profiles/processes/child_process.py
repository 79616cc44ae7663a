"""Child processes: how they find what they import, and that they end with their parent."""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import threading
import time
from itertools import dropwhile
from pathlib import Path

import pipesched

MODEL_PATH = "PIPESCHED_MODEL_PATH"
"""Names, in a child's environment, the folders where the process that started it looks for a user's model."""
_END_WITH_PARENT = 1
"""Linux: ``PR_SET_PDEATHSIG``."""
_ADOPT_ORPHANS = 36
"""Linux: ``PR_SET_CHILD_SUBREAPER``."""
_EXIT_STATUS = 49
"""Linux: which of the fields of ``/proc/PID/stat``, from the state on, has the status of a process that has ended."""
_LOOK_S = 0.5
"""How often a process looks whether its parent is there, where the system cannot tell it."""


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of our modules; nothing in the working directory shadows what it imports."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Return this process' environment for a child, which finds the same pipesched, and the same users' models."""
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
    """Let this process be ended when its parent is gone, however that ended.

    Args:
        parent: The process that started this one; it may be gone already.
        by: The signal that ends it.
    """
    if sys.platform == "linux":
        # sent when the thread that started us ends: one that outlives us, or the system would end us too early
        _prctl(_END_WITH_PARENT, by)
    else:
        threading.Thread(target=_outlive, args=(parent, by), daemon=True).start()
    if os.getppid() != parent:  # it was gone before the system was asked
        os.kill(os.getpid(), by)


def _outlive(parent: int, by: signal.Signals) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), by)


def tell_main_thread(pid: int, number: signal.Signals) -> None:
    """Send a signal to the main thread of a process, or, where the system has no way to, to whichever takes it.

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
    """Let what descends from this process become its child when its own parent ends, where the system can (Linux)."""
    if sys.platform == "linux":
        _prctl(_ADOPT_ORPHANS, 1)


def end_children() -> None:
    """Kill all children of this process, and those that it has from them, where the system names them (Linux)."""
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
    """Return whether a process is stopped by a signal or a debugger; False where the system does not say."""
    return _state(pid) in ("T", "t")


def exit_code_of(pid: int) -> int | None:
    """Return how a process of this user has ended for which its parent has not asked yet; negative: by which signal.

    None where it has asked, the process runs, or the system does not say.
    """
    fields = _fields(pid)
    return os.waitstatus_to_exitcode(int(fields[_EXIT_STATUS])) if fields[0] == "Z" else None


def _state(pid: int) -> str:
    return _fields(pid)[0]


def _fields(pid: int) -> list[str]:
    """Return what Linux says of a process, from its state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return [""]


def can_fork() -> bool:
    """Whether a process that has loaded torch can be forked safely here: not where the system's libraries forbid it."""
    return sys.platform == "linux"
