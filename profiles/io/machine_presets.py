"""Common machines, one node each, and GPUs, with the public source of every number in the file's `origin`."""

from __future__ import annotations

from pathlib import Path

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster, Gpu
from pipesched.profiles.io.loading import load_cluster, read_profile_text
from pipesched.schedules.common import shown
from pipesched.schedules.formats import suffix_of

_DATA = Path(__file__).parents[1] / "data"


def machine_names() -> tuple[str, ...]:
    """Return the names of the machines."""
    return _names("machines")


def load_machine(name: str | Path) -> Cluster:
    """Return one node: its devices, its links inside and to other nodes, its network interfaces.

    Args:
        name: ``aws-g5.48xlarge``, ``aws-p3.16xlarge``, ``dgx-a100``, ``dgx-h100`` or ``wpipe-v100``; or the file of a
            cluster of one node (.json).

    Raises:
        ProfileError: There is no machine of this name, or the file is not a cluster of one node.
    """
    if isinstance(name, str | Path) and suffix_of(name) == ".json":
        node = load_cluster(name)
        count = len({device.node for device in node.devices})
        if count > 1:
            raise ProfileError(f"{name}: got {count} nodes, expected one; give the file as the cluster")
        return node
    if not isinstance(name, str) or name not in machine_names():
        near = [known for known in machine_names() if isinstance(name, str) and name and name.lower() in known]
        guess = f"did you mean {near[0]}? " if len(near) == 1 else ""
        raise ProfileError(
            f"machine: got {shown(name)}, {guess}expected one of {', '.join(machine_names())}, or a file (.json)"
        )
    return load_cluster(_DATA / "machines" / f"{name}.json")


def gpu_names() -> tuple[str, ...]:
    """Return the names of the GPUs."""
    return _names("gpus")


def load_gpu(name: str | Path) -> Gpu:
    """Return a GPU with the figures of its data sheet.

    Args:
        name: One of `gpu_names`, or a file (.json) like the files in `data/gpus`, whose stem is the name of the GPU.

    Raises:
        ProfileError: There is no GPU of this name, or the file is invalid.
    """
    from pipesched.profiles.io.gpu_json import read_gpu

    if suffix_of(name) == ".json":
        return read_gpu(read_profile_text(name), str(name), Path(name).stem)
    if name not in gpu_names():
        raise ProfileError(f"gpu: got {shown(name)}, expected one of {', '.join(gpu_names())}, or a file (.json)")
    return load_gpu(_DATA / "gpus" / f"{name}.json")


def _names(folder: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (_DATA / folder).glob("*.json")))
