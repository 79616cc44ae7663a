"""Options for the costs of ops and for the machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.machine_options import MachineOptions
from pipesched.questions import CostSettings
from pipesched.schedules.common import values_of
from pipesched.schedules.formats import suffix_of

if TYPE_CHECKING:
    from pipesched.cli.options.simulation_options import SimulationOptions
    from pipesched.profiles.clusters import Cluster
    from pipesched.profiles.costs import CostSource, StageCosts
    from pipesched.profiles.io import Plan
    from pipesched.schedules import Schedule
    from pipesched.workflows.arguments import ScheduleSource
    from pipesched.workflows.simulating import Setup


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
        Path | None, typer.Option(help="Table of the layers' costs (CSV), of a micro-batch; cut by --partition.")
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

    shown: ClassVar[dict[str, str | None]] = dict.fromkeys(
        ("profile", "partition", "microbatch_size", "stage_costs", "layer_costs", "uniform", "input_share", "machines")
    )

    @property
    def are_given(self) -> bool:
        """Whether there are any costs."""
        return bool(self.sources)

    @property
    def sources(self) -> dict[str, str | Path]:
        """The costs that are given, by option."""
        sources = {
            "--profile": self.profile,
            "--stage-costs": self.stage_costs,
            "--layer-costs": self.layer_costs,
            "--uniform": self.uniform,
        }
        return {option: source for option, source in sources.items() if source is not None}

    def load(self, schedule: Schedule) -> tuple[StageCosts, Cluster]:
        """Return the costs of `schedule`, and the machines.

        Raises:
            InputError: The options do not name exactly one source.
            ProfileError: A file is bad, or does not fit the schedule.
        """
        return self.load_costs(schedule), self.load_cluster(schedule)

    def load_costs(self, schedule: Schedule) -> StageCosts:
        """Return the costs of `schedule`'s stages."""
        from pipesched.workflows.arguments import read_costs_argument

        return read_costs_argument(
            self.source(schedule),
            schedule,
            microbatch_size=self.microbatch_size,
            partition=self.partition_text,
            input_share=self.input_share,
        )

    def source(self, schedule: Schedule | None, plan: Plan | None = None) -> CostSource:
        """Return the costs as the options give them.

        Args:
            schedule: Determines whether I and W are needed; None: a later check determines it.
            plan: The plan of the schedule, if any, which has the partition.

        Raises:
            InputError: The options do not name exactly one source.
            ProfileError: A file is bad.
        """
        from pipesched.workflows.arguments import load_costs

        given = list(self.sources)
        if len(given) != 1:
            raise InputError(
                f"costs: got {' and '.join(given) or 'none'}, expected one of --profile, --stage-costs, --layer-costs, "
                "--uniform; try --uniform f=1,b=2"
            )
        if given != ["--profile"] and plan is None:
            if self.microbatch_size is not None:
                raise InputError(
                    f"{given[0]}: got --microbatch-size too, expected it with --profile only; leave it out"
                )
            if self.partition is not None and given != ["--layer-costs"]:
                raise InputError(
                    f"{given[0]}: got --partition too, expected it with --profile or --layer-costs only; leave it out"
                )
        if self.uniform is not None:
            from pipesched.cli.options.uniform_costs import uniform_costs

            return uniform_costs(self.uniform, schedule if self.input_share is None else None)
        if self.stage_costs is not None:
            from pipesched.profiles.io import load_stage_costs

            is_table = suffix_of(self.stage_costs) != ".json"
            return load_stage_costs(self.stage_costs) if is_table else load_costs(self.stage_costs)
        if self.layer_costs is not None:
            from pipesched.profiles.io import load_layer_costs

            return load_layer_costs(self.layer_costs)
        assert self.profile is not None
        return load_costs(self.profile)

    def setup(self, source: ScheduleSource, simulation: SimulationOptions) -> Setup:
        """Return the setup of a prediction: everything but the schedule.

        Raises:
            InputError: The options do not name exactly one source of costs, or one cluster; or there is a memory limit
                and no bytes to compare with it.
            ProfileError: A file is bad, or does not fit the schedule.
        """
        from pipesched.workflows.simulating import Setup

        costs, cluster = self.source(source.schedule, source.plan), self.load_cluster(source.schedule, source.plan)
        setup = Setup(
            costs,
            simulation.on(cluster if self.machines.are_given else costs.on_machines(cluster)),
            simulation.network,
            **values_of(self),
            **values_of(simulation),
        )
        if self.machines.memory_limit is not None:
            self.machines.require_judged(setup.costs_of(source).has_bytes)
        return setup

    def shares(self, *schedules: Schedule, named: bool = False) -> list[str]:
        """Return a line for each share of a device's costs that equal stages of `schedules` have, except 1.

        Args:
            named: Whether a line names its schedules.
        """
        if self.uniform is None:
            return []
        from pipesched.cli.options.uniform_costs import shares_note

        return shares_note(self.uniform, schedules, named=named)

    def stage_share(self, schedule: Schedule) -> float | None:
        """Return the share of each stage in the costs of a device from `--uniform`, or None for other costs."""
        if self.uniform is None:
            return None

        return float(schedule.stage_share)

    def load_cluster(self, schedule: Schedule, plan: Plan | None = None) -> Cluster:
        """Return the machines of `schedule`; by default, the machines of the plan."""
        usual = None if plan is None else plan.cluster
        return self.machines.load(max(schedule.rank_to_device) + 1, f"schedule {schedule.name}", usual)
