"""Load and save profiles, clusters and plans, and load common machines; pydantic is imported only if needed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster, Gpu, KernelCurve
from pipesched.profiles.costs import EstimateErrors, Profile, RunCosts
from pipesched.profiles.io.plan import Plan
from pipesched.schedules import ScheduleError
from pipesched.schedules.common import shown
from pipesched.schedules.formats import TIMELINE_FORMAT, format_of, read_text, suffix_of, write_text

RUN_COSTS_FORMAT = "pipesched-run-costs"


def names_profile(text: str) -> bool:
    """Return whether `text` is the path of a profile, not a model's name: by its suffix, or because the file exists."""
    return suffix_of(text) in (".json", ".txt", ".csv") or Path(text).is_file()


def load_profile(path: str | Path) -> Profile:
    """Read a profile; a file that ends in ``.txt`` is a graph of PipeDream's profiler.

    Raises:
        ProfileError: The file cannot be read, or is no profile; the message has place and reason.
    """
    if suffix_of(path) == ".txt":
        from pipesched.profiles.io.pipedream_graph import read_pipedream_graph

        return read_pipedream_graph(read_profile_text(path), str(path))
    from pipesched.profiles.io.profile_json import read_profile

    if suffix_of(path) == ".csv":
        raise ProfileError(
            f"{path}: got a table, expected a profile (.json), which has sizes of micro-batches; make one of a table "
            "of layers, with pipesched.workflows.measuring.profile_of_layers"
        )
    of_runs = {RUN_COSTS_FORMAT: "costs of a run's stages", TIMELINE_FORMAT: "a Timeline"}.get(format_of(path) or "")
    if of_runs is not None:
        raise ProfileError(
            f"{path}: got {of_runs}, expected a profile, which has layers that can be cut; make one of runs and a "
            "profile of their model, with pipesched.workflows.measuring.profile_from_runs"
        )
    return read_profile(read_profile_text(path), str(path))


def with_stages(path: str | Path, stages: Sequence[int]) -> str:
    """Return the graph of PipeDream's profiler in a file, with a stage_id for each node.

    Args:
        path: A graph (.txt).
        stages: Stage of each layer of the profile that `load_profile` reads from it.

    Raises:
        ProfileError: The file cannot be read, is no graph, or has another number of layers.
    """
    from pipesched.profiles.io.pipedream_graph import staged_graph

    return staged_graph(read_profile_text(path), str(path), stages)


def load_run_costs(path: str | Path) -> RunCosts:
    """Read costs that were measured in runs.

    Raises:
        ProfileError: The file cannot be read, or has no costs; the message has place and reason.
    """
    from pipesched.profiles.io.run_costs_json import read_run_costs

    return read_run_costs(read_profile_text(path), str(path))


def load_cluster(path: str | Path) -> Cluster:
    """Return the cluster in a JSON file.

    Raises:
        ProfileError: The file cannot be read, or is no cluster; the message has place and reason.
    """
    from pipesched.profiles.io.cluster_json import read_cluster

    return read_cluster(read_profile_text(path), str(path))


def load_plan(path: str | Path) -> Plan:
    """Return the plan in a JSON file.

    Raises:
        ProfileError: The file cannot be read, or is no plan; the message has place and reason.
    """
    from pipesched.profiles.io.plan_json import read_plan

    return read_plan(read_profile_text(path), str(path))


def save_json(value: Profile | RunCosts | Cluster | Plan | Gpu, path: str | Path) -> None:
    """Write a value to a file, completely or not at all; the name of the file, not its text, names a GPU.

    Raises:
        ProfileError: The file cannot be written, or could not be read again.
    """
    from pipesched.profiles.io import cluster_json, plan_json, profile_json, run_costs_json

    match value:
        case Profile():
            text = profile_json.profile_text(value, str(path))
        case RunCosts():
            text = run_costs_json.run_costs_text(value, str(path))
        case Cluster():
            text = cluster_json.cluster_text(value, str(path))
        case Plan():
            text = plan_json.plan_text(value, str(path))
        case Gpu():
            text = cluster_json.gpu_text(value)
    write_profile_text(path, text)


def read_profile_text(path: str | Path) -> str:
    """Return the text of a file from outside, as `schedules.formats.read_text` does; the text may be empty.

    Raises:
        ProfileError: The file cannot be opened, is above 64 MiB, or is not UTF-8.
    """
    try:
        return read_text(path, may_be_empty=True)
    except ScheduleError as error:
        raise ProfileError(str(error)) from error


def write_profile_text(path: str | Path, text: str) -> None:
    """Write a file: all of it, or nothing.

    Raises:
        ProfileError: The file cannot be written; no part of it remains.
    """
    try:
        write_text(path, text)
    except ScheduleError as error:
        raise ProfileError(str(error)) from error


DATA_FOLDER = Path(__file__).parents[1] / "data"


def machine_names() -> tuple[str, ...]:
    """Return the names of the machines."""
    return _names("machines")


def load_machine(name: str | Path) -> Cluster:
    """Return one node: its devices, its links, and its network interfaces.

    Args:
        name: One of `machine_names`, as ``dgx-h100``; or the file of a cluster of one node (.json).

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
    return load_cluster(DATA_FOLDER / "machines" / f"{name}.json")


def machine_name_of(cluster: Cluster) -> str | None:
    """Return the name of the known machine whose nodes form a cluster, or None for any other cluster."""
    return _names_by_origin().get(cluster.origin)


@cache
def _names_by_origin() -> dict[str, str]:
    return {load_machine(name).origin: name for name in machine_names()}


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
    from pipesched.profiles.io.cluster_json import read_gpu

    if suffix_of(name) == ".json":
        return read_gpu(read_profile_text(name), str(name), Path(name).stem, load_kernel_curve)
    if name not in gpu_names():
        raise ProfileError(f"gpu: got {shown(name)}, expected one of {', '.join(gpu_names())}, or a file (.json)")
    return load_gpu(DATA_FOLDER / "gpus" / f"{name}.json")


ESTIMATE_ERRORS = DATA_FOLDER / "published" / "estimate_errors.json"
"""The errors of estimates by family of GPUs."""


def load_estimate_errors(family: str | None) -> EstimateErrors | None:
    """Return the errors of estimates beside published runs, or None for a family without a published run, or no family.

    Args:
        family: The family of a data sheet, as ``A100``.
    """
    return None if family is None else estimate_errors().get(family)


@cache
def estimate_errors() -> dict[str, EstimateErrors]:
    """Return the errors of estimates by family; `benchmarks/published.py` writes their file with its page."""
    from pipesched.profiles.io.validation import parse_record

    advice = "write it again, with benchmarks/published.py"
    return parse_record(dict[str, EstimateErrors], read_profile_text(ESTIMATE_ERRORS), str(ESTIMATE_ERRORS), advice)


def load_kernel_curve(name: str, asker: str = "") -> KernelCurve:
    """Return a curve of kernels that was fitted to measured shapes.

    Args:
        name: Name of a file in `data/kernels`.
        asker: The file that names the curve, for messages.

    Raises:
        ProfileError: There is no curve of this name.
    """
    from pipesched.profiles.io.validation import parse_record

    if name not in _names("kernels"):
        place = f"{asker}: kernels" if asker else "kernels"
        raise ProfileError(f"{place}: got {shown(name)}, expected one of {', '.join(_names('kernels'))}")
    path = DATA_FOLDER / "kernels" / f"{name}.json"
    return parse_record(KernelCurve, read_profile_text(path), str(path), "see profiles/data/kernels/a100.json")


def _names(folder: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (DATA_FOLDER / folder).glob("*.json")))
