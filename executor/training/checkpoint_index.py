"""A checkpoint as a folder: its files, and the index with the run that it belongs to.

    FOLDER/step00000100/rank0-stage0.safetensors    the state of a stage on a rank, a file each
                        losses.safetensors          the scores of all steps so far
                        index.json                  written last: the steps, the run, and the digest of every file

A folder without an index is no checkpoint: its writing was interrupted. A checkpoint is damaged if its files do not
match its index.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from pipesched.executor import ExecutionError
from pipesched.profiles import STRICT, ProfileError
from pipesched.profiles.io import one_line, parse_record, record_schema
from pipesched.schedules import ScheduleError
from pipesched.schedules.common import room_bytes, shown
from pipesched.schedules.formats import read_bytes, read_text, whole_file

DEALT = {
    "schedule", "num_ranks", "num_microbatches", "num_chunks", "parameters", "recompute", "width", "partition"
}  # fmt: skip
"""Fields that may change at a resume if a step depends only on the mean gradient of its batch."""
LOSSES = "losses.safetensors"
INDEX = "index.json"
STEPS = re.compile(r"step(\d{8,})")
"""Name of the folder of a checkpoint."""
_FileName: TypeAlias = Annotated[
    str, Field(pattern=r"^(losses|rank(0|[1-9][0-9]{0,8})-stage(0|[1-9][0-9]{0,8}))\.safetensors$")
]
_Partition: TypeAlias = Annotated[str, Field(pattern="^[1-9][0-9]{0,8}(,[1-9][0-9]{0,8})*$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """The size and digest of a file of a checkpoint.

    Attributes:
        num_bytes: Bytes.
        sha256: SHA-256, in hexadecimal digits.
    """

    num_bytes: Annotated[int, Field(ge=0, lt=2**50)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """All settings that affect a step of a training run, as text; ``none`` for unused settings.

    Attributes:
        model: Name of the model.
        schedule: Name of the schedule, or ``lists`` and the beginning of the digest of its lists.
        num_ranks: Number of ranks.
        num_microbatches: Micro-batches of a batch.
        num_chunks: Stages per rank.
        parameters: Parameters of the schedule.
        recompute: Stages that keep only their input.
        width: Copies of each stage.
        partition: Layers of each stage.
        batch_size: Samples of a step.
        optimizer: Name of the optimizer, its settings, and the norm to which gradients are clipped.
        lr: Learning rate, and its schedule.
        seed: Seed of weights, samples and dropout.
        dtype: Type of weights and activations.
        prediction: Rule of weight prediction.
        compression: Compression of messages.
        averaging: Form of averaging.
    """

    model: str
    schedule: str
    num_ranks: str
    num_microbatches: str
    num_chunks: str
    parameters: str
    recompute: str
    width: str
    partition: _Partition
    batch_size: str
    optimizer: str
    lr: str
    seed: str
    dtype: str
    prediction: str
    compression: str
    averaging: str

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIndex:
    """The run of a checkpoint, and its files.

    Attributes:
        steps: Optimizer steps that the run has taken.
        every: Steps from one checkpoint of the run to the next.
        keep: Number of checkpoints of the run to keep.
        run: All settings that affect a step.
        is_synchronous: Whether its schedule has a flush after each step, and one model, so that it may resume with
            another schedule.
        files: The files beside this one, by name.
        digest: SHA-256 of all the above, in hexadecimal digits.
    """

    format: Literal["pipesched-checkpoint"]
    version: Literal[1]
    steps: Annotated[int, Field(ge=0, lt=2**31)]
    every: Annotated[int, Field(ge=1, lt=2**31)]
    keep: Annotated[int, Field(ge=1, lt=2**31)]
    run: RunIdentity
    is_synchronous: bool = False
    files: dict[_FileName, FileDigest]
    digest: str = ""

    __pydantic_config__ = STRICT


def checkpoint_schema() -> dict[str, Any]:
    """Return the JSON Schema of the index of a checkpoint."""
    return record_schema(CheckpointIndex)


def checkpoint_folder(folder: Path, steps: int) -> Path:
    """Return the folder of the checkpoint after `steps` steps."""
    return folder / f"step{steps:08d}"


def write_index(checkpoint: Path, index: CheckpointIndex) -> None:
    """Write the index of a checkpoint, after all of its files are on the disk.

    Raises:
        ExecutionError: The index cannot be written.
    """
    write_lasting(checkpoint / INDEX, index_text(replace(index, digest=_digest(index))).encode())


def _digest(index: CheckpointIndex) -> str:
    return hashlib.sha256(index_text(replace(index, digest="")).encode()).hexdigest()


def index_text(index: CheckpointIndex) -> str:
    """Return an index as JSON for `index_from_json`."""
    return json.dumps(asdict(index), indent=1) + "\n"


def index_from_json(text: str, origin: str) -> CheckpointIndex:
    """Return the index in `text`.

    Args:
        text: JSON.
        origin: Source of the text, for error messages.

    Raises:
        ProfileError: The text is no index; lists the faults.
    """
    return parse_record(CheckpointIndex, text, origin, "the checkpoint is damaged")


def write_lasting(path: Path, data: bytes) -> FileDigest:
    """Write a file of a checkpoint durably and atomically.

    Raises:
        ExecutionError: The file cannot be written.
    """
    try:
        with whole_file(path, makes_folder=True, is_lasting=True) as temporary:
            temporary.write_bytes(data)
    except ScheduleError as error:
        raise ExecutionError(f"checkpoint: {error}") from error
    return FileDigest(num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def read_index(checkpoint: Path) -> CheckpointIndex:
    """Return the index of a checkpoint, without checking its files.

    Raises:
        ExecutionError: The folder is no checkpoint, or its index is damaged; the message names the file.
    """
    try:
        index = index_from_json(read_text(checkpoint / INDEX), str(checkpoint / INDEX))
    except (ProfileError, ScheduleError) as error:
        raise ExecutionError(str(error)) from None
    if not index.digest:
        raise ExecutionError(
            f"{checkpoint / INDEX}: digest: got none, expected the digest of the other fields; an earlier version of "
            "pipesched wrote this checkpoint: continue with that version, or start again"
        )
    if index.digest != _digest(index):
        raise ExecutionError(
            f"{checkpoint / INDEX}: digest: got {shown(index.digest)}, expected the digest of the other fields; the "
            "checkpoint is damaged"
        )
    name = STEPS.fullmatch(checkpoint.name)
    if name is not None and int(name[1]) != index.steps:
        raise ExecutionError(
            f"{checkpoint / INDEX}: steps: got {index.steps}, expected {int(name[1])}, as in the name of its folder; "
            "the checkpoint is damaged"
        )
    return index


def read_file(checkpoint: Path, index: CheckpointIndex, name: str) -> bytes:
    """Return the bytes of a file of a checkpoint.

    Raises:
        ExecutionError: The file is missing or does not match the index; the message names the file.
    """
    digest, path = index.files.get(name), checkpoint / name
    if digest is None:
        raise ExecutionError(
            f"{path}: got no digest of this file in the index, expected one; the checkpoint is damaged"
        )
    if not path.is_file():
        raise ExecutionError(
            f"{path}: got no file, expected one of {digest.num_bytes} bytes; the checkpoint is damaged"
        )
    room = room_bytes()
    if digest.num_bytes > room:
        raise ExecutionError(
            f"{path}: got {digest.num_bytes} bytes, expected at most {room}, the free memory; continue on a machine "
            "with more memory"
        )
    try:
        data = read_bytes(path, digest.num_bytes)
    except ScheduleError as error:
        raise ExecutionError(f"{error}; the checkpoint is damaged") from None
    got = hashlib.sha256(data).hexdigest()
    if got != digest.sha256:
        raise ExecutionError(
            f"{path}: got SHA-256 {got[:12]}, expected {digest.sha256[:12]}; the checkpoint is damaged"
        )
    return data


def require_same_run(checkpoint: Path, index: CheckpointIndex, run: RunIdentity, *, is_synchronous: bool) -> bool:
    """Refuse a checkpoint of another run; return whether its layers must be dealt to other stages.

    Args:
        checkpoint: Folder of the checkpoint.
        run: All settings that affect a step of this run.
        is_synchronous: Whether this run's schedule has a flush after each step, and one model.

    Raises:
        ExecutionError: The checkpoint is of another run; names the fields that differ.
    """
    own, its = asdict(run), asdict(index.run)
    names = [name for name, value in own.items() if value != its[name]]
    is_dealt = bool(names) and set(names) <= DEALT
    if not names or (is_dealt and is_synchronous and index.is_synchronous):
        return is_dealt
    faults = [f"{name} {shown(its[name])}, not {shown(own[name])}" for name in names]
    reason = "; weights move to other stages only between schedules with a flush that train one model"
    raise ExecutionError(
        f"{checkpoint}: got a checkpoint of another run ({one_line(faults)}), expected one of this "
        f"run{reason if is_dealt else ''}; try the arguments of that run"
    )
