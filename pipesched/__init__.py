"""Pipeline-parallel schedules, simulated and executed: what the command line does, as functions."""

import signal
import sys


def _is_command() -> bool:
    """Return whether this process is the command line, whose script or ``-m`` imports this first of all."""
    words, name = sys.orig_argv, "".join(sys.argv[:1])
    if name == "-m":
        return "-m" in words and words[words.index("-m") + 1 :][:1] == ["pipesched"]
    return name.replace("\\", "/").rpartition("/")[2] == "pipesched"


def _hear_at_once() -> None:
    """Answer Ctrl-C with one line during the imports, until `__main__` installs its own handler."""

    def leave(*_: object) -> None:
        import os

        os.write(2, b"pipesched: stopped\n")
        os._exit(130)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)


if _is_command():
    _hear_at_once()

import lazy_loader  # noqa: E402 -- only now may it take its time

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
