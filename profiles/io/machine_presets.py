"""Common machines, one node each, and GPUs, with the public source of every number in the file's `origin`."""

from __future__ import annotations

import json
from pathlib import Path

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster, Gpu
from pipesched.profiles.io.loading import load_cluster
from pipesched.schedules import shown

_DATA = Path(__file__).parents[1] / "data"


def machine_names() -> tuple[str, ...]:
    """Return the machines that there are."""
    return _names("machines")


def load_machine(name: str) -> Cluster:
    """Return one node: its devices, its links inside and to other nodes, its network interfaces.

    Args:
        name: ``aws-g5.48xlarge``, ``aws-p3.16xlarge``, ``dgx-a100``, ``dgx-h100`` or ``wpipe-v100``.

    Raises:
        ProfileError: There is none of this name.
    """
    if not isinstance(name, str) or name not in machine_names():
        near = [known for known in machine_names() if isinstance(name, str) and name and name.lower() in known]
        guess = f"did you mean {near[0]}? " if len(near) == 1 else ""
        raise ProfileError(f"machine: got {shown(name)}, {guess}expected one of {', '.join(machine_names())}")
    return load_cluster(_DATA / "machines" / f"{name}.json")


def gpu_names() -> tuple[str, ...]:
    """Return the GPUs that there are."""
    return _names("gpus")


def load_gpu(name: str) -> Gpu:
    """Return what the data sheet of a GPU says.

    Args:
        name: One of `gpu_names`.
    """
    return Gpu(name, **json.loads((_DATA / "gpus" / f"{name}.json").read_text(encoding="utf-8")))


def _names(folder: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (_DATA / folder).glob("*.json")))
