"""A request to the planner: model, machines, batch and options; it yields every candidate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from pipesched.profiles import MessagePrecision, ProfileError
from pipesched.profiles.clusters import Cluster, Device
from pipesched.profiles.costs import Profile
from pipesched.profiles.io import Plan
from pipesched.profiles.partitioning import by_replicas, uniform_partition
from pipesched.schedules.builders import find
from pipesched.schedules.transforms import Placement, RecomputeWhen
from pipesched.simulator import USUAL_NETWORK, NetworkOptions
from pipesched.simulator.planner.cuts import Cuts
from pipesched.simulator.planner.stage_layout import StageLayout, layout_of, refusal_of
from pipesched.simulator.search import Outcome, Setting, covered_sizes, divisors, nearest_batch, plan_of

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb_h1")
"""The schedules that are tried unless others are named."""
ASYNCHRONOUS = ("pipedream_2bw", "wpipe", "1f1b_rr")
"""The schedules that are tried too if staleness is allowed."""


@dataclass(frozen=True, slots=True)
class Request:
    """A model, machines, a batch, and the options to try.

    Attributes:
        batch_size: Samples that an optimizer step takes.
        schedules: Names of schedules in the catalogue, or of builders of a user's own (`OwnName`).
        depths: Ranks of a copy, or None for any.
        chunks: Stages per rank, for schedules that take chunks.
        recomputes: Values of `Setting.recompute_when`.
        compressions: Compressions of messages.
        fewer: Whether devices may be left idle.
        convert_bytes_per_s: Compression throughput of a device, in uncompressed bytes/s, or None for free compression.
        network: How messages go.
        refusal: Returns why a candidate is not wanted, or None; another process may call it.
        is_uniform: Whether stages share the layers evenly, as `uniform_partition` deals them out.
    """

    profile: Profile
    cluster: Cluster
    batch_size: int
    schedules: tuple[str, ...] = SCHEDULES
    depths: tuple[int, ...] | None = None
    chunks: tuple[int, ...] = (2,)
    recomputes: tuple[RecomputeWhen | None, ...] = (None, "early")
    compressions: tuple[MessagePrecision | None, ...] = (None,)
    fewer: bool = False
    convert_bytes_per_s: float | None = None
    network: NetworkOptions = USUAL_NETWORK
    refusal: Callable[[Setting], str | None] | None = None
    is_uniform: bool = False

    def cuts(self) -> Cuts:
        """Return the cache of the costs of its candidates."""
        return Cuts(self.profile, self.convert_bytes_per_s)

    def plan_of(self, outcome: Outcome) -> Plan:
        """Return the plan of an outcome that fits."""
        return plan_of(outcome, outcome.samples, self.profile, self.cluster)


def candidates(request: Request, cuts: Cuts) -> Iterator[Setting]:
    """Yield every candidate once.

    The layouts are all depths x widths whose product is the number of devices. The copies share a batch evenly. Each
    share is cut into micro-batches of every size that the profile covers.

    Candidates that repeat the results of another candidate are left out. One rank gets 1F1B alone. A single rank or a
    single copy gets one placement. One node gets one placement, with copies side by side, as in trainers. Counts that a
    schedule cannot have are left out too. The rules of a user's own schedule are unknown: a candidate with invalid
    counts is yielded without a partition, so that the reason is reported.
    """
    for candidate in _possible(request, cuts):
        if request.refusal is None or not candidate.partition or request.refusal(candidate) is None:
            yield candidate


def _possible(request: Request, cuts: Cuts) -> Iterator[Setting]:
    """Yield every candidate, wanted or not."""
    for num_devices in _device_counts(request.cluster, request.fewer):
        for depth in [d for d in divisors(num_devices) if request.depths is None or d in request.depths]:
            for name in request.schedules if depth > 1 else ("1f1b",):
                yield from _of_schedule(request, cuts, name, depth, num_devices // depth)


def require_plannable(request: Request) -> None:
    """Refuse, in one line, a request without any possible candidate.

    Raises:
        ProfileError: All depths have more stages than layers or do not divide the devices, or the batch cannot be cut
            into micro-batches that the profile covers.
    """
    counts, num_layers = _device_counts(request.cluster, request.fewer), len(request.profile.layers)
    depths = sorted({depth for count in counts for depth in divisors(count)})
    if request.depths is not None:
        possible = [depth for depth in depths if depth <= num_layers]
        if min(request.depths) > num_layers:
            raise ProfileError(
                f"plan: got a depth of {min(request.depths)} stages, expected at most the {num_layers} layers of "
                f"{request.profile.model}; try {possible[-1]}"
            )
        if not set(request.depths) & set(possible):
            raise ProfileError(
                f"plan: got depths {', '.join(map(str, request.depths[:8]))} for {counts[-1]} devices, expected depths "
                f"that divide the devices; try {', '.join(map(str, possible[:8]))}"
            )
    widths = {count // depth for count in counts for depth in divisors(count) if depth in (request.depths or depths)}
    sizes = request.profile.microbatch_sizes
    shares = [request.batch_size // width for width in widths if request.batch_size % width == 0]
    if not any(share % size == 0 for share in shares for size in covered_sizes(request.profile, share)):
        near = nearest_batch(request.profile, request.batch_size, min(widths))
        covered = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        raise ProfileError(
            f"plan: got a batch of {request.batch_size} samples, expected a batch that {counts[-1]} devices can share "
            f"in micro-batches of {covered} samples, the sizes of the profile; try {near}"
        )


def nothing_possible(request: Request) -> ProfileError:
    """Return why no candidate exists: more stages than layers, copies that cannot share the batch, or the rules."""
    if request.refusal is not None:
        refused = next(filter(None, map(request.refusal, _possible(request, request.cuts()))), None)
        if refused is not None:
            return ProfileError(f"plan: got no candidate that can be exported, expected one; {refused}")
    count, num_layers = len(request.cluster.devices), len(request.profile.layers)
    fewest = min(count // depth for depth in divisors(count) if depth <= num_layers)
    tries = [
        f"a batch of {nearest_batch(request.profile, request.batch_size, fewest)}",
        *([] if request.fewer else ["`fewer=True`"]),
        "other schedules",
    ]
    return ProfileError(
        f"plan: got {request.batch_size} samples for {num_layers} layers on {count} devices under "
        f"{', '.join(request.schedules)}, expected a layout of these schedules with at most one stage per layer, whose "
        f"copies share the batch evenly; try {', '.join(tries[:-1])} or {tries[-1]}"
    )


def _of_schedule(request: Request, cuts: Cuts, name: str, depth: int, width: int) -> Iterator[Setting]:
    entry = find(name)
    name = entry.searched_name
    if entry.takes("replicas") and not entry.is_own:
        yield from _replicated(request, name, depth * width) if width == 1 else ()
        return
    if depth > len(request.profile.layers):  # before lists are built to learn it: of many devices they are long
        return
    for num_chunks in request.chunks if entry.traits.takes_chunks and depth > 1 else (None,):
        for (count, size), placement, when in product(
            _microbatches(request, name, depth, width), _placements(request.cluster, depth, width), request.recomputes
        ):
            first = Setting(name, depth, count, num_chunks, (), when, size, width=width, placement=placement)
            if refusal_of(first) is not None:
                yield from (first,) if entry.is_own else ()
                continue
            if (form := layout_of(first)).num_stages > len(request.profile.layers):
                continue
            compressions = request.compressions if depth > 1 else (None,)
            for partition, compression in product(_partitions(request, cuts, form, first), compressions):
                yield replace(first, partition=partition, compression=compression)


def _replicated(request: Request, name: str, num_devices: int) -> Iterator[Setting]:
    """Yield PipeDream's plan for every micro-batch size; a stage steps once every few micro-batches."""
    for size in covered_sizes(request.profile, request.batch_size):
        try:
            partitioned = by_replicas(request.profile, size, request.cluster, num_devices)
        except ProfileError:
            continue
        replicas = tuple(stage.replicas for stage in partitioned.stages)
        partition = tuple(stage.last - stage.first for stage in partitioned.stages)
        period = math.lcm(*replicas)
        if period * size <= request.batch_size:
            yield Setting(
                name, num_devices, period, None, (("replicas", replicas),), microbatch_size=size, partition=partition
            )


def _device_counts(cluster: Cluster, fewer: bool) -> tuple[int, ...]:
    """Return the allowed numbers of devices: all devices; with `fewer` also any part of one node, and whole nodes."""
    count = len(cluster.devices)
    if not fewer:
        return (count,)
    nodes = [device.node for device in cluster.devices]
    whole = [n for n in range(1, count) if nodes[n] != nodes[n - 1]]
    return tuple(sorted({*range(1, nodes.count(nodes[0]) + 1), *whole, count}))


def _placements(cluster: Cluster, depth: int, width: int) -> tuple[Placement, ...]:
    is_one_node = len({device.node for device in cluster.devices[: depth * width]}) == 1 and not cluster.links
    if 1 in (depth, width):
        return ("pipeline",)
    return ("data",) if is_one_node else ("pipeline", "data")


def _microbatches(request: Request, name: str, depth: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield (M of one copy, samples in each)."""
    share, left = divmod(request.batch_size, width)
    entry = find(name)
    if entry.traits.is_asynchronous and not entry.takes("accumulate"):
        yield from ((1, size) for size in covered_sizes(request.profile, share))  # steps after each micro-batch
    elif not left:
        for size in covered_sizes(request.profile, share):
            if share % size == 0 and (share // size >= depth or not entry.traits.is_asynchronous):
                yield share // size, size


def _partitions(request: Request, cuts: Cuts, form: StageLayout, first: Setting) -> Iterator[tuple[int, ...]]:
    """Yield cuts, as the layers of each stage: the balanced cut, and one with less memory if that may not fit."""
    if request.is_uniform:
        yield tuple(last - start for start, last in uniform_partition(len(request.profile.layers), form.num_stages))
        return
    size, devices = first.size, [_weakest(request.cluster, first, ranks) for ranks in form.homes]
    speeds = tuple(device.speed for device in devices)
    balanced = cuts.balanced(size, speeds, form.stages)
    yield balanced
    limits = tuple(device.memory_bytes for device in devices)
    if all(limit is None for limit in limits):
        return
    if form.num_stages == first.num_ranks and form.is_straight:
        counts = tuple(
            1 if first.recomputes else form.in_flight(rank, first.num_microbatches) for rank in range(first.num_ranks)
        )
        within = None if cuts.fits(balanced, size, limits, counts) else cuts.within(size, speeds, limits, counts)
    else:
        within = cuts.smallest(size, form.stages)
    if within not in (None, balanced):
        yield within


def _weakest(cluster: Cluster, candidate: Setting, ranks: tuple[int, ...]) -> Device:
    """Return the least of all devices that hold a stage: its speed, its memory."""
    held = [cluster.devices[candidate.device(rank, copy)] for rank in ranks for copy in range(candidate.width)]
    memories = [device.memory_bytes for device in held if device.memory_bytes is not None]
    return Device(min(device.speed for device in held), min(memories, default=None))
