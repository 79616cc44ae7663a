"""Read and write files: within a size limit, the whole file or nothing, and with faults in one line."""

from __future__ import annotations

import codecs
import errno
import os
import select
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, ClassVar

from pipesched.schedules import ScheduleError

MAX_BYTES = 64 * 2**20
"""Largest schedule file that is read [bytes]."""

WRITER_S = 3.0
"""Longest wait for the writer of a named pipe [s]."""

NO_MORE_FILES = (errno.EMFILE, errno.ENFILE)
"""Errors of the system if a process, or all processes together, have too many open files or sockets."""

MORE_FILES = "try a higher limit of open files (ulimit -n)"

_SHOWN_FAULTS = 3


class FileWarning(UserWarning):
    """A warning about the reading of a file."""


class Faults:
    """The faults of one file, collected and raised together."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._shown: list[str] = []
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, place: str, problem: str) -> None:
        """Add the fault `problem` ("got x, expected y; try z") at `place`; an empty place means the whole file."""
        self._count += 1
        if self._count <= _SHOWN_FAULTS:
            self._shown.append(f"{place}: {problem}" if place else problem)

    def settle(self) -> None:
        """Raise the collected faults, if there are any.

        Raises:
            ScheduleError: The file has faults; the message has the first ones in one line, and the number of the
                others.
        """
        if not self._count:
            return
        more = [f"and {self._count - _SHOWN_FAULTS} more"] if self._count > _SHOWN_FAULTS else []
        raise ScheduleError(without_breaks(f"{self._origin}: " + "; ".join(self._shown + more)))


def fault(origin: str, problem: str) -> ScheduleError:
    """Return the error for a file with a single fault."""
    return ScheduleError(without_breaks(f"{origin}: {problem}"))


def without_breaks(text: str) -> str:
    """Return `text` without line breaks."""
    return " ".join(text.splitlines())


def suffix_of(path: Path | str) -> str:
    """Return the suffix of a file's name, such as ``.json``, in small letters; empty without a suffix."""
    return Path(str(path)).suffix.lower()  # a value that is no path is refused by the reader


def read_text(path: Path | str, limit: int = MAX_BYTES, *, may_be_empty: bool = False) -> str:
    """Return the text of a UTF-8 file of at most `limit` bytes, with its own line ends and without byte order mark.

    All text from outside is read here, so that all readers accept the same texts.

    Raises:
        ScheduleError: The file cannot be read, is larger, is not text, or is empty without `may_be_empty`.
    """
    data = read_bytes(path, limit).removeprefix(codecs.BOM_UTF8)
    if not may_be_empty and not data.strip():
        raise fault(str(path), "got an empty file, expected a file with content; try writing the file again")
    if b"\0" in data:
        place = _place_of(data, data.index(b"\0"))
        raise fault(str(path), f"{place}: got NUL, expected text; try saving the file as UTF-8")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        got = f"{_place_of(data, error.start)}: got 0x{data[error.start]:02x}"
        raise fault(str(path), f"{got}, expected UTF-8; try saving the file as UTF-8") from error


def read_bytes(path: Path | str, limit: int = MAX_BYTES) -> bytes:
    """Return the content of a file of at most `limit` bytes.

    Raises:
        ScheduleError: The file cannot be read, or is larger.
    """
    try:
        with open_to_read(path) as file:
            data = file.read(limit + 1)
    except (OSError, TypeError, ValueError) as error:  # TypeError: it is no path
        problem = f"got {_reason(error)}, expected a file that can be read; {_advice(error)}"
        raise fault(_name_of(path), problem) from error
    if len(data) > limit:
        raise fault(str(path), f"got more than {limit} bytes, expected at most {limit}; try a smaller file")
    return data


def open_to_read(path: Path | str) -> BinaryIO:
    """Return an open file, or an open pipe that has a writer.

    Raises:
        OSError: The file cannot be opened, is a device, or is a pipe without a writer for `WRITER_S`.
    """
    file = os.fdopen(os.open(Path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    try:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):  # it may have no end
            raise OSError(errno.EINVAL, "a device")
        # a pipe without a name has a writer: in the shell's <(command), as long as the command runs
        is_named = stat.S_ISFIFO(mode) and Path(os.path.realpath(path)).exists()
        if is_named and not select.select([file], [], [], WRITER_S)[0]:
            raise OSError(errno.ETIMEDOUT, "a pipe without a writer")
        os.set_blocking(file.fileno(), True)
    except OSError:
        file.close()
        raise
    return file


def _place_of(data: bytes, index: int) -> str:
    before = data[:index]
    return f"line {before.count(10) + 1}, byte {index - before.rfind(10)}"


def write_text(path: Path | str, text: str) -> None:
    """Write the whole of `text` to `path` as UTF-8, or nothing.

    Raises:
        ScheduleError: The folder is missing, or the file cannot be written.
    """
    with whole_file(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def require_folder(folder: Path, path: Path | str) -> None:
    """Refuse to write `path` if its `folder` is missing or may not be written to.

    Raises:
        ScheduleError: The folder is missing, or not writable.
    """
    if not folder.is_dir():
        raise fault(str(path), f"got no folder {str(folder)!r}, expected one; try creating it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        got = f"got a folder {str(folder)!r} without permission to write"
        raise fault(str(path), f"{got}, expected a writable folder; try another")


@contextmanager
def whole_file(path: Path | str, *, makes_folder: bool = False, is_lasting: bool = False) -> Iterator[Path]:
    """Yield a temporary name to write to; at the end, this file replaces `path`, or the target of the link `path`.

    All whole files are written by this function, so that all errors have the same words.

    Args:
        path: The file; an error leaves it unchanged.
        makes_folder: Whether a missing folder is made; its parent folder must exist.
        is_lasting: Whether the file is flushed to the disk at the end, so that it survives a crash of the machine.

    Raises:
        ScheduleError: The folder is missing, or the file cannot be written.
    """
    try:
        target = _file_linked(path)
        if makes_folder:
            require_folder(target.parent.parent, path)
            target.parent.mkdir(exist_ok=True)
        if target.exists() and not target.is_file():
            problem = "got something that is not a regular file, expected a file's name; try another path"
            raise fault(_name_of(path), problem)
        require_folder(target.parent, path)
        temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")
        _unfinished[temporary] = None
        try:
            yield temporary
            if _Disk.on_write is not None:
                _Disk.on_write()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if is_lasting:
                _to_disk(temporary)
            if target in _postponed:
                _unfinished[temporary] = target
                return
            temporary.replace(target)
            if is_lasting:
                _to_disk(target.parent)
        finally:
            if _unfinished[temporary] is None:
                del _unfinished[temporary]
                temporary.unlink(missing_ok=True)
    except ScheduleError:
        raise
    except (OSError, TypeError, ValueError) as error:
        raise _not_written(path, error) from error


def _file_linked(path: Path | str) -> Path:
    """Return the file that `path` is or links to.

    Raises:
        ScheduleError: The links form a loop.
    """
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise _not_written(path, OSError(errno.ELOOP, os.strerror(errno.ELOOP)))
    return target


_unfinished: dict[Path, Path | None] = {}
"""Temporary names of unfinished and postponed files; for a postponed file with the path that it will replace."""

_postponed: set[Path] = set()
"""Files that replace their paths together."""


def postpone_files(paths: Iterable[Path]) -> None:
    """Postpone the replacement of these files until all of them are written: see `finish_files`.

    Raises:
        ScheduleError: The links of a path form a loop.
    """
    _postponed.update(map(_file_linked, paths))


def finish_files() -> None:
    """Put the postponed files into their places, and end the postponement.

    Raises:
        ScheduleError: A file cannot be put into its place.
    """
    whole = {temporary: target for temporary, target in _unfinished.items() if target is not None}
    for temporary, target in whole.items():
        try:
            temporary.replace(target)
        except OSError as error:
            raise _not_written(target, error) from error
        del _unfinished[temporary]
    _postponed.clear()


def drop_files() -> None:
    """Remove the postponed and unfinished files of an interrupted program."""
    _postponed.clear()
    while _unfinished:
        _unfinished.popitem()[0].unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fill_disk(on_write: Callable[[], None]) -> None:
    """Make all later writes of this process fail as on a full disk: an injected fault.

    Args:
        on_write: Called on every such write.
    """
    _Disk.on_write = on_write


class _Disk:
    """The simulated state of the disk: full if a function is set."""

    on_write: ClassVar[Callable[[], None] | None] = None


def append_text(path: Path | str, text: str) -> None:
    """Append `text` to a file as UTF-8, and flush it to the operating system.

    Raises:
        ScheduleError: The file cannot be written.
    """
    try:
        with Path(path).open("ab") as file:
            file.write(text.encode("utf-8"))
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path | str, error: Exception) -> ScheduleError:
    return fault(_name_of(path), f"got {_reason(error)}, expected a file that can be written; {_advice(error)}")


def _name_of(path: Path | str) -> str:
    return str(path) or "''"


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _advice(error: Exception) -> str:
    return MORE_FILES if isinstance(error, OSError) and error.errno in NO_MORE_FILES else "try another path"
