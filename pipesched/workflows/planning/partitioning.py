"""Partitioning: cut a model into stages, and give each a number of devices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import Profile
from pipesched.profiles.io import machine_name_of, with_stages
from pipesched.profiles.partitioning import (
    PartitionedStages,
    arranged_order,
    by_memory,
    by_replicas,
    by_time,
    over_memory,
)
from pipesched.questions import NumDevices, PartitionAim, PartitionSettings, ProfiledSize
from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import build
from pipesched.schedules.common import values_of
from pipesched.simulator import SimulationError
from pipesched.simulator.analysis import readable_bytes, readable_s
from pipesched.simulator.planner import predict_candidate
from pipesched.simulator.search import Setting
from pipesched.workflows import (
    ArgumentError,
    Table,
    asks,
    estimate_notes,
    given_stages,
    gpus_in_all,
    other_device,
    require_settings,
    unknown_bytes,
)
from pipesched.workflows.arguments import (
    ClusterArgument,
    ProfileArgument,
    read_cluster_argument,
    read_microbatch_size,
    read_profile_argument,
)
from pipesched.workflows.simulating import Setup, simulate

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


_MOST_OPS = 4096
"""Most devices times micro-batches of a round for a simulated partition; more would take longer than some seconds."""


@dataclass(frozen=True, kw_only=True)
class PartitionRequest(PartitionSettings):
    """A model to cut, and the objective of the partition.

    Attributes:
        num_devices: Devices, all of which are used.
        microbatch_size: Samples.
    """

    profile: Profile
    cluster: Cluster
    num_devices: int
    microbatch_size: int

    def stages(self) -> PartitionedStages:
        """Return the stages of the model.

        Raises:
            ProfileError: There are more stages than layers, or nothing fits.
        """
        size, cluster, num_devices = self.microbatch_size, self.cluster, self.num_devices
        match self.by:
            case "replicas":
                return by_replicas(self.profile, size, cluster, num_devices, form=self.form, straight=self.straight)
            case "time":
                return by_time(self.profile, size, cluster, num_devices, self.num_chunks)
            case "memory":
                return by_memory(self.profile, size, cluster, num_devices)
            case _:
                assert_never(self.by)

    def changes(self) -> Iterator[tuple[str, PartitionRequest]]:
        """Yield this request with one argument changed, and the change, as candidates if this request does not fit."""
        for count in range(self.num_chunks - 1, 0, -1):
            yield f"`num_chunks={count}`", replace(self, num_chunks=count)
        if self.num_chunks == 1:
            aims: tuple[PartitionAim, ...] = ("time", "memory", "replicas")
            for by in aims:
                if by != self.by:
                    yield f"`by={by}`", replace(self, by=by)
        for size in reversed(self.profile.microbatch_sizes):
            if size < self.microbatch_size:
                yield f"`microbatch_size={size}`", replace(self, microbatch_size=size)


@dataclass(frozen=True, slots=True, repr=False)
class PartitionedModel:
    """A model, cut into stages.

    Attributes:
        request: The request.
        partitioned: The stages, with their costs.
        simulated_s: Steady-state time per micro-batch under 1F1B-RR, of a partition by replicas [s]; None for others,
            and if a simulation would take long.
        data_parallel_s: Time per micro-batch of plain data parallelism on the same devices, if `simulated_s` is known:
            each device has all layers, and each step sums all gradients [s].
    """

    request: PartitionRequest
    partitioned: PartitionedStages
    simulated_s: float | None = None
    data_parallel_s: float | None = None

    @property
    def notes(self) -> list[str]:
        """Cautions about profile and machines, a line each."""
        request = self.request
        return [
            *gpus_in_all(request.profile, request.num_devices),
            *estimate_notes(request.profile),
            *other_device(request.profile, machine_name_of(request.cluster)),
            *unknown_bytes(request.profile),
            *given_stages(request.profile),
            *self._free_links(),
        ]

    def _free_links(self) -> list[str]:
        """Return a note if stages have several devices, and all links have unlimited bandwidth."""
        profile, cluster, partitioned = self.request.profile, self.request.cluster, self.partitioned
        links = [cluster.intra, cluster.inter or cluster.intra, *(link for _, _, link in cluster.links)]
        is_limited = any(math.isfinite(link.bandwidth_bytes_per_s) for link in links)
        if is_limited or unknown_bytes(profile) or all(stage.replicas == 1 for stage in partitioned.stages):
            return []
        other = ", or try `by=time`" if self.request.num_devices <= len(profile.layers) else ""
        return [f"unlimited bandwidth favours several devices per stage: give a `cluster` with bandwidths{other}"]

    @property
    def layers(self) -> str:
        """The layers of each stage, as `simulate` takes them: ``3,3,4``."""
        return self.partitioned.partition

    @property
    def is_told_by_layers(self) -> bool:
        """Whether `layers` alone determines the layers of each stage; a graph that is cut by replicas may need more."""
        profile, stages = self.request.profile, self.partitioned.stages
        usual = arranged_order(profile, len(stages))
        return all(set(usual[stage.first : stage.last]) == {*self.partitioned.layers_of(stage)} for stage in stages)

    def staged_graph(self, file: str | Path) -> str:
        """Return the graph of PipeDream's profiler in a file, with the stage of each node, as `simulate` takes it.

        Args:
            file: File that the profile is from.

        Raises:
            ProfileError: The file is no graph, or of other layers.
        """
        stages = [0] * len(self.partitioned.order)
        for number, stage in enumerate(self.partitioned.stages):
            for layer in self.partitioned.layers_of(stage):
                stages[layer] = number
        return with_stages(file, stages)

    @property
    def over(self) -> tuple[int, float, float] | None:
        """The first stage that does not fit, its bytes and the available bytes, or None if all stages fit."""
        return over_memory(self.partitioned, self.request.cluster)

    @property
    def fits(self) -> bool:
        """Whether every stage fits into its devices."""
        return self.over is None

    def remedy(self) -> str:
        """Return the first change of one argument with which all stages fit, or the number of devices that suffices."""
        for change, changed in self.request.changes():
            try:
                if over_memory(changed.stages(), changed.cluster) is None:
                    return change
            except ProfileError:  # nothing fits
                continue
        return f"devices of {max(stage.memory_bytes for stage in self.partitioned.stages)} bytes"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched partition --json`` prints it."""
        return {
            "model": self.request.profile.model,
            "by": self.request.by,
            "num_devices": self.request.num_devices,
            "microbatch_size": self.request.microbatch_size,
            "partition": self.partitioned.partition,
            "replicas": self.partitioned.replicas,
            "order": [*self.partitioned.order],
            "slowest_s": self.partitioned.slowest_s,
            "simulated_s": self.simulated_s,
            "data_parallel_s": self.data_parallel_s,
            "fits": self.fits,
            "stages": [{**asdict(stage), "replicas": stage.replicas} for stage in self.partitioned.stages],
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a row per stage."""
        import pandas as pd

        return pd.DataFrame(self.to_dict()["stages"]).rename_axis("stage")

    def plot(self) -> Figure:
        """Draw the times of a micro-batch in each stage, and the memory of one of its devices."""
        from pipesched.simulator.views import cost_figure

        stages = self.partitioned.stages
        return cost_figure(
            f"{self._title}, per micro-batch",
            "stage",
            list(map(str, range(len(stages)))),
            {
                "forward and backward": [stage.compute_s for stage in stages],
                "all-reduce of the replicas": [stage.reduce_s for stage in stages],
                "input and its gradient": [stage.transfer_s for stage in stages],
            },
            {"held": [stage.memory_bytes for stage in stages]},
        )

    def table(self) -> Table:
        """Return a row per stage, formatted for people."""
        rows = [
            {
                "stage": str(index),
                "layers": number_ranges(self.partitioned.layers_of(stage)),
                "devices": number_ranges(stage.devices),
                "per micro-batch": readable_s(stage.compute_s),
                "reduce": readable_s(stage.reduce_s),
                "transfer": readable_s(stage.transfer_s),
                "memory": readable_bytes(stage.memory_bytes or None),
                "forward": readable_s(stage.forward_s),
                "backward": readable_s(stage.backward_s),
                "weights": readable_bytes(stage.weight_bytes),
                "output": readable_bytes(stage.output_bytes),
            }
            for index, stage in enumerate(self.partitioned.stages)
        ]
        slowest_s, name = self.partitioned.slowest_s, "slowest" if self.request.by == "replicas" else "busiest device"
        rate = f", at most {1 / slowest_s:.4g} micro-batches/s" if slowest_s else ""
        lines = [f"{name}: {readable_s(slowest_s)}{rate}", *self._simulated()]
        return Table(self._title, tuple(rows), "\n".join(lines))

    def _simulated(self) -> list[str]:
        """Return the line on simulated times, if they are known."""
        own_s, other_s = self.simulated_s, self.data_parallel_s
        if own_s is None:
            return []
        line = f"simulated under 1f1b_rr: {readable_s(own_s)} per micro-batch"
        if other_s is None:
            return [line]
        verdict = ", which is faster" if other_s < own_s else ""
        return [f"{line}; plain data parallelism: {readable_s(other_s)}{verdict}"]

    @property
    def _title(self) -> str:
        return f"{self.request.profile.model} on {self.request.num_devices} devices"

    def __repr__(self) -> str:
        model = self.request.profile.model
        slowest_s = self.partitioned.slowest_s
        return f"PartitionedModel({model!r}, layers={self.layers!r}, slowest_s={slowest_s:.6g}, fits={self.fits})"

    def _repr_html_(self) -> str:
        return self.table().to_html()


@dataclass(frozen=True)
class PartitionQuestion(PartitionSettings):
    """The question of `partition`; its fields are the arguments of that function."""

    profile: ProfileArgument
    num_devices: NumDevices
    cluster: ClusterArgument = None
    microbatch_size: ProfiledSize = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        require_settings(self)
        if self.by != "replicas" and (self.form != "paper" or self.straight):
            raise ArgumentError(
                f"`by={self.by}`: got `form` or `straight` too, expected these only with `by=replicas`; leave them out"
            )
        if self.by != "time" and self.num_chunks != 1:
            raise ArgumentError(
                f"num_chunks: got {self.num_chunks} with `by={self.by}`, expected chunks only with `by=time`; leave it "
                "out"
            )


@asks(PartitionQuestion)
def partition(question: PartitionQuestion) -> PartitionedModel:
    """Cut a model into stages.

    Args:
        profile: Profile of the model: a Profile, or a file of one (.json) or of a graph of PipeDream's profiler (.txt).
        cluster: Machines, or a file of them; None: equal devices whose links take no time.

    Raises:
        ArgumentError: A word is unknown, a number is below 1, arguments exclude one another, or devices are too few.
        ProfileError: A file is bad, there are more stages than layers, or nothing fits.
    """
    machines = read_cluster_argument(question.cluster, question.num_devices, "num_devices")
    measured = read_profile_argument(question.profile)
    request = PartitionRequest(
        profile=measured,
        cluster=machines,
        num_devices=question.num_devices,
        microbatch_size=read_microbatch_size(question.microbatch_size, measured),
        **values_of(question, PartitionSettings),
    )
    is_replicated = question.by == "replicas"
    partitioned = request.stages()
    times = _simulated_times(measured, partitioned, request.microbatch_size, machines) if is_replicated else ()
    return PartitionedModel(request, partitioned, *times)


def number_ranges(numbers: Sequence[int]) -> str:
    """Return ``0-2, 4`` for 0, 1, 2, 4."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _simulated_times(
    profile: Profile, partitioned: PartitionedStages, size: int, cluster: Cluster
) -> tuple[float | None, float | None]:
    """Return the times per micro-batch of stages with replicas under 1F1B-RR and of plain data parallelism [s].

    Ranks take the devices in order. The time of 1F1B-RR is the steady-state time. A step of data parallelism is one
    micro-batch on each device, which has all layers, and the sum of all gradients over all devices. A time is None if
    it cannot be predicted, or not within seconds.

    Args:
        profile: Profile of the model.
        partitioned: Stages and their replicas.
        size: Samples of a micro-batch.
        cluster: Machines.
    """
    replicas = tuple(stage.replicas for stage in partitioned.stages)
    num_devices, round_size = sum(replicas), math.lcm(*replicas)
    if num_devices * max(num_devices, round_size) > _MOST_OPS:
        return None, None
    ordered = profile if profile.graph is None else profile.in_order(partitioned.order)
    bounds = tuple((stage.first, stage.last) for stage in partitioned.stages)
    layers = (len(profile.layers),)
    plain = Setting("gpipe", 1, 1, microbatch_size=size, width=num_devices, partition=layers)
    own_s = plain_s = None
    with suppress(ProfileError, ScheduleError, SimulationError):
        num_microbatches = round_size * math.ceil(2 * num_devices / round_size)
        lists = build("1f1b_rr", num_devices, num_microbatches, replicas=replicas)
        own_s = simulate(lists, Setup(ordered.costs_of_layers(bounds, size), cluster)).steady_s_per_microbatch
        plain_s = predict_candidate(plain, ordered.costs_of_layers(plain.bounds, size), cluster).seconds / num_devices
    return own_s, plain_s
