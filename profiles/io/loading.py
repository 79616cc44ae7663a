"""Load and save profiles, clusters and plans; pydantic is loaded only when a file needs it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import Profile, RunCosts
from pipesched.profiles.io.plan import Plan
from pipesched.schedules import ScheduleError
from pipesched.schedules.formats import TIMELINE_FORMAT, format_of, read_text, suffix_of, write_text

RUN_COSTS_FORMAT = "pipesched-run-costs"


def names_profile(text: str) -> bool:
    """Return whether `text` names a profile and not a model: it ends as one does, or there is such a file."""
    return suffix_of(text) in (".json", ".txt", ".csv") or Path(text).is_file()


def load_profile(path: str | Path) -> Profile:
    """Read a profile; a file that ends in ``.txt`` is a graph of PipeDream's profiler.

    Raises:
        ProfileError: The file cannot be read, or is no profile; with place and reason.
    """
    if suffix_of(path) == ".txt":
        from pipesched.profiles.io.pipedream_graph import read_pipedream_graph

        return read_pipedream_graph(read_profile_text(path), str(path))
    from pipesched.profiles.io.profile_json import read_profile

    if suffix_of(path) == ".csv":
        raise ProfileError(
            f"{path}: got a table, expected a profile (.json), which has sizes of micro-batches; make one of a table "
            "of layers, with pipesched.profile_of_layers"
        )
    of_runs = {RUN_COSTS_FORMAT: "costs of a run's stages", TIMELINE_FORMAT: "a Timeline"}.get(format_of(path) or "")
    if of_runs is not None:
        raise ProfileError(
            f"{path}: got {of_runs}, expected a profile, which has layers that can be cut; make one of runs and a "
            "profile of their model, with pipesched.profile_from_runs"
        )
    return read_profile(read_profile_text(path), str(path))


def with_stages(path: str | Path, stages: Sequence[int]) -> str:
    """Return the graph of PipeDream's profiler in a file, with a stage_id for each node.

    Args:
        path: A graph (.txt).
        stages: Stage of each layer of the profile that `load_profile` reads from it.

    Raises:
        ProfileError: It cannot be read, is no graph, or has another number of layers.
    """
    from pipesched.profiles.io.pipedream_graph import staged_graph

    return staged_graph(read_profile_text(path), str(path), stages)


def save_profile(profile: Profile, path: str | Path) -> None:
    """Write `profile`, completely or not at all.

    Raises:
        ProfileError: It cannot be written, or could not be read again.
    """
    from pipesched.profiles.io.profile_json import profile_text

    write_profile_text(path, profile_text(profile, str(path)))


def load_run_costs(path: str | Path) -> RunCosts:
    """Read costs that were measured in runs.

    Raises:
        ProfileError: The file cannot be read, or has no costs; with place and reason.
    """
    from pipesched.profiles.io.run_costs_json import read_run_costs

    return read_run_costs(read_profile_text(path), str(path))


def save_run_costs(costs: RunCosts, path: str | Path) -> None:
    """Write `costs`, completely or not at all.

    Raises:
        ProfileError: They cannot be written, or could not be read again.
    """
    from pipesched.profiles.io.run_costs_json import run_costs_text

    write_profile_text(path, run_costs_text(costs, str(path)))


def load_cluster(path: str | Path) -> Cluster:
    """Return the cluster in a JSON file.

    Raises:
        ProfileError: The file cannot be read, or is no cluster; with place and reason.
    """
    from pipesched.profiles.io.cluster_json import read_cluster

    return read_cluster(read_profile_text(path), str(path))


def save_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write `cluster`, completely or not at all.

    Raises:
        ProfileError: It cannot be written, or could not be read again.
    """
    from pipesched.profiles.io.cluster_json import cluster_text

    write_profile_text(path, cluster_text(cluster, str(path)))


def load_plan(path: str | Path) -> Plan:
    """Return the plan in a JSON file.

    Raises:
        ProfileError: The file cannot be read, or is no plan; with place and reason.
    """
    from pipesched.profiles.io.plan_json import read_plan

    return read_plan(read_profile_text(path), str(path))


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write `plan`, completely or not at all.

    Raises:
        ProfileError: It cannot be written, or could not be read again.
    """
    from pipesched.profiles.io.plan_json import plan_text

    write_profile_text(path, plan_text(plan, str(path)))


def read_profile_text(path: str | Path) -> str:
    """Return the text of a file from outside, as `schedules.formats.read_text` does; it may be empty.

    Raises:
        ProfileError: It cannot be opened, is above 64 MiB, or is not UTF-8.
    """
    try:
        return read_text(path, may_be_empty=True)
    except ScheduleError as error:
        raise ProfileError(str(error)) from error


def write_profile_text(path: str | Path, text: str) -> None:
    """Write a file: all of it, or nothing.

    Raises:
        ProfileError: It cannot be written; nothing is left behind.
    """
    try:
        write_text(path, text)
    except ScheduleError as error:
        raise ProfileError(str(error)) from error
