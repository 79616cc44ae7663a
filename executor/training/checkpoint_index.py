"""A checkpoint as a folder: its files, and the index that says what run it is of.

    FOLDER/step00000100/rank0-stage0.safetensors    what a rank holds of a stage, a file each
                        losses.safetensors          the scores of all steps so far
                        index.json                  written last: the steps, the run, and the digest of every file

What has no index is no checkpoint: its writing was interrupted. An index whose files are not as it says is damaged.
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
from pipesched.profiles import ProfileError
from pipesched.profiles.io import STRICT, one_line, parse_record, record_schema
from pipesched.schedules import ScheduleError, room_bytes, shown
from pipesched.schedules.formats import read_bytes, read_text, whole_file

DEALT = {
    "schedule", "num_ranks", "num_microbatches", "num_chunks", "parameters", "recompute", "width", "partition"
}  # fmt: skip
"""What may change where a run goes on, if the mean gradient of a batch is all that a step depends on."""
LOSSES = "losses.safetensors"
INDEX = "index.json"
STEPS = re.compile(r"step(\d{8,})")
"""How the folder of a checkpoint is called."""
_FileName: TypeAlias = Annotated[
    str, Field(pattern=r"^(losses|rank(0|[1-9][0-9]{0,8})-stage(0|[1-9][0-9]{0,8}))\.safetensors$")
]
_Partition: TypeAlias = Annotated[str, Field(pattern="^[1-9][0-9]{0,8}(,[1-9][0-9]{0,8})*$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """What a file of a checkpoint holds.

    Attributes:
        num_bytes: Bytes.
        sha256: SHA-256, in hexadecimal digits.
    """

    num_bytes: Annotated[int, Field(ge=0, lt=2**50)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """All that a step of a training run depends on, in words; ``none`` where the run has none.

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
        optimizer: Name of the optimizer.
        lr: Learning rate.
        seed: Seed of weights, samples and dropout.
        dtype: Type of weights and activations.
        prediction: Rule by which weights are predicted.
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
    """What a checkpoint is of, and its files.

    Attributes:
        steps: Optimizer steps that the run has taken.
        every: Steps from one checkpoint of the run to the next.
        keep: Checkpoints of the run that are kept.
        run: All that a step depends on.
        is_synchronous: Whether its schedule has a flush after each step, and one model: so it may go on with another.
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
    """Return the folder of the checkpoint after so many steps."""
    return folder / f"step{steps:08d}"


def write_index(checkpoint: Path, index: CheckpointIndex) -> None:
    """Let a folder be a checkpoint: all of its files are on the disk.

    Raises:
        ExecutionError: It cannot be written.
    """
    write_lasting(checkpoint / INDEX, index_text(replace(index, digest=_digest(index))).encode())


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
        index = index_from_json(read_text(checkpoint / INDEX), str(checkpoint / INDEX))
    except (ProfileError, ScheduleError) as error:
        raise ExecutionError(str(error)) from None
    if not index.digest:
        raise ExecutionError(
            f"{checkpoint / INDEX}: digest: got none, expected that of the rest; an earlier version of pipesched has "
            "written it: try to go on with that one, or begin anew"
        )
    if index.digest != _digest(index):
        raise ExecutionError(
            f"{checkpoint / INDEX}: digest: got {shown(index.digest)}, expected that of the rest; it is damaged"
        )
    name = STEPS.fullmatch(checkpoint.name)
    if name is not None and int(name[1]) != index.steps:
        raise ExecutionError(
            f"{checkpoint / INDEX}: steps: got {index.steps}, expected {int(name[1])}, as its folder is named; "
            "it is damaged"
        )
    return index


def read_file(checkpoint: Path, index: CheckpointIndex, name: str) -> bytes:
    """Return what a file of a checkpoint holds.

    Raises:
        ExecutionError: The checkpoint has no such file, or another; with the file.
    """
    digest, path = index.files.get(name), checkpoint / name
    if digest is None:
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


def require_same_run(checkpoint: Path, index: CheckpointIndex, run: RunIdentity, *, is_synchronous: bool) -> bool:
    """Refuse a checkpoint of another run; return whether its layers have to be dealt anew.

    Args:
        checkpoint: Folder of the checkpoint.
        index: Its index.
        run: All that a step of this run depends on.
        is_synchronous: Whether this run's schedule has a flush after each step, and one model.

    Raises:
        ExecutionError: It is of another; with what differs.
    """
    own, its = asdict(run), asdict(index.run)
    names = [name for name, value in own.items() if value != its[name]]
    is_dealt = bool(names) and set(names) <= DEALT
    if not names or (is_dealt and is_synchronous and index.is_synchronous):
        return is_dealt
    faults = [f"{name} {shown(its[name])}, not {shown(own[name])}" for name in names]
    reason = ", as weights are only dealt anew where schedules step after a flush, and train one model"
    raise ExecutionError(
        f"{checkpoint}: got a checkpoint of another run, of {one_line(faults)}, expected one of this run"
        f"{reason if is_dealt else ''}; try the arguments that it was made with"
    )
