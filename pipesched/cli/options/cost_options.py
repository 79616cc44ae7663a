"""Options for the costs of ops and the machines, for equal stages, and for facts about runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.machine_options import MachineOptions, with_slow_parts
from pipesched.cli.options.values import numbers
from pipesched.profiles import BYTES_LIMIT, io
from pipesched.questions import CostSettings, EstimateSettings, MessageFacts
from pipesched.schedules.common import option_name, values_of
from pipesched.schedules.formats import suffix_of
from pipesched.simulator import analysis
from pipesched.workflows import arguments, measuring, simulating

if TYPE_CHECKING:
    from pipesched.cli.options.machine_options import SimulationOptions
    from pipesched.profiles.clusters import Cluster
    from pipesched.profiles.costs import CostSource, DeviceCost, Profile
    from pipesched.profiles.io import Plan
    from pipesched.schedules import Schedule
    from pipesched.workflows.arguments import ScheduleSource
    from pipesched.workflows.measuring import RunsArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOptions(CostSettings):
    """Costs of ops from a profile, a table, or equal for all stages; and the machines."""

    profile: Annotated[
        Path | None, typer.Option(help="Measured profile of a model (JSON), or a graph of PipeDream's profiler (.txt).")
    ] = None
    stage_costs: Annotated[
        Path | None, typer.Option(help="Table of the stages' costs (CSV), or costs from runs (JSON).")
    ] = None
    layer_costs: Annotated[
        Path | None,
        typer.Option(help="Table of the layers' costs per micro-batch (CSV); --partition cuts it into stages."),
    ] = None
    uniform: Annotated[
        str | None,
        typer.Option(
            help="Costs of a device, shared among its stages: f=10ms,b=20ms or f=1,i=1,w=1 [s]. Keys: f, b, i, w, "
            "step_s, copy_s, predict_s, average_s, output_bytes, saved_bytes, saved_for_weight_bytes, weight_bytes, "
            "optimizer_bytes, overlap."
        ),
    ] = None
    machines: MachineOptions = MachineOptions()  # noqa: RUF009 -- frozen

    @property
    def are_given(self) -> bool:
        """Whether there are any costs."""
        return bool(self.sources)

    @property
    def sources(self) -> dict[str, str | Path]:
        """The costs that are given, by option."""
        names = ("profile", "stage_costs", "layer_costs", "uniform")
        return {option_name(name): getattr(self, name) for name in names if getattr(self, name) is not None}

    def source(self, sizes: Sequence[int] | None = None) -> CostSource:
        """Return the costs as the options give them.

        Args:
            sizes: Samples of the micro-batches of an estimate (default: of `--microbatch-size`, or 1).

        Raises:
            InputError: The options do not name exactly one source.
            ProfileError: A file is bad.
        """
        given = list(self.sources)
        if len(given) != 1:
            raise InputError(
                f"costs: got {' and '.join(given) or 'none'}, expected one of --profile, --stage-costs, --layer-costs, "
                "--uniform; try --uniform f=1,b=2"
            )
        if self.uniform is not None:
            return uniform_costs(self.uniform)
        if self.stage_costs is not None:
            is_table = suffix_of(self.stage_costs) != ".json"
            return io.load_stage_costs(self.stage_costs) if is_table else arguments.load_costs(self.stage_costs)
        if self.layer_costs is not None:
            return io.load_layer_costs(self.layer_costs)
        assert self.profile is not None
        return self._profile(self.profile, sizes or (self.microbatch_size or 1,))

    def _profile(self, profile: Path, sizes: Sequence[int]) -> CostSource:
        """Return the costs of --profile; `sizes` are samples of an estimate."""
        del sizes
        return arguments.load_costs(profile)

    def setup(self, source: ScheduleSource, simulation: SimulationOptions) -> simulating.Setup:
        """Return the setup of a prediction: everything but the schedule.

        Raises:
            InputError: The options do not name exactly one source of costs, or one cluster; or there is a memory limit
                and no bytes to compare with it.
            ProfileError: A file is bad, or does not fit the schedule.
        """
        if source.plan is not None and not self.are_given:
            raise InputError(
                f"costs: got none, expected a profile of the plan's model, {source.plan.model}; try --profile P.json"
            )
        costs = self.source()
        cluster = self.load_cluster(source.schedule, source.plan, costs.gpus_per_device)
        setup = simulating.Setup(
            costs,
            with_slow_parts(cluster if self.machines.are_given else costs.on_machines(cluster), simulation.slow or ()),
            simulation.network,
            **values_of(self),
            **values_of(simulation),
        )
        if self.machines.memory_limit is not None:
            self.machines.require_judged(setup.costs_of(source).has_bytes)
        return setup

    def shares(self, *schedules: Schedule, named: bool = False) -> list[str]:
        """Return a line for each share, other than 1, of a device's work that one stage has.

        Args:
            schedules: Schedules with equal stages.
            named: Whether a line names its schedules.
        """
        if self.uniform is None:
            return []
        values = numbers(self.uniform, "--uniform", _UNIFORM_KEYS, "f=10ms,b=20ms")
        by_share: dict[Fraction, list[str]] = {}
        for schedule in schedules:
            by_share.setdefault(schedule.stage_share, []).append(schedule.name)
        lines = []
        for share, names in by_share.items():
            if share == 1:
                continue
            whose = f"costs of each stage, which is {share} devices' worth"
            if share.numerator == 1:
                whose = f"costs of each of the {share.denominator} stages of a device"
            takes = ", ".join(
                f"{key} {analysis.readable_s(values[key] * float(share))}" for key in "fbiw" if key in values
            )
            lines.append(f"{', '.join(names)}: {whose}: {takes}" if named else f"{whose}: {takes}")
        return lines

    def load_cluster(self, schedule: Schedule, plan: Plan | None = None, gpus_per_device: int = 1) -> Cluster:
        """Return the machines of `schedule`; by default, the machines of the plan.

        Args:
            schedule: The schedule.
            plan: Its plan, or None.
            gpus_per_device: GPUs that share the layers of a device.
        """
        usual = None if plan is None else plan.cluster
        return self.load_devices(
            max(schedule.rank_to_device) + 1, f"schedule {schedule.name}", usual, gpus_per_device=gpus_per_device
        )

    def load_devices(
        self, num_devices: int, what: str, usual: Cluster | None = None, *, gpus_per_device: int = 1
    ) -> Cluster:
        """Return at least `num_devices` devices of several GPUs each; other arguments as in `MachineOptions.load`."""
        return self.machines.for_devices(gpus_per_device).load(num_devices, what, usual)


@dataclass(frozen=True, kw_only=True)
class EstimateOptions:
    """Options of an estimated profile."""

    panel: ClassVar[str] = "Estimate"

    gpu: Annotated[
        str | None, typer.Option(help="GPU for the estimate of the model in --profile, as h100, or a file (JSON).")
    ] = None
    settings: EstimateSettings = EstimateSettings()  # noqa: RUF009 -- frozen


@dataclass(frozen=True, kw_only=True)
class EstimatedCostOptions(CostOptions):
    """Costs as `CostOptions`; with --gpu, --profile is a model, and its profile is estimated first."""

    profile: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Profile of a model (JSON), a graph of PipeDream's profiler (.txt), or a model with --gpu, as "
                "llama3-70b."
            )
        ),
    ] = None
    estimate: EstimateOptions = EstimateOptions()

    def _profile(self, profile: Path, sizes: Sequence[int]) -> CostSource:
        gpu = self.estimate.gpu
        if gpu is None:
            if self.estimate != EstimateOptions():
                raise InputError(
                    "--profile: got an option of the estimate without --gpu, expected both; try --gpu h100"
                )
            if not profile.exists() and io.names_shape(str(profile)):
                raise InputError(f"--profile: got {profile}, a model, expected --gpu too; try --gpu h100")
            return super()._profile(profile, sizes)
        machine = self.machines.machine
        return measuring.analytic_profile(
            str(profile), gpu, sizes, machine=machine, **values_of(self.estimate.settings)
        ).profile

    def source(self, sizes: Sequence[int] | None = None) -> CostSource:
        if self.estimate != EstimateOptions() and self.profile is None:
            raise InputError("--gpu: got an estimate without --profile, expected a model; try --profile llama3-70b")
        return super().source(sizes)

    def load_devices(
        self, num_devices: int, what: str, usual: Cluster | None = None, *, gpus_per_device: int = 1
    ) -> Cluster:
        """Return devices as `CostOptions.load_devices`; by default, of the usual nodes of --gpu."""
        if self.estimate.gpu is None or self.machines.are_given or usual is not None:
            return super().load_devices(num_devices, what, usual, gpus_per_device=gpus_per_device)
        gpu = measuring.read_gpu_argument(self.estimate.gpu)
        machines = replace(self.machines, machine=gpu.machine).for_devices(gpus_per_device)
        cluster, limit = machines.load(num_devices, what), self.machines.limit_bytes() or gpu.memory_bytes
        return replace(cluster, devices=tuple(replace(device, memory_bytes=limit) for device in cluster.devices))


_SECONDS = {"f": "forward_s", "b": "backward_s", "i": "backward_input_s", "w": "backward_weight_s"} | {
    name: name for name in ("step_s", "copy_s", "predict_s", "average_s")
}
_BYTES = ("output_bytes", "saved_bytes", "saved_for_weight_bytes", "weight_bytes", "optimizer_bytes")
_UNIFORM_KEYS = (*_SECONDS, *_BYTES, "overlap")


def uniform_costs(text: str) -> DeviceCost:
    """Return the costs of a device in a model of equal stages, from ``f=1,b=2`` or ``f=1,i=1,w=1,saved_bytes=1e9``.

    Raises:
        InputError: A value is missing or invalid.
    """
    from pipesched.profiles.costs import DeviceCost

    values = numbers(text, "--uniform", _UNIFORM_KEYS, "f=10ms,b=20ms")
    if "f" not in values:
        raise InputError(f"--uniform: got {text!r}, expected f, the seconds of a forward; try f=1,b=2")
    if "b" not in values and not {"i", "w"} <= values.keys():
        raise InputError(f"--uniform: got {text!r}, expected b, or both i and w; try f=1,b=2 or f=1,i=1,w=1")
    for name in _BYTES:
        if name in values and (not values[name].is_integer() or values[name] >= BYTES_LIMIT):
            near = math.ceil(values[name]) if values[name] < BYTES_LIMIT else "1e18"
            raise InputError(
                f"--uniform: {name}: got {values[name]:g}, expected whole bytes below 2^63; try {name}={near}"
            )
    overlap = values.pop("overlap", 0.0)
    if overlap > 1:
        raise InputError(f"--uniform: overlap: got {overlap:g}, expected a share of at most 1; try overlap=1")
    times = {name: values[key] for key, name in _SECONDS.items() if key in values}
    sizes = {name: int(values[name]) for name in _BYTES if name in values}
    return DeviceCost(**times, **sizes, overlap=overlap)  # type: ignore[arg-type]  # names are checked


@dataclass(frozen=True, kw_only=True)
class RunCostOptions(MessageFacts):
    """Options for facts about runs that their Timelines lack."""

    profile: Annotated[
        Path | None, typer.Option(help="Profile of the model of the runs; gives bytes, and I and W as shares of B.")
    ] = None
    layer_costs: Annotated[
        Path | None, typer.Option(help="Table of the layers' costs (CSV), in place of --profile.")
    ] = None

    def keywords(self) -> dict[str, Any]:
        """Return the options as keywords of `costs_from_runs`.

        Raises:
            InputError: There are a profile and a table.
            ProfileError: The table is bad, or a profile cannot express it.
        """
        return {"profile": self._layers(), **values_of(self)}

    def _layers(self) -> Path | Profile | None:
        if self.layer_costs is None:
            return self.profile
        if self.profile is not None:
            raise InputError("--layer-costs: got --profile too, expected only one of them; leave one out")
        return measuring.profile_of_layers(self.layer_costs, self.microbatch_size or 1).profile


def run_files(text: str, option: str) -> RunsArgument:
    """Return the files of Timelines in a list as ``a.json,b.json``.

    Raises:
        InputError: A name is empty, or of no JSON file.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name.lower().endswith(".json.gz"):
            raise InputError(
                f"{option}: got {name!r}, a trace, expected a Timeline; try 'pipesched import {name} --out run.json'"
            )
        if suffix_of(name) != ".json":
            raise InputError(
                f"{option}: got {name!r}, expected a Timeline (.json), or several as a.json,b.json; "
                "try 'pipesched run ... --out run.json'"
            )
    return [Path(name) for name in names]
