"""Sweep: predict every combination of schedules, counts, links and more, each as `simulate` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

from pipesched.profiles import MessagePrecision
from pipesched.profiles.clusters import Cluster, Link
from pipesched.profiles.costs import Profile
from pipesched.profiles.processes import num_cores, rare_collections
from pipesched.simulator import NetworkOptions
from pipesched.simulator.search import (
    Journal,
    Runner,
    SweptOutcome,
    SweptSetting,
    make_process_runner,
    measured_columns,
    ordered_by,
    own_sources,
    search_all,
)
from pipesched.workflows import (
    MAX_PROCESSES,
    ArgumentError,
    refused_settings,
    require_choice,
    require_each_at_least,
    require_flag,
    require_flags,
    require_kind,
    require_number,
    require_optional,
    require_rate,
    require_some,
)
from pipesched.workflows.arguments import (
    AnyCosts,
    ClusterArgument,
    CostsArgument,
    NamedSchedule,
    PartitionArgument,
    load_costs,
    partition_text,
    read_cluster_argument,
    read_microbatch_size,
    require_taken,
    searched_entries,
    workers_for,
)
from pipesched.workflows.simulating import REFUSED, Setup, require_runs
from pipesched.workflows.sweeping.setting_condition import SettingCondition
from pipesched.workflows.sweeping.sweep_judge import SweepJudge
from pipesched.workflows.sweeping.sweep_result import SweepResult
from pipesched.workflows.sweeping.sweep_space import ParameterNumber, SweepSpace

_MOST_TOGETHER = 1_024
"""Most settings of a block."""
_MOST_BLOCKS = 16
"""Most blocks that a process takes at once."""
_FEW = 1_000_000
"""Work of all blocks, as `_work` counts it, below which starting processes takes longer than the work."""

_Block: TypeAlias = tuple[SweptSetting, ...]
"""Settings with the same op lists and the same micro-batch size."""


def sweep(
    schedules: Sequence[NamedSchedule],
    costs: CostsArgument,
    cluster: ClusterArgument = None,
    *,
    num_ranks: int | Sequence[int],
    num_microbatches: int | Sequence[int],
    num_chunks: int | Sequence[int] | None = None,
    parameters: Mapping[str, Sequence[ParameterNumber]] | None = None,
    recomputes: Sequence[bool] = (False,),
    microbatch_sizes: int | Sequence[int] | None = None,
    link: Mapping[str, Sequence[float]] | None = None,
    where: str | None = None,
    partition: PartitionArgument | None = None,
    input_share: float | None = None,
    network: NetworkOptions = NetworkOptions(),  # noqa: B008 -- frozen
    compression: MessagePrecision | None = None,
    convert_bytes_per_s: float | None = None,
    limit_bytes: int | None = None,
    jitter: float = 0.0,
    seed: int = 0,
    num_runs: int = 1,
    by: str | None = None,
    is_steady: bool = True,
    num_workers: int | None = 1,
    resume: str | Path | None = None,
) -> SweepResult:
    """Predict every combination of the given values, each as `simulate` does; an invalid setting has its reason.

    Args:
        schedules: Names of the catalogue, and builders of your own or their names (``package.module:builder``).
        costs: Costs as `simulate` takes them; layers are cut, and a DeviceCost shared, as each schedule needs it.
        cluster: Machines as `simulate` takes them.
        num_ranks: Ranks of the pipeline, one number or several.
        num_microbatches: Micro-batches, one number or several.
        num_chunks: Stages per rank, for the schedules that take chunks; None: the usual number of each schedule.
        parameters: Values of parameters, for the schedules that have them.
        recomputes: Whether stages keep only their input: no, yes, or both.
        microbatch_sizes: Samples of a micro-batch, with a profile; None: the smallest measured size.
        link: Values for all links, in place of `cluster`, as ``{"bandwidth_bytes_per_s": [1e9, 1e10]}``.
        where: Condition on settings, as ``"m % p == 0 and p * v <= 32"``; other settings are left out.
        partition: Layers to stages, with a profile or layers: ``balanced`` (None), or ``uniform``.
        input_share: Share of B that I takes, as `simulate` takes it.
        network: Options of the network.
        compression: ``"half"``: messages are sent in half precision.
        convert_bytes_per_s: Compression throughput of a device [bytes/s]; None: compression takes no time.
        limit_bytes: Memory of every device [bytes]; None: the memory in the cluster.
        jitter: Sigma of a log-normal factor on the seconds of every op; with jitter there is no steady state.
        seed: Seed of the jitter of a setting's first run.
        num_runs: Runs of each setting with jitter; a row has the measures of the run of median makespan.
        by: The measure that orders the settings; None: seconds per sample with a profile, else per micro-batch.
        is_steady: Whether to simulate longer runs if one batch does not show its steady-state time.
        num_workers: Processes; None: one per core if that is quicker. A script that asks for several does so below
            ``if __name__ == "__main__":``.
        resume: File of the results so far, from which a stopped sweep continues.

    Raises:
        ArgumentError: There is no setting, all settings are invalid, or an argument is.
        ProfileError: A file is bad.
        ScheduleError: A schedule does not exist.
    """
    setup = Setup(
        costs=load_costs(costs),
        cluster=None if cluster is None else read_cluster_argument(cluster, 1, "a sweep"),
        partition=partition_text(partition),
        input_share=input_share,
        network=network,
        compression=compression,
        convert_bytes_per_s=convert_bytes_per_s,
        limit_bytes=limit_bytes,
        jitter=jitter,
        seed=seed,
    )
    if cluster is not None and link:
        raise ArgumentError("link: got a cluster too, expected one of them; leave one out")
    space = make_sweep_space(
        schedules,
        setup.loaded_costs,
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        num_chunks=num_chunks,
        parameters=parameters,
        recomputes=recomputes,
        microbatch_sizes=microbatch_sizes,
        link=link,
        where=where,
    )
    require_flag("is_steady", is_steady)
    judge = SweepJudge(setup, is_steady, num_runs=require_runs(num_runs, jitter))
    if resume is not None:
        require_kind("resume", resume, str | Path, "the name of a file, or None")
    workers = require_optional("num_workers", num_workers, 1, MAX_PROCESSES)
    workers = workers_for(space.schedules, workers)
    return sweep_settings(space.settings(), judge, by=by, num_workers=workers, resume=resume)


def make_sweep_space(
    schedules: Sequence[NamedSchedule],
    costs: AnyCosts,
    *,
    num_ranks: int | Sequence[int],
    num_microbatches: int | Sequence[int],
    num_chunks: int | Sequence[int] | None = None,
    parameters: Mapping[str, Sequence[ParameterNumber]] | None = None,
    recomputes: Sequence[bool] = (False,),
    microbatch_sizes: int | Sequence[int] | None = None,
    link: Mapping[str, Sequence[float]] | None = None,
    where: str | None = None,
) -> SweepSpace:
    """Return the space of a sweep; the arguments are those of `sweep`.

    Raises:
        ArgumentError: An argument is invalid, or no schedule takes it.
        ScheduleError: A schedule does not exist.
    """
    entries = searched_entries(schedules, "['1f1b', 'zbv']")
    chunks = None if num_chunks is None else _counts("num_chunks", num_chunks)
    require_kind("parameters", parameters, Mapping | None, "names with lists of values; try {'pipelines': [1, 2]}")
    require_kind("link", link, Mapping | None, "names with lists of values; try {'bandwidth_bytes_per_s': [1e9]}")
    require_taken(entries, chunks and ", ".join(map(str, chunks)), parameters or {})
    space = SweepSpace(
        schedules=tuple(entry.searched_name for entry in entries),
        num_ranks=_counts("num_ranks", num_ranks),
        num_microbatches=_counts("num_microbatches", num_microbatches),
        num_chunks=chunks or (),
        parameters={
            name: require_some("parameters", values, "{'pipelines': [1, 2]}")
            for name, values in (parameters or {}).items()
        },
        recomputes=require_flags("recomputes", recomputes),
        microbatch_sizes=_sizes(microbatch_sizes, costs),
        link={name: _link_values(name, values) for name, values in (link or {}).items()},
    )
    if where is None:
        return space
    require_kind("where", where, str, "a condition, or None; try 'm % p == 0'")
    return space.under(SettingCondition.read(where, space.columns))


def _counts(name: str, counts: int | Sequence[int]) -> tuple[int, ...]:
    return require_each_at_least(name, [counts] if isinstance(counts, int) else counts, 1)


def _sizes(sizes: int | Sequence[int] | None, costs: AnyCosts) -> tuple[int | None, ...]:
    if isinstance(costs, Profile):
        return (read_microbatch_size(None, costs),) if sizes is None else _counts(_SIZES, sizes)
    if sizes is not None:
        raise ArgumentError(f"{_SIZES}: got them with other costs than a profile, expected none; leave them out")
    return (None,)


_SIZES = "microbatch_sizes"


def _link_values(name: str, values: object) -> tuple[float, ...]:
    require_choice("link", name, [part.name for part in fields(Link)])
    numbers = require_some("link", values, "{'bandwidth_bytes_per_s': [1e9, 1e10]}")
    are_rates = {*map(type, numbers)} <= {int, float} and all(map((0.0).__lt__, numbers))
    for number in () if are_rates and name == "bandwidth_bytes_per_s" else numbers:
        (require_rate if name == "bandwidth_bytes_per_s" else require_number)(f"link: {name}", number)
    return tuple(map(float, numbers))


def sweep_settings(
    settings: Sequence[SweptSetting],
    judge: SweepJudge,
    *,
    by: str | None = None,
    num_workers: int | None = None,
    runner: Runner | None = None,
    resume: str | Path | None = None,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> SweepResult:
    """Predict `settings` and put them in order.

    Args:
        settings: The settings, each once; settings with the same op lists and micro-batch size stand together.
        judge: Predicts settings with the same op lists.
        by: The measure that orders them; None: as `sweep` does.
        num_workers: Processes; None: one per core if that is quicker.
        runner: Another way to evaluate all settings, in place of processes of this machine.
        resume: File of the results so far.
        progress: Receives the finished share of the settings.

    Raises:
        ArgumentError: The measure does not exist, a limit is given with costs without bytes, or all settings are
            invalid.
    """
    if by is not None:
        require_choice("by", by, sorted({*SweptOutcome.MEASURES} - {"fits", "reason"}))
        if by == "s_per_sample" and settings[0].microbatch_size is None:
            raise ArgumentError("by: got s_per_sample, expected samples of a micro-batch, too; try s_per_microbatch")
    if judge.setup.limit_bytes is not None or by == "peak_memory_bytes":
        _require_judged(settings, judge, "by" if judge.setup.limit_bytes is None else "limit_bytes")
    journal = None
    if resume is not None:
        what = judge.setup, judge.is_steady, judge.num_runs, *own_sources(settings)
        journal = Journal(Path(resume), SweptOutcome, what, "these costs, machines, network and builders")

    def search(settings: Sequence[SweptSetting]) -> Iterator[Sequence[SweptOutcome]]:
        blocks = _blocks(settings)
        workers = num_workers or (num_cores() if sum(map(_work, blocks)) > _FEW else 1)
        run, shares = runner or make_process_runner(workers), _shares(blocks, workers)
        return run(judge, lambda: next(shares, ()))

    with rare_collections():
        outcomes = search_all(settings, search, journal, progress)
    if all(outcome.seconds is None for outcome in outcomes):
        raise refused_settings(len(outcomes), outcomes[0].reason)
    by = by or ("s_per_microbatch" if settings[0].microbatch_size is None else "s_per_sample")
    cluster = judge.setup.cluster
    num_devices = len(cluster.devices) if isinstance(cluster, Cluster) else None
    return SweepResult(ordered_by(outcomes, by), by, measured_columns(settings), num_devices)


def _blocks(settings: Sequence[SweptSetting]) -> list[_Block]:
    """Return settings in blocks of the same op lists and the same micro-batch size, the shortest lists first."""
    alike = groupby(settings, key=lambda setting: replace(setting, link=()))
    rows = [tuple(some) for _, some in alike]
    blocks = [row[start : start + _MOST_TOGETHER] for row in rows for start in range(0, len(row), _MOST_TOGETHER)]
    return sorted(blocks, key=lambda block: block[0].num_cells)


def _shares(blocks: Sequence[_Block], num_workers: int) -> Iterator[Sequence[_Block]]:
    """Yield blocks for one process at a time, fewer of them towards the end, so that all processes end together."""
    first = 0
    while first < len(blocks):
        after = first + max(1, min(_MOST_BLOCKS, (len(blocks) - first) // (4 * num_workers)))
        yield blocks[first:after]
        first = after


def _work(block: _Block) -> int:
    """Return the relative work of a block; compiling its op lists takes as long as a few settings."""
    return block[0].num_cells * (3 + len(block))


def _require_judged(settings: Sequence[SweptSetting], judge: SweepJudge, asked: str) -> None:
    """Refuse a limit for costs without bytes; costs have bytes for all settings or for none."""
    for setting, *_ in _blocks(settings):
        try:
            has_bytes = judge.has_bytes(setting)
        except REFUSED:
            continue
        if not has_bytes:
            raise ArgumentError(f"{asked}: got costs that say no bytes, expected some; give costs with bytes")
        return
