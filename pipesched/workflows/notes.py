"""Notes on numbers that need caution: one function per rule; a rule without a doubt gives no note."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from statistics import fmean
from typing import Any

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import CostSource, Profile
from pipesched.profiles.io import load_estimate_errors
from pipesched.profiles.partitioning import MAX_PREFIXES, has_too_many_prefixes
from pipesched.profiles.processes import num_cores
from pipesched.schedules import Schedule, Timeline, Yardstick
from pipesched.schedules.common import shown
from pipesched.schedules.ops import Compute
from pipesched.simulator import NetworkOptions, is_usual
from pipesched.simulator.analysis import readable_bytes, readable_s

_STEADY = 0.05
"""Share by which the speed of a machine may change before a note."""
NOT_ONE_SPEED = "their times are not directly comparable"
"""Consequence of another speed without a prediction."""


def merged_notes(notes: Iterable[tuple[str, str]]) -> list[str]:
    """Return each note once; merge notes that differ only in the name of their schedule at the beginning.

    Args:
        notes: Pairs of the name of a schedule and a note on it, which may start with the name and a colon.
    """
    names: dict[str, list[str]] = {}
    for name, note in notes:
        alike = names.setdefault(note.removeprefix(f"{name}: "), [])
        if note.startswith(f"{name}: ") and name not in alike:
            alike.append(name)
    return [f"{', '.join(alike)}: {note}" if alike else note for note, alike in names.items()]


def crowded_cores(num_ranks: int, threads: int = 1) -> list[str]:
    """Return a note if ranks that compute on CPUs have less than a core for each of their threads."""
    busy, cores = num_ranks * threads, num_cores()
    if busy <= cores:
        return []
    what = f"{num_ranks} ranks" + (f" of {threads} threads" if threads > 1 else "")
    return [f"{what} share {_cores(cores)} and take turns: times differ from a machine with {_cores(busy)}"]


def busy_machine(others: float | None, num_busy: int) -> list[str]:
    """Return a note if other programs take cores that a measurement needs.

    Args:
        others: Cores that other programs kept busy just before; None if unknown.
        num_busy: Cores that the measurement keeps busy.
    """
    cores = num_cores()
    if others is None or others < 0.25 or others + min(num_busy, cores) <= cores + _STEADY:
        return []
    return [
        f"other programs kept {others:.1f} of {_cores(cores)} busy just before the measurement, which makes times "
        "longer: try an idle machine"
    ]


def timeline_notes(timeline: Timeline) -> list[str]:
    """Return the notes on a Timeline alone: on short ops, and on the launching of a run."""
    return [*([] if timeline.is_launch_bound else _short_ops(timeline)), *_launching(timeline)]


def _short_ops(timeline: Timeline) -> list[str]:
    """Return a note if the ops of a stage are shorter than the overhead of their rank per op."""
    if not timeline.hand_overs:
        return []
    seconds: defaultdict[int, list[float]] = defaultdict(list)
    for span in timeline.spans:
        if isinstance(span.op, Compute):
            seconds[span.op.stage].append(span.end_s - span.start_s)
    if not seconds:
        return []
    num_ops = sum(map(len, seconds.values()))
    beside_s = sum(piece.end_s - piece.start_s for piece in timeline.hand_overs) / num_ops
    means = {stage: fmean(values) for stage, values in seconds.items()}
    stage = min(means, key=means.__getitem__)
    if means[stage] >= beside_s:
        return []
    return [
        f"an op of stage {stage} takes {readable_s(means[stage])}, less than the {readable_s(beside_s)} of overhead "
        "per op for messages and for starting the next op: try larger micro-batches"
    ]


def _launching(timeline: Timeline) -> list[str]:
    """Return a note on the share of a run in which one thread launched the ops of all ranks."""
    if timeline.launch_s is None:
        return []
    if timeline.is_on_cpu:
        return ["all ranks took turns on one thread of a CPU: none of their ops overlap"]
    return [launch_note(timeline.launch_s, timeline.makespan_s, "`transport=processes`" * timeline.is_launch_bound)]


def launch_note(launch_s: float, run_s: float, rather: str) -> str:
    """Return a note on the time in which one thread launched the ops of all ranks on GPUs.

    Args:
        launch_s: This time [s].
        run_s: Time of the run [s].
        rather: Setting to try instead, as text, if launching bounds the run; else empty.
    """
    text = f"one thread launched the ops of all ranks in {readable_s(launch_s)} of {readable_s(run_s)}"
    if not rather:
        return f"{text}, including waits for full launch queues"
    return f"{text}, which bounds the run: try larger micro-batches, or {rather}"


def other_speed(
    profile: Yardstick | None,
    run: Yardstick | None,
    so: str | None = None,
    names: tuple[str, str] = ("the profile", "the run"),
) -> list[str]:
    """Return a note if the machine was faster or slower in a run than during its profile.

    Args:
        profile: Time of a fixed kernel during the profile; None if unknown.
        run: Time of the kernel during the run; None if unknown.
        so: The consequence; None: the effect on the error of a prediction.
        names: Names of the two measurements.
    """
    if profile is None or run is None or profile.device != run.device:
        return []
    change = run.kernel_s / profile.kernel_s - 1
    if abs(change) <= _STEADY:
        return []
    if so is None:
        length = "longer" if change > 0 else "shorter"
        so = f"at the speed of the run, the prediction would be {length}; `verify --rounds 5` cancels such a drift"
    same_load = run.num_busy == profile.num_busy
    busy = "" if same_load else f", with {_cores(run.num_busy)} busy instead of {profile.num_busy}"
    return [
        f"the machine was {abs(change):.0%} {'slower' if change > 0 else 'faster'} in {names[1]} than in "
        f"{names[0]}{busy}, by the time of a fixed kernel: {so}"
    ]


def other_device(costs: CostSource, machine: str | None) -> list[str]:
    """Return a note if seconds from a CPU are used for the GPUs of a machine known by name."""
    if machine is None or not costs.measured_cpu:
        return []
    return [
        f"the seconds were measured on a CPU ({costs.measured_cpu}), not on the GPUs of {machine}: relative times may "
        "hold, but seconds do not; try a profile estimated for the GPU"
    ]


def gpus_in_all(costs: CostSource, num_devices: int) -> list[str]:
    """Return a note if each device is several GPUs."""
    size = costs.gpus_per_device
    if size == 1:
        return []
    return [f"a device is {size} GPUs that share its layers: {num_devices} devices are {num_devices * size} GPUs"]


def estimate_notes(costs: CostSource) -> list[str]:
    """Return the notes of `notes_of_estimate` on costs, or nothing for costs that are no estimate."""
    return [] if costs.sample_work is None else notes_of_estimate(costs.gpu_family, costs.fit_factor)


def notes_of_estimate(gpu_family: str | None, fit_factor: float) -> list[str]:
    """Return the notes on the factor of an estimate, and on the errors of estimates beside published runs.

    Args:
        gpu_family: The family of the GPU, as ``A100``, or None.
        fit_factor: Seconds of every layer over their estimate.
    """
    fitted = (
        f"fitted: layers take {fit_factor:.5g} times their estimated seconds; published runs were compared without "
        "this factor"
    )
    return [*([] if fit_factor == 1 else [fitted]), _errors_note(gpu_family)]


def _errors_note(gpu_family: str | None) -> str:
    errors = load_estimate_errors(gpu_family)
    if errors is None:
        return "estimated: no published run of this GPU was compared"
    ranges = {"time": errors.time, "peak memory": errors.memory}
    (first, known), *others = ((what, known) for what, known in ranges.items() if known is not None)
    parts = [
        f"{first} within {known.median:.1%} (median), {known.ninth:.1%} (90th percentile) of {known.count} published "
        f"runs on {', '.join(errors.gpus)}",
        *(f"{what} {known.median:.1%}, {known.ninth:.1%} of {known.count}" for what, known in others),
    ]
    return f"estimated: {'; '.join(parts)}"


def estimate_data(gpu_family: str | None) -> dict[str, Any] | None:
    """Return the errors of an estimate as plain data, or None for a family without a published run, or no family."""
    errors = load_estimate_errors(gpu_family)
    return None if errors is None else asdict(errors) | {"gpus": list(errors.gpus)}


def given_stages(costs: CostSource, num_stages: int | None = None) -> list[str]:
    """Return notes if a profile's graph is cut along one chain, or if its file gives another number of stages.

    Args:
        costs: Costs of any kind; only a profile has a graph.
        num_stages: Default number of stages of its layers; None for several schedules.
    """
    if costs.graph is None:
        return []
    notes, counts = [], costs.graph.given_counts
    if has_too_many_prefixes(costs):
        notes.append(
            f"the graph has too many antichains (limit: {MAX_PREFIXES}), so the graph is cut along one chain, branch "
            "by branch"
        )
    if counts and len(counts) != num_stages:
        given = f"the graph gives {len(counts)} stages of {','.join(map(str, counts))} layers (stage_id)"
        notes.append(
            f"{given}: schedules of {len(counts)} stages use these stages, plans and partitions cut the layers again"
            if num_stages is None
            else (
                f"{given}, but the schedule has {num_stages} stages: the layers are cut again; set `partition` for "
                "another cut"
            )
        )
    return notes


def unknown_bytes(profile: Profile) -> list[str]:
    """Return a note if a profile, as of a table of seconds, lacks the bytes of a part that every model has."""
    measured = [measurement for layer in profile.layers for measurement in layer.measurements]
    known = {
        "messages": len(profile.layers) == 1 or any(layer.output_bytes for layer in measured),
        "weights": any(layer.weight_bytes for layer in profile.layers),
        "activations": any(layer.saved_bytes or layer.output_bytes for layer in measured),
    }
    missing = [what for what, is_known in known.items() if not is_known]
    if not missing:
        return []
    return [f"the profile has no bytes of {', '.join(missing)}: sending, summing and storing them counts as 0 here"]


def unknown_to_equations(network: NetworkOptions, evaluator: str) -> list[str]:
    """Return a note if AvgPipe's equations predict a network whose hand-over they do not model."""
    if evaluator != "avgpipe" or is_usual(network):
        return []
    return ["AvgPipe's equations ignore the network options that you have set: try the evaluator simulate"]


def serial_overlaps(schedule: Schedule, overlap: float) -> list[str]:
    """Return a note if a schedule runs ops side by side and the costs hide nothing of the shorter one.

    Args:
        schedule: The schedule.
        overlap: Share of the shorter op that hides behind the longer, from the costs.
    """
    if overlap or not schedule.columns.num_overlaps:
        return []
    return [
        f"{schedule.name}: forwards overlap backwards, but the costs have no overlap: both ops take their full "
        "seconds; give the hidden share of the shorter op, 0 to 1, as overlap in --uniform or in a table of costs"
    ]


def unitless_times(costs: CostSource) -> list[str]:
    """Return a note if a table of layers or stages has times without a unit, which are taken as seconds."""
    if not costs.unitless:
        return []
    first, names = costs.unitless[0], ", ".join(map(shown, costs.unitless))
    return [
        f"{costs.origin}: times without a unit are read as seconds: {names}; for other units write {first}_ms or "
        f"{first}_us"
    ]


def unjudged_limit(cluster: Cluster, devices: Iterable[int], has_bytes: bool) -> list[str]:
    """Return a note if a memory limit of devices has no bytes to compare, or some devices have no limit."""
    limits = {device: cluster.devices[device].memory_bytes for device in sorted(set(devices))}
    known = sorted({limit for limit in limits.values() if limit is not None})
    if not known:
        return []
    said = " to ".join(dict.fromkeys(map(readable_bytes, (known[0], known[-1]))))
    if not has_bytes:
        return [f"memory limit {said}: not checked, because the costs have no bytes"]
    without = ", ".join(str(device) for device, limit in limits.items() if limit is None)
    return [f"memory limit {said}: not checked on devices without a known limit ({without})"] if without else []


def _cores(count: int) -> str:
    return f"{count} core{'s' if count > 1 else ''}"
