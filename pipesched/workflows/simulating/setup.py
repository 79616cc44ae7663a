"""The setup of a prediction: everything but the schedule; and the cut of layers under it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pipesched.profiles import MessagePrecision, ProfileError
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import (
    Compression,
    CostSource,
    LayerCosts,
    Profile,
    StageCosts,
    profile_of_costs,
    with_input_share,
)
from pipesched.profiles.io import Plan, costs_model
from pipesched.profiles.partitioning import Layers, cut_layers, is_searched, parse_partition, uniform_partition
from pipesched.questions import CostSettings, PredictionSettings
from pipesched.schedules import Schedule
from pipesched.schedules.common import Description, declared
from pipesched.schedules.transforms import TrainingRun
from pipesched.simulator import NetworkOptions
from pipesched.simulator.search import CutTask, Kept, costs_of_cuts, fastest_cut
from pipesched.workflows import ArgumentError, documented, plain_signature, require_kind, require_settings
from pipesched.workflows.arguments import (
    ClusterArgument,
    CostsArgument,
    ScheduleSource,
    is_same_model,
    load_costs,
    read_cluster_argument,
    read_profile_argument,
    require_as_planned,
    require_network,
)

if TYPE_CHECKING:
    from pipesched.profiles.models import Model


@dataclass(frozen=True)
class Setup(PredictionSettings, CostSettings):
    """The setup of a prediction: everything but the schedule.

    Attributes:
        costs: StageCosts, LayerCosts, a DeviceCost, a Profile, RunCosts, or a file of a profile, of costs from runs, or
            a table of stages or layers. A file is read at once.
        cluster: Machines, or a file of them; None: the machines of a plan, or equal devices whose links take no time.
        network: Options of the network.

    Raises:
        ArgumentError: A value is invalid.
        ProfileError: A file is bad.
    """

    costs: CostsArgument
    cluster: ClusterArgument = None
    network: NetworkOptions = NetworkOptions()  # noqa: RUF009 -- frozen
    limit_bytes: Annotated[
        int | None,
        Description(
            "Memory of every device, in place of the memory in the description of the machines.",
            least=1,
            most=2**63 - 1,
        ),
    ] = None

    def __post_init__(self) -> None:
        """Load the costs, and refuse invalid values."""
        require_network(self.network)
        object.__setattr__(self, "costs", load_costs(self.costs))
        require_settings(self)

    @property
    def loaded_costs(self) -> CostSource:
        """The costs, read from their file if a file was given."""
        assert not isinstance(self.costs, str | Path), "they were read"
        return self.costs

    @property
    def profile(self) -> Profile:
        """The costs as a profile, with backwards split as asked; a table of layers is one of its `microbatch_size`.

        Raises:
            ArgumentError, ProfileError: The costs are no profile.
        """
        costs = self.loaded_costs
        if isinstance(costs, LayerCosts) and self.microbatch_size is not None:
            costs = profile_of_costs(costs, costs_model(costs.origin), self.microbatch_size)
        if costs.way_to_profile:
            raise ProfileError(
                f"costs {costs.origin}: got {type(costs).__name__}, expected a profile, which has sizes of "
                f"micro-batches; {costs.way_to_profile}"
            )
        require_kind("profile", costs, Profile, "a Profile, or a file of one")
        assert isinstance(costs, Profile), "its kind"
        return read_profile_argument(costs, self.input_share)

    def costs_of(self, source: ScheduleSource) -> StageCosts:
        """Return the costs of the stages of a schedule, with messages compressed as asked, or as in its plan.

        Raises:
            ArgumentError: The setup contradicts the plan, or has a conversion speed but no compression.
            ProfileError: The costs do not fit the schedule.
        """
        cut = self.cut(source)
        if cut.compression is None and cut.convert_bytes_per_s is not None:
            raise ArgumentError(
                "convert_bytes_per_s: got a rate without `compression`, expected both; add `compression=half`"
            )
        costs = _stage_costs(cut, source.schedule)
        costs = costs if cut.compression is None else replace(costs, compression=cut.message_compression)
        return costs if self.tied_bytes is None else replace(costs, tied_bytes=self.tied_bytes)

    @property
    def message_compression(self) -> Compression | None:
        """The compression of messages, or None without compression."""
        return self.compression and Compression(self.loaded_costs.element_bytes, self.convert_bytes_per_s)

    def layers_of(self, source: ScheduleSource) -> tuple[int, ...] | None:
        """Return the number of layers of each stage, or None if costs are not of layers."""
        return tuple(last - first for first, last in self.bounds_of(source)) or None

    def bounds_of(self, source: ScheduleSource) -> tuple[tuple[int, int], ...]:
        """Return the half-open range of layers of each stage; empty if costs are not of layers."""
        return _in_stages(self.cut(source), source.schedule)[1]

    @property
    def cuts_layers(self) -> bool:
        """Whether layers are cut for the fastest run of each schedule."""
        return self.loaded_costs.num_layers > 0 and self.partition in (None, "balanced")

    def cut(self, source: ScheduleSource) -> Setup:
        """Return this setup with the layers of each stage (if costs are of layers) and the choices of a plan."""
        known = self if source.plan is None else self._as_planned(source.plan)
        costs, num_stages = known.loaded_costs, source.schedule.num_stages
        if not known.cuts_layers or not is_searched(costs, known.partition_text, num_stages):
            return known
        return replace(known, partition=_balanced_layers(known, costs, source))

    def _as_planned(self, plan: Plan) -> Setup:
        """Return this setup with the layers of each stage, and the messages, of the plan."""
        require_as_planned(
            plan,
            compression=self.compression,
            partition=self.partition_text,
            microbatch_size=self.microbatch_size,
        )
        planned, costs = replace(self, compression=plan.compression), self.loaded_costs
        if not costs.num_layers:
            return planned
        if costs.model_name is None:
            return replace(planned, partition=plan.partition)
        if not is_same_model(costs.model_name, plan.model):
            raise ArgumentError(
                f"costs: got a profile of {costs.model_name}, expected a profile of {plan.model}, the model of the "
                "plan; give the profile of the plan"
            )
        return replace(planned, partition=plan.partition, microbatch_size=plan.microbatch_size)

    def cluster_of(self, schedule: Schedule, plan: Plan | None = None) -> Cluster:
        """Return the machines of a schedule; without given machines, the machines of its plan.

        Raises:
            ArgumentError: There are too few devices.
            ProfileError: The file is not a cluster.
        """
        what, num_devices = f"schedule {schedule.name}", max(schedule.rank_to_device) + 1
        planned = None if plan is None else plan.cluster
        cluster = read_cluster_argument(planned if self.cluster is None else self.cluster, num_devices, what)
        return self.limited(self.loaded_costs.on_machines(cluster) if self.cluster is None else cluster)

    def limited(self, cluster: Cluster) -> Cluster:
        """Return machines whose devices have the memory limit, if there is one."""
        if self.limit_bytes is None:
            return cluster
        return replace(
            cluster, devices=tuple(replace(device, memory_bytes=self.limit_bytes) for device in cluster.devices)
        )


Setup.__doc__ = documented(Setup.__doc__ or "", Setup)
Setup.__signature__ = plain_signature(Setup)  # type: ignore[attr-defined]

SetupArgument: TypeAlias = Setup | CostsArgument
"""A setup, or its costs alone."""


def read_setup_argument(setup: SetupArgument) -> Setup:
    """Return a setup; costs alone are a setup of equal devices whose links take no time.

    Raises:
        ArgumentError: The argument is neither a setup nor costs, or a value is invalid.
        ProfileError: The file has no costs.
    """
    expected = "a Setup, or costs; try pipesched.Setup(pipesched.DeviceCost(1.0, 2.0))"
    require_kind("setup", setup, SetupArgument, expected)
    return setup if isinstance(setup, Setup) else Setup(setup)


def require_unused(setup: Setup, question: str, *names: str) -> None:
    """Refuse settings of a setup that a question does not use.

    Raises:
        ArgumentError: A setting has another value than its default.
    """
    for name in names:
        value = getattr(setup, name)
        if value != declared(Setup)[name].default:
            raise ArgumentError(f"setup: got `{name}={value}`, expected none: {question} does not use it; leave it out")


def require_table_size(setup: Setup, question: str) -> None:
    """Refuse a micro-batch size where a search varies it: only a table of layers has one size.

    Raises:
        ArgumentError: The setup has a size, and its costs are no table of layers.
    """
    if not isinstance(setup.loaded_costs, LayerCosts):
        require_unused(setup, question, "microbatch_size")


def _stage_costs(setup: Setup, schedule: Schedule) -> StageCosts:
    """Return the costs of the stages of `schedule`, with uncompressed messages.

    Args:
        setup: A setup whose layers are cut.
        schedule: Gives the number of stages.

    Raises:
        ArgumentError: There is a partition without costs of layers, the costs have another number of stages, or the
            schedule has R for layers that recompute anyway.
        ProfileError: The partition does not fit, or the costs lack I and W.
    """
    costs, (in_order, bounds) = setup.loaded_costs, _in_stages(setup, schedule)
    require_layers(setup)
    stage_costs = in_order.stage_costs(schedule, bounds, setup.microbatch_size)
    if stage_costs.num_stages != schedule.num_stages:
        what = f"costs ({stage_costs.origin})" if stage_costs.origin else "costs"
        raise ArgumentError(
            f"{what}: got {stage_costs.num_stages} stages, expected {schedule.num_stages} "
            f"for schedule {schedule.name}; give one row per stage"
        )
    if costs.is_recomputed and schedule.columns.recomputes:
        raise ArgumentError(
            f"{schedule.name}: got R for layers that recompute inside their backward, expected only one of the two; "
            "estimate the layers without full recomputation"
        )
    return split_costs(stage_costs, schedule, setup.input_share, is_measured=costs.is_measured)


def require_layers(setup: Setup) -> None:
    """Refuse a micro-batch size or a partition that does not apply to the costs of a setup.

    Raises:
        ArgumentError: The setup has a micro-batch size without a profile, or a partition without costs of layers.
    """
    costs = setup.loaded_costs
    if setup.microbatch_size is not None and not costs.microbatch_sizes:
        raise ArgumentError(
            f"microbatch_size: got {setup.microbatch_size}, expected a size only with costs of a profile; leave it out"
        )
    if setup.partition is not None and not costs.num_layers:
        raise ArgumentError(
            f"partition: got {setup.partition}, expected a partition only with costs of layers or a profile; leave it "
            "out"
        )


def split_costs(costs: StageCosts, schedule: Schedule, input_share: float | None, *, is_measured: bool) -> StageCosts:
    """Return costs with I and W of an assumed share of B, or the costs as they are.

    Args:
        costs: Costs of the stages.
        schedule: Lists that may split the backward.
        input_share: Share of B that I takes in costs with B alone; None: no split is assumed.
        is_measured: Whether the costs come from a profile, which has I and W where the stage can split B.

    Raises:
        ProfileError: Costs with B alone for a schedule that has I and W.
    """
    if input_share is not None:
        return replace(costs, stages=tuple(with_input_share(costs.stages, input_share)))
    lacks_split = not is_measured and any(
        cost.backward_s is not None and None in (cost.backward_input_s, cost.backward_weight_s) for cost in costs.stages
    )
    if lacks_split and schedule.is_held and schedule.columns.splits_backward:
        raise ProfileError(
            f"{schedule.name}: got a schedule that splits the backward into I and W, but the costs "
            f"({costs.origin or 'of stages'}) have only B; give backward_input_s and backward_weight_s (i and w, or "
            "i_ms and w_ms), or `input_share=0.5`"
        )
    return costs


def _in_stages(setup: Setup, schedule: Schedule) -> tuple[CostSource, tuple[tuple[int, int], ...]]:
    """Return the costs in the order of the stages, and the bounds of these; without bounds if costs have no layers."""
    costs = setup.loaded_costs
    if not costs.num_layers:
        return costs, ()
    with _naming_costs(costs, schedule):
        return cut_layers(costs, setup.partition_text, setup.microbatch_size, schedule.num_stages)


@contextmanager
def _naming_costs(costs: CostSource, schedule: Schedule) -> Iterator[None]:
    """Name costs and schedule in an error about the cut of layers; an error about a profile already has a name."""
    try:
        yield
    except ProfileError as error:
        if costs.model_name is not None:
            raise
        raise ProfileError(f"{costs.origin or 'costs'}: schedule {schedule.name}: {error}") from error


_STEPS_PER_RANK = 4
"""Steps per rank of a run without a flush, for the choice of its cut."""


def cut_of_model(
    model: Model,
    source: ScheduleSource,
    partition: str | None,
    profile: Profile | None,
    microbatch_size: int,
    *,
    cluster: ClusterArgument = None,
    compression: MessagePrecision | None = None,
) -> tuple[tuple[int, int], ...]:
    """Return the half-open range of layers of each stage.

    Args:
        model: The model to cut.
        source: The schedule of the run.
        partition: ``balanced`` (None, with a profile), ``uniform`` (None, without), or layers per stage as ``3,3,4``.
        profile: Profile of the model.
        microbatch_size: Samples of a micro-batch.
        cluster: Machines; None: equal ones whose links take no time.
        compression: Compression of messages.

    Raises:
        ArgumentError: The partition is ``balanced`` without a profile.
        ProfileError: The partition does not fit the model.
    """
    if profile is None:
        if partition == "balanced":
            raise ArgumentError(
                "partition: got balanced without `profile`, expected uniform or counts; add the profile for balanced"
            )
        return parse_partition(partition or "uniform", (1.0,) * len(model.layers), source.schedule.num_stages)
    setup = Setup(
        costs=profile,
        cluster=cluster,
        microbatch_size=microbatch_size,
        partition=partition,
        compression=compression,
    )
    return setup.bounds_of(ScheduleSource(source.schedule, source.longer))


def source_of_training(run: TrainingRun) -> ScheduleSource:
    """Return the lists that a training repeats; without a flush, the lists of its first steps."""
    if run.flush_steps is not None:
        return ScheduleSource(run.lists(run.flush_steps).held())
    num_steps = _STEPS_PER_RANK * run.beginning(1).num_ranks

    def longer(times: int) -> Schedule:
        return run.beginning(times * num_steps).held()

    return ScheduleSource(longer(1), longer)


_cuts: Kept[Layers] = Kept(16)
"""Cuts of layers; several parts of an answer need the same cut."""


def _balanced_layers(setup: Setup, costs: CostSource, source: ScheduleSource) -> Layers:
    """Return the number of layers of each stage in the fastest cut for a schedule that a short search finds."""
    schedule, cluster = source.schedule, setup.cluster_of(source.schedule, source.plan)
    size, compression, share = setup.microbatch_size, setup.message_compression, setup.input_share

    def search() -> Layers:
        with _naming_costs(costs, schedule):
            uniform_partition(costs.num_layers, schedule.num_stages)  # refuses more stages than layers
        stages = costs_of_cuts(costs, schedule.num_stages, size, schedule.ranks_per_device, compression)

        def costs_of(bounds: tuple[tuple[int, int], ...]) -> StageCosts:
            cut = stages(bounds)
            return cut if share is None else replace(cut, stages=tuple(with_input_share(cut.stages, share)))

        return fastest_cut(
            CutTask(schedule, costs.num_layers, costs_of, cluster, setup.network, source.longer, setup.buffers)
        )

    key = source.longer is None, size, cluster, setup.network, compression, setup.buffers, share
    return _cuts.get((costs, schedule), key, search)
