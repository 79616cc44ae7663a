"""Checkpoints as folders: which there are, which are whole, and what run each is of.

    FOLDER/step00000100/rank0-stage0.safetensors    what a rank holds of a stage, a file each
                        losses.safetensors          the scores of all steps so far
                        index.json                  written last: the steps, the run, and the digest of every file

What has no index is no checkpoint: its writing was interrupted. An index whose files are not as it says is damaged.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from pipesched.executor import ExecutionError
from pipesched.profiles import ProfileError
from pipesched.profiles.io import STRICT, one_line, parse_record, record_schema
from pipesched.schedules import ScheduleError, room_bytes, shown
from pipesched.schedules.formats import read_bytes, read_text, whole_file

DEALT = {
    "schedule", "num_ranks", "num_microbatches", "num_chunks", "parameters", "recompute", "width", "partition"
}  # fmt: skip
"""What may change where a run goes on, if the mean gradient of a batch is all that a step depends on."""
LOSSES = "losses.safetensors"
NO_OTHER = "no other is whole"
"""What is said where a checkpoint is damaged, and there is no good one."""
_INDEX = "index.json"
_NAME = re.compile(r"step(\d{8,})")
_FILE = re.compile(r"[a-z0-9-]+\.safetensors")
_OURS = re.compile(r"\.?([a-z0-9-]+\.safetensors|index\.json)(\.[0-9a-f]{8}\.tmp)?")
"""What may be removed: files of a checkpoint, also under the names that they are written under."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """What a file of a checkpoint holds.

    Attributes:
        num_bytes: Bytes.
        sha256: SHA-256, in hexadecimal digits.
    """

    num_bytes: Annotated[int, Field(ge=0, lt=2**50)]
    sha256: str

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIndex:
    """What a checkpoint is of, and its files.

    Attributes:
        steps: Optimizer steps that the run has taken.
        every: Steps from one checkpoint of the run to the next.
        keep: Checkpoints of the run that are kept.
        run: What a step depends on, by the name of the argument.
        is_synchronous: Whether its schedule has a flush after each step, and one model: so it may go on with another.
        files: The files beside this one, by name.
        digest: SHA-256 of all the above, in hexadecimal digits.
    """

    format: Literal["pipesched-checkpoint"]
    version: Literal[1]
    steps: Annotated[int, Field(ge=0, lt=2**31)]
    every: Annotated[int, Field(ge=1, lt=2**31)]
    keep: Annotated[int, Field(ge=1, lt=2**31)]
    run: dict[str, str]
    is_synchronous: bool = False
    files: dict[str, FileDigest]
    digest: str = ""

    __pydantic_config__ = STRICT


def checkpoint_schema() -> dict[str, Any]:
    """Return the JSON Schema of the index of a checkpoint."""
    return record_schema(CheckpointIndex)


def checkpoint_folder(folder: Path, steps: int) -> Path:
    """Return the folder of the checkpoint after so many steps."""
    return folder / f"step{steps:08d}"


def write_index(checkpoint: Path, index: CheckpointIndex) -> None:
    """Let a folder be a checkpoint: all of its files are on the disk.

    Raises:
        ExecutionError: It cannot be written.
    """
    write_lasting(checkpoint / _INDEX, index_text(replace(index, digest=_digest(index))).encode())


def _digest(index: CheckpointIndex) -> str:
    return hashlib.sha256(index_text(replace(index, digest="")).encode()).hexdigest()


def index_text(index: CheckpointIndex) -> str:
    """Return an index as JSON that `index_from_json` reads again."""
    return json.dumps(asdict(index), indent=1) + "\n"


def index_from_json(text: str, origin: str) -> CheckpointIndex:
    """Return the index in `text`.

    Args:
        text: JSON.
        origin: Where it is from, for what is wrong with it.

    Raises:
        ProfileError: It is none; with the faults.
    """
    return parse_record(CheckpointIndex, text, origin, "it is damaged")


def write_lasting(path: Path, data: bytes) -> FileDigest:
    """Write a file of a checkpoint, so that it is there whatever happens to the machine; the whole of it, or nothing.

    Raises:
        ExecutionError: It cannot be written.
    """
    try:
        with whole_file(path, makes_folder=True, is_lasting=True) as temporary:
            temporary.write_bytes(data)
    except ScheduleError as error:
        raise ExecutionError(f"checkpoint: {error}") from error
    return FileDigest(num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def read_index(checkpoint: Path) -> CheckpointIndex:
    """Return what a checkpoint is of; its files are not looked at.

    Raises:
        ExecutionError: It is none, or its index is damaged; with the file.
    """
    try:
        index = index_from_json(read_text(checkpoint / _INDEX), str(checkpoint / _INDEX))
    except (ProfileError, ScheduleError) as error:
        raise ExecutionError(str(error)) from None
    if not index.digest:
        raise ExecutionError(
            f"{checkpoint / _INDEX}: digest: got none, expected that of the rest; an earlier version of pipesched has "
            "written it: try to go on with that one, or begin anew"
        )
    if index.digest != _digest(index):
        raise ExecutionError(
            f"{checkpoint / _INDEX}: digest: got {shown(index.digest)}, expected that of the rest; it is damaged"
        )
    name = _NAME.fullmatch(checkpoint.name)
    if name is not None and int(name[1]) != index.steps:
        raise ExecutionError(
            f"{checkpoint / _INDEX}: steps: got {index.steps}, expected {int(name[1])}, as its folder is named; "
            "it is damaged"
        )
    return index


def read_file(checkpoint: Path, index: CheckpointIndex, name: str) -> bytes:
    """Return what a file of a checkpoint holds.

    Raises:
        ExecutionError: The checkpoint has no such file, or another; with the file.
    """
    digest, path = index.files.get(name), checkpoint / name
    if digest is None or not _FILE.fullmatch(name):
        raise ExecutionError(f"{path}: got no such file of a checkpoint, expected one; it is damaged")
    if not path.is_file():
        raise ExecutionError(f"{path}: got no file, expected one of {digest.num_bytes} bytes: it is damaged")
    room = room_bytes()
    if digest.num_bytes > room:
        raise ExecutionError(
            f"{path}: got {digest.num_bytes} bytes, expected at most the {room} for which there is memory; "
            "go on where there is more"
        )
    try:
        data = read_bytes(path, digest.num_bytes)
    except ScheduleError as error:
        raise ExecutionError(f"{error}: it is damaged") from None
    got = hashlib.sha256(data).hexdigest()
    if got != digest.sha256:
        raise ExecutionError(f"{path}: got SHA-256 {got[:12]}, expected {digest.sha256[:12]}: it is damaged")
    return data


def find_checkpoint(path: Path) -> tuple[Path, CheckpointIndex]:
    """Return the checkpoint in `path`, or the newest of those in it, all of whose files are as they were written.

    Raises:
        ExecutionError: There is none, or it is damaged: with the file, and the newest that is not.
    """
    newest = path if has_index(path) else next(iter(_whole_ones(path)[::-1]), None)
    if newest is None:
        name = " ".join(str(path).splitlines())
        raise ExecutionError(f"{name}: got no checkpoint in it, expected one; try what was given as `checkpoint`")
    try:
        return newest, _required(newest)
    except ExecutionError as error:
        good = last_good(newest)
        raise ExecutionError(f"{error}; {NO_OTHER if good is None else resume_advice(good)}") from None


def newest_good(folder: Path) -> Path:
    """Return the newest checkpoint in `folder` that is whole, whatever has become of newer ones.

    Raises:
        ExecutionError: None is; with what is wrong with the newest.
    """
    good = next(filter(_is_good, _whole_ones(folder)[::-1]), None)
    return find_checkpoint(folder)[0] if good is None else good


def last_good(damaged: Path, fits: Callable[[Path], bool] = lambda checkpoint: True) -> Path | None:  # noqa: ARG005
    """Return the newest other checkpoint that is whole and that fits; None if there is none."""
    others = [other for other in _whole_ones(damaged.parent)[::-1] if other != damaged]
    return next((other for other in others if _is_good(other) and fits(other)), None)


def resume_advice(good: Path) -> str:
    """Return what to try where a checkpoint is of no use, and another is."""
    return f"the last good one is {good}; try `resume={good}`"


def _required(checkpoint: Path) -> CheckpointIndex:
    index = read_index(checkpoint)
    for name in index.files:
        read_file(checkpoint, index, name)
    return index


def _is_good(checkpoint: Path) -> bool:
    try:
        _required(checkpoint)
    except ExecutionError:
        return False
    return True


def require_same_run(checkpoint: Path, index: CheckpointIndex, run: Mapping[str, str], *, is_synchronous: bool) -> bool:
    """Refuse a checkpoint of another run; return whether its layers have to be dealt anew.

    Args:
        checkpoint: Folder of the checkpoint.
        index: Its index.
        run: What a step of this run depends on, by the name of the argument.
        is_synchronous: Whether this run's schedule has a flush after each step, and one model.

    Raises:
        ExecutionError: It is of another; with what differs.
    """
    names = [name for name in {**run, **index.run} if run.get(name) != index.run.get(name)]
    is_dealt = bool(names) and set(names) <= DEALT
    if not names or (is_dealt and is_synchronous and index.is_synchronous):
        return is_dealt
    faults = [f"{name} {shown(index.run.get(name))}, not {shown(run.get(name))}" for name in names]
    reason = ", as weights are only dealt anew where schedules step after a flush, and train one model"
    raise ExecutionError(
        f"{checkpoint}: got a checkpoint of another run, of {one_line(faults)}, expected one of this run"
        f"{reason if is_dealt else ''}; try the arguments that it was made with"
    )


def has_checkpoints(folder: Path) -> bool:
    """Return whether there is any checkpoint in a folder, damaged or not."""
    return bool(_whole_ones(folder))


def require_no_checkpoints(folder: Path, start: Path | None) -> None:
    """Refuse to begin a run in a folder that has checkpoints of another; those of one that goes on there may be there.

    Args:
        folder: Where the run writes checkpoints; it need not be there.
        start: The checkpoint that the run goes on from; None: from the beginning.

    Raises:
        ExecutionError: It has, or it cannot be made.
    """
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        reason = errno.EACCES if there.is_dir() else errno.ENOTDIR
        raise _not_made(folder, OSError(reason, os.strerror(reason)))
    if start is not None and start.resolve().parent == folder.resolve():
        return
    if has_checkpoints(folder):
        raise ExecutionError(
            f"checkpoint: got {folder}, which has checkpoints, expected a folder without; try `resume={folder}` to go "
            "on from the last, or another folder"
        )


def clear_after(folder: Path, steps: int) -> None:
    """Make the folder of checkpoints, and remove from it what a run that goes on after `steps` will write anew.

    That is what has no index, and what is of later steps.

    Raises:
        ExecutionError: The folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_made(folder, error) from error
    for number, checkpoint in _all(folder):
        if number > steps or not has_index(checkpoint):
            _remove(checkpoint)


def _not_made(folder: Path, error: OSError) -> ExecutionError:
    return ExecutionError(
        f"checkpoint: got {str(folder)!r} ({error.strerror}), expected a folder that can be made; try another"
    )


def keep_newest(folder: Path, keep: int) -> None:
    """Remove all checkpoints but so many of the last steps."""
    for checkpoint in _whole_ones(folder)[:-keep]:
        _remove(checkpoint)


def _remove(checkpoint: Path) -> None:
    """Remove the files of a checkpoint, and its folder if nobody has put anything else there; of a link it alone."""
    with suppress(OSError):
        if checkpoint.is_symlink():
            checkpoint.unlink()
            return
        (checkpoint / _INDEX).unlink(missing_ok=True)  # first, so that half a checkpoint is none
        for path in checkpoint.iterdir():
            if _OURS.fullmatch(path.name):
                path.unlink()
        checkpoint.rmdir()


def _whole_ones(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder that have an index, in the order of their steps."""
    return [checkpoint for _, checkpoint in _all(folder) if has_index(checkpoint)]


def has_index(checkpoint: Path) -> bool:
    """Return whether a folder is a checkpoint, whatever its index is: a file, or what cannot be read."""
    return os.path.lexists(checkpoint / _INDEX)


def _all(folder: Path) -> list[tuple[int, Path]]:
    """Return (steps, folder) of what was begun to be written to a folder, in order."""
    entries = folder.iterdir() if folder.is_dir() else ()
    return sorted((int(name[1]), entry) for entry in entries if (name := _NAME.fullmatch(entry.name)))
