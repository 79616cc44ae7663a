"""Options that several subcommands share, each group a dataclass.

A subcommand takes a group as one parameter; `grouped` shows its fields to typer as options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.machine_options import MachineOptions
from pipesched.cli.options.option_groups import grouped as grouped
from pipesched.cli.options.pairs import integers, number, pairs, read_integer

if TYPE_CHECKING:
    from pipesched.cli.options.traffic_options import TrafficOptions
    from pipesched.profiles.clusters import Cluster
    from pipesched.profiles.costs import DeviceCost, Profile, StageCosts
    from pipesched.profiles.io import Plan
    from pipesched.schedules import Schedule
    from pipesched.schedules.builders import Parameter, ParameterValue
    from pipesched.schedules.transforms import ScheduleSpec
    from pipesched.workflows import BuffersChoice, Conditions, ScheduleSource


Json = Annotated[bool, typer.Option("--json", help="Print data, as JSON, and nothing else.")]
Seed = Annotated[int, typer.Option(help="Of everything random.", min=0, max=2**32 - 1)]


def out_option(text: str) -> Any:
    """Return the option --out; `text` says what it writes, under which suffixes."""
    return typer.Option("--out", "-o", help=text)


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """Which schedule: by name and counts, from a file, or as planned."""

    schedule: Annotated[str | None, typer.Option("--schedule", "-s", help="Name, as 'pipesched list' shows it.")] = None
    stages: Annotated[int | None, typer.Option("--stages", "-p", help="Ranks of the pipeline.", min=1)] = None
    microbatches: Annotated[int | None, typer.Option("--microbatches", "-m", help="Micro-batches.", min=1)] = None
    chunks: Annotated[
        int | None, typer.Option("--chunks", "-v", help="Stages per rank, where it takes them.", min=1)
    ] = None
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value of the schedule; repeatable.")] = None
    schedule_file: Annotated[
        Path | None, typer.Option("--schedule-file", "-f", help="PyTorch CSV (either dialect) or our JSON.")
    ] = None
    recompute: Annotated[
        str | None, typer.Option(help="Stages that keep only their input and recompute the rest: all, or 0,2.")
    ] = None
    width: Annotated[
        int | None, typer.Option(help="Copies of the pipeline, kept equal (1), with -m micro-batches each.", min=1)
    ] = None
    placement: Annotated[
        Literal["pipeline", "data"] | None,
        typer.Option(help="On neighbouring devices: the ranks of a copy (pipeline), or the copies of a rank."),
    ] = None
    late_sums: Annotated[
        bool,
        typer.Option("--late-sums", help="Sum gradients right before each step, not beside what stands before it."),
    ] = False
    plan: Annotated[
        Path | None, typer.Option(help="Plan (JSON), as 'pipesched plan' writes it: schedule, copies and partition.")
    ] = None

    def load(self) -> Schedule:
        """Build or read the schedule.

        Raises:
            InputError: The options do not say one schedule.
            ScheduleError: No such schedule, bad counts, or a bad file.
        """
        return self.source().schedule

    def source(self) -> ScheduleSource:
        """Build or read the schedule, with what is known of where it comes from.

        Raises:
            InputError: The options do not say one schedule.
            ScheduleError: No such schedule, bad counts, or a bad file.
        """
        from pipesched.workflows import ScheduleSource, read_schedule_argument

        plan = self.read_plan()
        if plan is not None:
            return read_schedule_argument(plan)
        if self.schedule_file is not None:
            given = [self.schedule, self.stages, self.microbatches, self.chunks, self.settings]
            if any(value is not None for value in given):
                raise InputError("--schedule-file: the file says it all; leave out --schedule, -p, -m, -v and --set")
            from pipesched.schedules.formats import read_schedule

            return ScheduleSource(self._finished(read_schedule(self.schedule_file)))
        if self.schedule is None:
            raise InputError("no schedule given; try --schedule 1f1b -p 4 -m 8, or --schedule-file F")
        from pipesched.schedules.builders import find

        name, lists = self.schedule, self.build(self.schedule)
        return ScheduleSource(lists, self._longer(name) if find(name).traits.is_asynchronous else None)

    def read_plan(self) -> Plan | None:
        """Read the plan; None if there is none.

        Raises:
            InputError: Other options say a schedule too, or the plan's parts do not fit together.
            ProfileError: The file is no plan.
        """
        if self.plan is None:
            return None
        if self != ScheduleOptions(plan=self.plan):
            raise InputError(
                "--plan: got another option of the schedule too, expected none: the plan says it all; leave it out"
            )
        from pipesched.profiles.io import load_plan

        plan = load_plan(self.plan)
        try:
            plan.run(1)
        except ValueError as error:
            raise InputError(f"{self.plan}: {error}") from error
        return plan

    def _longer(self, name: str) -> Callable[[int], Schedule]:
        """Return what makes a run without a flush so many times as long."""
        microbatches = self.microbatches
        assert microbatches is not None, "it was built with so many"
        return lambda times: replace(self, microbatches=times * microbatches).build(name)

    def build(self, name: str) -> Schedule:
        """Build the schedule `name` with the counts of these options."""
        from pipesched.schedules.builders import build

        num_ranks, num_microbatches, settings = self._counts(name)
        return self._finished(build(name, num_ranks, num_microbatches, self.chunks, **settings))

    def load_lazily(self) -> Schedule:
        """Build or read the schedule; of an asynchronous run only what makes its lists.

        Raises:
            InputError: The options do not say one schedule.
            ScheduleError: No such schedule, bad counts, or a bad file.
        """
        from pipesched.schedules.builders import build_lazily, find

        if self.schedule is None or self.schedule_file or self.plan or find(self.schedule).lazy is None:
            return self.load()
        num_ranks, num_microbatches, settings = self._counts(self.schedule)
        return self._finished(build_lazily(self.schedule, num_ranks, num_microbatches, self.chunks, **settings))

    def recipe(self) -> ScheduleSpec:
        """Return how to make the lists of a training run; without -m of as many micro-batches as ranks.

        Raises:
            InputError: The options do not say one schedule.
            ScheduleError: No such schedule, a bad file, or one that cannot run.
        """
        from pipesched.schedules.builders import find
        from pipesched.schedules.check import require_runnable
        from pipesched.schedules.formats import to_json
        from pipesched.schedules.transforms import ScheduleSpec

        plan = self.read_plan()
        if plan is not None:
            return plan.recipe
        if self.schedule is None or self.schedule_file is not None or self.late_sums:
            loaded = self.load()
            require_runnable(loaded)
            return ScheduleSpec(lists=to_json(loaded))
        if self.microbatches is None:
            return replace(self, microbatches=(self.stages or 1) * self._pipelines(self.schedule)).recipe()
        num_ranks, num_microbatches, settings = self._counts(self.schedule)
        return ScheduleSpec(
            name=find(self.schedule).name,
            num_ranks=num_ranks,
            num_microbatches=num_microbatches,
            num_chunks=self.chunks,
            parameters=settings,
            recompute=self._recomputed_stages(),
            width=self.width or 1,
            placement=self.placement or "pipeline",
        )

    def _pipelines(self, name: str) -> int:
        """Return how many pipelines share the micro-batches of the schedule `name`."""
        from pipesched.schedules.builders import find

        parameters = find(name).parameters
        settings = parse_settings(self.settings or (), parameters)
        values = {parameter.name: parameter.default for parameter in parameters} | settings
        pipelines = values.get("pipelines", 1)
        assert isinstance(pipelines, int), "as its type says"
        return pipelines

    def _counts(self, name: str) -> tuple[int, int, dict[str, ParameterValue]]:
        from pipesched.schedules.builders import find

        parameters = find(name).parameters
        if self.stages is None or self.microbatches is None:
            missing = " and ".join(
                option for option, value in (("-p", self.stages), ("-m", self.microbatches)) if value is None
            )
            raise InputError(f"schedule {name}: {missing} missing; try -p 4 -m 8")
        return self.stages, self.microbatches, parse_settings(self.settings or (), parameters)

    def _finished(self, schedule: Schedule) -> Schedule:
        """Return `schedule` copied, placed, with its sums where they shall be, and recomputed as asked."""
        from pipesched.schedules.transforms import delay_reduces, place, recompute, replicate

        width = self.width or 1
        num_kept = schedule.num_stages * schedule.num_microbatches if schedule.is_held else 0
        _check_width(width, schedule.num_ranks, schedule.num_microbatches, num_kept)
        placed = place(replicate(schedule, width), self.placement or "pipeline", width)
        placed = delay_reduces(placed) if self.late_sums else placed
        stages = self._recomputed_stages()
        return placed if stages is None else recompute(placed, None if stages == "all" else stages)

    def _recomputed_stages(self) -> tuple[int, ...] | Literal["all"] | None:
        if self.recompute is None:
            return None
        if self.recompute == "all":
            return "all"
        try:
            return tuple(int(text) for text in self.recompute.split(","))
        except ValueError:
            raise InputError(
                f"--recompute: got {self.recompute!r}, expected all, or stages as 0,2; try --recompute all"
            ) from None


def _check_width(width: int, num_ranks: int, num_microbatches: int, num_kept: int = 0) -> None:
    """Refuse more copies than can be written down, before they are; each keeps `num_kept` micro-batches on stages."""
    from pipesched.schedules import MAX_CELLS
    from pipesched.schedules.transforms import MAX_REPLICATED_RANKS

    if width > 1 and (width * num_ranks > MAX_REPLICATED_RANKS or width * num_kept > MAX_CELLS):
        raise InputError(
            f"--width: got {width} copies of {num_ranks} ranks and {num_microbatches} micro-batches, expected at most "
            f"{MAX_REPLICATED_RANKS} ranks, and {MAX_CELLS} micro-batches on stages, in all; try fewer copies"
        )


def parse_settings(settings: Sequence[str], parameters: Sequence[Parameter]) -> dict[str, ParameterValue]:
    """Return the values of ``key=value`` texts, each of the type that its parameter takes."""
    if not settings:
        return {}
    readers: dict[str, Callable[[str, str], ParameterValue]] = {
        "integer": read_integer,
        "number": number,
        "integers": integers,
    }
    lists = [f"{parameter.name}=2:1:1" for parameter in parameters if parameter.takes == "integers"]
    names = [parameter.name for parameter in parameters]
    found = pairs(",".join(settings), "--set", names, *lists[:1])  # a list takes colons, as its example shows
    return {
        parameter.name: readers[parameter.takes](found[parameter.name], f"--set: {parameter.name}")
        for parameter in parameters
        if parameter.name in found
    }


@dataclass(frozen=True, slots=True)
class CostOptions:
    """What the ops cost: a profile, a table, or the same for all; and the machines."""

    profile: Annotated[
        Path | None, typer.Option(help="Measured profile of a model (JSON), or a graph of PipeDream's profiler (.txt).")
    ] = None
    partition: Annotated[
        str | None,
        typer.Option(help="Layers to stages: balanced (with a profile the default), uniform, or counts as 3,3,4."),
    ] = None
    microbatch_size: Annotated[
        int | None, typer.Option(help="Samples per micro-batch of a model.", min=1, max=2**31 - 1)
    ] = None
    stage_costs: Annotated[Path | None, typer.Option(help="Table of the stages' costs (CSV).")] = None
    uniform: Annotated[
        str | None,
        typer.Option(help="Of a device, shared among its stages: f=1,b=2 or f=1,i=1,w=1 [s]; and saved_bytes=1e9, ..."),
    ] = None
    machines: MachineOptions = MachineOptions()  # noqa: RUF009 -- frozen

    def load(self, schedule: Schedule) -> tuple[StageCosts, Cluster]:
        """Return what `schedule` costs, on which machines.

        Raises:
            InputError: The options do not say one source.
            ProfileError: A file is bad, or does not fit the schedule.
        """
        return self.load_costs(schedule), self.load_cluster(schedule)

    def load_costs(self, schedule: Schedule) -> StageCosts:
        """Return the costs of `schedule`'s stages."""
        from pipesched.workflows import read_costs_argument

        return read_costs_argument(
            self.source(schedule), schedule, microbatch_size=self.microbatch_size, partition=self.partition
        )

    def source(self, schedule: Schedule, plan: Plan | None = None) -> StageCosts | DeviceCost | Profile:
        """Return the costs as the options give them.

        Args:
            schedule: Says whether I and W are needed.
            plan: That it is made from, if it is: it says the partition.

        Raises:
            InputError: The options do not say one source.
            ProfileError: A file is bad.
        """
        from pipesched.workflows import load_costs

        sources = {"--profile": self.profile, "--stage-costs": self.stage_costs, "--uniform": self.uniform}
        given = [name for name, value in sources.items() if value is not None]
        if len(given) != 1:
            got = " and ".join(given) if given else "none"
            raise InputError(f"costs: got {got}, expected one of {', '.join(sources)}; try --uniform f=1,b=2")
        is_cut = self.partition is not None or self.microbatch_size is not None
        if self.profile is None and is_cut and plan is None:
            raise InputError(f"{given[0]}: got --partition or --microbatch-size too, expected them with --profile only")
        if self.uniform is not None:
            from pipesched.cli.options.uniform_costs import uniform_costs

            return uniform_costs(self.uniform, schedule)
        if self.stage_costs is not None:
            from pipesched.profiles.io import load_stage_costs

            return load_stage_costs(self.stage_costs)
        assert self.profile is not None
        return load_costs(self.profile)

    def conditions(
        self, source: ScheduleSource, traffic: TrafficOptions, buffers: BuffersChoice = "pooled"
    ) -> Conditions:
        """Return what is supposed of all but the schedule.

        Raises:
            InputError: The options do not say one source of costs, or one cluster; or there is a memory limit, and
                nothing that can be held against it.
            ProfileError: A file is bad, or does not fit the schedule.
        """
        from pipesched.workflows import Conditions

        conditions = Conditions(
            costs=self.source(source.schedule, source.plan),
            cluster=traffic.on(self.load_cluster(source.schedule)),
            microbatch_size=self.microbatch_size,
            partition=self.partition,
            network=traffic.rules(),
            compression=traffic.compression,
            convert_bytes_per_s=traffic.convert_bytes_per_s,
            buffers=buffers,
            jitter=traffic.jitter,
            seed=traffic.seed,
        )
        if self.machines.memory_limit is not None:
            self.machines.require_judged(conditions.costs_of(source).has_bytes)
        return conditions

    def shares(self, *schedules: Schedule, named: bool = False) -> list[str]:
        """Return a line for each share of a device's costs that equal stages of `schedules` have, where it is not all.

        Args:
            named: Whether a line says of which schedules it is.
        """
        if self.uniform is None:
            return []
        from pipesched.cli.options.uniform_costs import shares_note

        return shares_note(self.uniform, schedules, named=named)

    def stage_share(self, schedule: Schedule) -> float | None:
        """Return what each stage has of what a device holds, as `--uniform` gives it; None where other costs do."""
        if self.uniform is None:
            return None
        from pipesched.schedules import stage_share

        return float(stage_share(schedule))

    def load_cluster(self, schedule: Schedule) -> Cluster:
        """Return the machines that `schedule` runs on."""
        return self.machines.load(max(schedule.rank_to_device) + 1, f"schedule {schedule.name}")
