"""``python -m pipesched``: the command line, which answers an interrupt at any moment."""

import atexit
import errno
import gc
import os
import sys
from collections.abc import Callable
from typing import NoReturn

_STOPPED = 130  # as STOPPED of pipesched.cli.errors, which may not be there yet


def main() -> None:
    """Run the command line, which may be interrupted while it is imported, too."""
    _open_streams()
    gc.disable()  # what is loaded stays, so that nobody need look through it
    try:
        from pipesched.profiles.processes import is_interrupted, leave_when_told, persist_interrupts

        persist_interrupts(_leave)
    except KeyboardInterrupt:
        _leave()
    try:
        run = _command_line()

        gc.freeze()
        gc.enable()
        run()
    except SystemExit as left:
        gc.freeze()  # else Python goes once more through all that is left, when it shuts down
        if left.code != _STOPPED:
            leave_when_told(left.code if isinstance(left.code, int) else 1)
            raise
        sys.stderr.flush()
        atexit._run_exitfuncs()  # noqa: SLF001 -- what processes and folders of ours end by
        os._exit(_STOPPED)  # threads that were left at work make Python crash or wait for ever while it shuts down
    except BaseException:
        if not is_interrupted():
            raise
        _leave()


def _command_line() -> Callable[[], None]:
    """Return the command line, or leave with a line where there is no memory even for that."""
    try:
        from pipesched.cli.main import main as run
    except (MemoryError, ImportError, OSError, SystemError) as error:
        is_mapped = "map segment" in str(error) or getattr(error, "errno", None) == errno.ENOMEM
        if not (isinstance(error, MemoryError) or is_mapped):
            raise
        os.write(2, b"pipesched: memory: got no more, expected enough to start; try a higher limit (ulimit -v)\n")
        raise SystemExit(2) from None
    return run


def _open_streams() -> None:
    """Open standard streams that are closed, so that no other file gets their numbers.

    Reading finds nothing, writing to stdout fails as on a closed file, and messages are dropped.
    """
    for name, mode in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            stream = os.fdopen(os.open(os.devnull, mode), "r" if name == "stdin" else "w")
            setattr(sys, name, stream)


def _leave() -> NoReturn:
    """End at once, from within anything; processes of ours end with this one, and unfinished files are removed."""
    if (interrupts := sys.modules.get("pipesched.profiles.processes.interrupts")) is None:
        _tell()
    else:
        interrupts.tell_once(_tell)
    files, processes = map(sys.modules.get, ("pipesched.schedules.formats.files", "multiprocessing.util"))
    if files is not None:
        files.drop_files()
    if processes is not None:
        processes._run_finalizers(0)  # noqa: SLF001 -- semaphores with a name, which else outlive us
    os._exit(_STOPPED)


def _tell() -> None:
    os.write(2, b"\x1b[?25hpipesched: stopped\n" if os.isatty(2) else b"pipesched: stopped\n")


if __name__ == "__main__":
    main()
