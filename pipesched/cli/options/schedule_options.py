"""Options for the choice of a schedule, or of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import typer

from pipesched.cli.errors import InputError, read_from
from pipesched.cli.options.values import integers, number, pairs, read_integer
from pipesched.profiles import io
from pipesched.questions import RecomputeTime, ScheduleCounts, StepBarrier
from pipesched.schedules import builders, check, formats, transforms
from pipesched.schedules.common import values_of
from pipesched.schedules.transforms import Placement
from pipesched.workflows import arguments

if TYPE_CHECKING:
    from pipesched.profiles.io import Plan
    from pipesched.schedules import Schedule
    from pipesched.schedules.builders import Entry, Parameter, ParameterValue
    from pipesched.workflows.arguments import ScheduleSource


def _begun_names(begun: str) -> list[str]:
    """Return the schedules whose names begin with the typed text."""
    return [name for name in builders.CATALOGUE if name.startswith(begun)]


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """The schedule: by name and counts, from a file, or as planned."""

    panel: ClassVar[str] = "Schedule"
    schedule: Annotated[
        str | None,
        typer.Option(
            "--schedule",
            "-s",
            autocompletion=_begun_names,
            help=(
                "Name of a schedule ('pipesched list' shows all), or your own builder: package.module:builder, "
                "path.py:builder."
            ),
        ),
    ] = None
    counts: ScheduleCounts = ScheduleCounts()  # noqa: RUF009 -- frozen
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Parameter of the schedule, key=value ('pipesched list' shows the keys); repeatable."
        ),
    ] = None
    schedule_file: Annotated[
        Path | None, typer.Option("--schedule-file", "-f", help="PyTorch CSV (either dialect) or our JSON.")
    ] = None
    recompute: Annotated[
        str | None, typer.Option(help="Stages that keep only their input and recompute the rest: all, or 0,2.")
    ] = None
    recompute_when: RecomputeTime = None
    width: Annotated[
        int | None,
        typer.Option(help="Copies of the pipeline with equal weights and -m micro-batches each (default: 1).", min=1),
    ] = None
    placement: Annotated[
        Placement | None,
        typer.Option(
            help="Neighbouring devices hold the ranks of one copy (pipeline), or the copies of one rank (data)."
        ),
    ] = None
    delayed_reduce: Annotated[
        bool,
        typer.Option(
            "--delayed-reduce", help="Sum gradients right before each step, instead of during the ops before the step."
        ),
    ] = False
    step_barrier: StepBarrier = False
    plan: Annotated[
        Path | None,
        typer.Option(help="Plan (JSON) of 'pipesched plan' or 'tune': schedule, copies and partition."),
    ] = None

    def load(self) -> Schedule:
        """Build or read the schedule.

        Raises:
            InputError: The options do not name exactly one schedule.
            ScheduleError: No such schedule, bad counts, or a bad file.
        """
        return self.source().schedule

    def source(self, *, is_held: bool = True) -> ScheduleSource:
        """Build or read the schedule, with its origin.

        Args:
            is_held: As for `read_schedule_argument`.

        Raises:
            InputError: The options do not name exactly one schedule.
            ScheduleError: No such schedule, bad counts, or a bad file.
        """
        plan = self.read_plan()
        if plan is not None:
            return arguments.read_schedule_argument(plan)
        if self.schedule_file is not None:
            if self.schedule is not None or self.counts != ScheduleCounts() or self.settings is not None:
                raise InputError(
                    "--schedule-file: got another option of the schedule too, expected only the file, which has the "
                    "whole schedule; leave out --schedule, -p, -m, -v and --set"
                )
            if formats.format_of(self.schedule_file) == io.PLAN_FORMAT:
                raise InputError(
                    f"{self.schedule_file}: got a plan, expected a schedule; try --plan {self.schedule_file}"
                )
            read = self._finished(formats.read_schedule(self.schedule_file))
            read_from(self.schedule_file, read.name)
            return arguments.ScheduleSource(read)
        if self.schedule is None:
            raise InputError("schedule: got none, expected one; try --schedule 1f1b -p 4 -m 8, or --schedule-file F")
        if "," in self.schedule:
            raise InputError(
                f"--schedule: got {self.schedule}, expected one schedule; try 'pipesched compare {self.schedule}', "
                "with --gantt x.png for a picture"
            )
        return self.built(self.schedule, is_held=is_held)

    def built(self, name: str, *, is_held: bool = True) -> ScheduleSource:
        """Build the schedule `name` with the counts and changes of these options."""
        built = arguments.build_source(name, self.counts_of(name), is_held=is_held)
        longer = built.longer
        return arguments.ScheduleSource(
            self._finished(built.schedule),
            None if longer is None else lambda times: self._finished(longer(times)),
        )

    def counts_of(self, name: str) -> ScheduleCounts:
        """Return the counts and parameters of the schedule `name`."""
        parameters = parse_settings(self.settings or (), arguments.entry_of(name).parameters)
        return replace(self.counts, parameters=parameters)

    def read_plan(self) -> Plan | None:
        """Read the plan, or return None without one.

        Raises:
            InputError: Other options name a schedule too, or the plan's parts do not fit together.
            ProfileError: The file is no plan.
        """
        if self.plan is None:
            return None
        if self != ScheduleOptions(plan=self.plan):
            raise InputError(
                "--plan: got another option of the schedule too, expected only the plan, which has the whole schedule; "
                "leave the option out"
            )
        if self.plan.suffix.lower() in (".html", ".htm"):
            raise InputError(
                f"--plan: got {self.plan}, a page, expected a plan; write it with 'plan ... --out plan.json'"
            )
        plan = io.load_plan(self.plan)
        try:
            plan.run(1)
        except ValueError as error:
            raise InputError(f"{self.plan}: {error}") from error
        return plan

    def schedule_spec(self) -> transforms.ScheduleSpec:
        """Return the specification of the lists of a training run; -m defaults to the number of ranks.

        Raises:
            InputError: The options do not name exactly one schedule.
            ScheduleError: No such schedule, a bad file, or one that cannot run.
        """
        plan = self.read_plan()
        if plan is not None:
            return plan.schedule_spec
        name = self.schedule if self.schedule_file is None else None
        if name is not None and self.counts.num_microbatches is None:
            num_microbatches = (self.counts.num_ranks or 1) * self._pipelines(name)
            return replace(self, counts=replace(self.counts, num_microbatches=num_microbatches)).schedule_spec()
        if name is None or self.delayed_reduce or (entry := arguments.entry_of(name)).is_own:
            loaded = self.load()
            check.require_runnable(loaded)
            return transforms.ScheduleSpec(lists=formats.to_json(loaded))
        counts = self.counts_of(name)
        arguments.require_counted(entry, counts)
        return transforms.ScheduleSpec(
            name=entry.name,
            **values_of(counts),
            recompute=self.recomputed_stages(),
            recompute_when=self.recompute_when or "early",
            width=self.width or 1,
            placement=self.placement or "pipeline",
            step_barrier=self.step_barrier,
        )

    def _pipelines(self, name: str) -> int:
        """Return the number of pipelines that share the micro-batches of the schedule `name`."""
        defaults = {parameter.name: parameter.default for parameter in arguments.entry_of(name).parameters}
        pipelines = (defaults | dict(self.counts_of(name).parameters or {})).get("pipelines")
        return pipelines if isinstance(pipelines, int) else 1

    def _finished(self, schedule: Schedule) -> Schedule:
        """Return `schedule` with copies, placement, delayed Reduces, recomputation and a barrier, as asked."""
        width = self.width or 1
        placed = transforms.place_copies(transforms.replicate(schedule, width), self.placement or "pipeline", width)
        placed = transforms.delay_reduces(placed) if self.delayed_reduce else placed
        stages = self.recomputed_stages()
        if stages is not None:
            placed = transforms.recompute(placed, None if stages == "all" else stages, self.recompute_when or "early")
        return transforms.with_step_barrier(placed) if self.step_barrier else placed

    def recomputed_stages(self) -> tuple[int, ...] | Literal["all"] | None:
        """Return the stages that recompute, or None without recomputation.

        Raises:
            InputError: The option is no list of stages, or missing beside --recompute-when.
        """
        if self.recompute is None:
            if self.recompute_when is not None:
                raise InputError(
                    f"--recompute-when: got {self.recompute_when} without --recompute, expected both; try --recompute "
                    "all"
                )
            return None
        if self.recompute == "all":
            return "all"
        try:
            return tuple(int(text) for text in self.recompute.split(","))
        except ValueError:
            raise InputError(
                f"--recompute: got {self.recompute!r}, expected all, or stages as 0,2; try --recompute all"
            ) from None


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
    values = pairs(",".join(settings), "--set", names, *lists[:1])  # a list takes colons, as its example shows
    return {
        parameter.name: readers[parameter.takes](values[parameter.name], f"--set: {parameter.name}")
        for parameter in parameters
        if parameter.name in values
    }


def schedule_names(text: str) -> tuple[str, ...]:
    """Return the schedules in a list as ``gpipe,Schedule1F1B``, each once, by their own names.

    Raises:
        ScheduleError: A schedule does not exist.
    """
    return tuple(dict.fromkeys(arguments.entry_of(name).name for name in text.split(",") if name))


def options_of_each(names: Sequence[str], options: ScheduleOptions) -> dict[str, ScheduleOptions]:
    """Return for each of the `names` in the catalogue the options that it takes.

    Raises:
        InputError: An option that none of them takes.
        ScheduleError: A schedule does not exist.
    """
    entries, num_chunks = {name: arguments.entry_of(name) for name in names}, options.counts.num_chunks
    settings = [setting for line in options.settings or [] for setting in line.split(",")]
    for setting in settings:
        if not any(_takes(entry, setting) for entry in entries.values()):
            raise InputError(
                f"--set: got {setting}, expected key=value with a key of the schedule (a list as replicas=2:1:1); see "
                "'pipesched list'"
            )
    taken = {name: [setting for setting in settings if _takes(entry, setting)] for name, entry in entries.items()}
    if num_chunks is not None and not any(
        entry.traits.takes_chunks
        or num_chunks == entry.chunks_with(None, parse_settings(taken[name], entry.parameters))
        for name, entry in entries.items()
    ):
        raise InputError(f"-v: got {num_chunks}, expected a schedule that takes chunks; try interleaved")
    without = replace(options.counts, num_chunks=None)
    return {
        name: replace(
            options,
            schedule=name,
            counts=options.counts if entry.traits.takes_chunks else without,
            settings=taken[name],
        )
        for name, entry in entries.items()
    }


def _takes(entry: Entry, setting: str) -> bool:
    return setting.partition("=")[0].strip() in [parameter.name for parameter in entry.parameters]
