"""Processes that tests start: nothing of one is left, and it is interrupted whatever the tests were started with."""

import os
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import PIPE

PATIENCE_S = 600.0
"""How long a test waits for what comes soon on a machine that is free: so long only where something is broken."""


_PROGRESS = re.compile(r"^pipesched: (.*: \d+ s(, .*)?|compiling once.*)\n", re.MULTILINE)


@contextmanager
def started(command, **how):
    """Yield the process, as `subprocess.Popen` does, in a group of its own that is killed in the end.

    Signals end it as in a terminal, though what ``nohup ... &`` starts in a script ignores some.
    """
    before = {ends: signal.signal(ends, signal.default_int_handler) for ends in (signal.SIGINT, signal.SIGHUP)}
    try:
        process = subprocess.Popen(command, start_new_session=True, **how)
    finally:
        for ends, handler in before.items():
            signal.signal(ends, handler)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with process:
            pass


def run(command, **how):
    """Return what `subprocess.run` does, as text, and without lines of progress on stderr."""
    return run_all([(command, how.pop("env", None))], **how)[0]


def run_all(commands, **how):
    """Run all commands, each with its environment, at the same time."""
    with ExitStack() as stack:
        given = {"stdout": PIPE, "stderr": PIPE, "text": True, "stdin": subprocess.DEVNULL} | how
        processes = [stack.enter_context(started(command, env=env, **given)) for command, env in commands]
        with ThreadPoolExecutor(len(processes)) as listeners:  # one that is not listened to would wait
            return list(listeners.map(_finished, processes))


def _finished(process):
    try:
        said = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    out, err = said
    err = without_progress(err) if isinstance(err, str) else err
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def without_progress(err):
    """Return stderr without lines of progress: a busy machine takes 30 s for anything, a new one compiles first."""
    return _PROGRESS.sub("", err)


def eventually(condition):
    """Wait until `condition()`; return whether it came."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def processes_in(folder):
    """Return the running processes that work in `folder`, or name it in their command or environment."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            if (process / "cwd").readlink() == folder or str(folder).encode() in words:
                pids.append(int(process.name))
    return pids
