"""``pipesched simulate``: predicted time and memory of a schedule, and the goodput of a training with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

import pipesched
from pipesched.cli.errors import InputError
from pipesched.cli.options.cost_options import EstimatedCostOptions
from pipesched.cli.options.machine_options import SimulationOptions
from pipesched.cli.options.option_groups import Json, file_option, grouped, out_option
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.options.values import time_s
from pipesched.cli.output.notes import doubts_of_prediction, end_if_over, limit_lines
from pipesched.cli.output.output_files import CSV, TIMELINE, check_outputs, emit, print_answer, write_timeline
from pipesched.cli.terminal import progress_bar, simulating
from pipesched.questions import GoodputQuestion, SimulateSettings
from pipesched.schedules.common import declared, values_of
from pipesched.schedules.formats import suffix_of
from pipesched.simulator import analysis, views

if TYPE_CHECKING:
    from pipesched.workflows.simulating import Goodput, Simulation


_GOODPUT = declared(GoodputQuestion)
_PER_DEVICE = "/device"
_EXAMPLES = {"restart_s": "--restart 120s", "checkpoint_s": "--checkpoint 20s", "num_steps": "--steps 10000"}


@dataclass(frozen=True, slots=True)
class FailureOptions:
    """The rate of failures of a training, and their costs; the options are given together or not at all."""

    panel: ClassVar[str] = "Failures"
    fail_every: Annotated[
        str | None,
        typer.Option(
            help=(
                "Mean time between failures, for a training's goodput and best checkpoint interval: 3h for the whole "
                "job, or 20000h/device."
            )
        ),
    ] = None
    restart_s: Annotated[float | None, _GOODPUT["restart_s"].description] = None
    checkpoint_s: Annotated[float | None, _GOODPUT["checkpoint_s"].description] = None
    num_steps: Annotated[int | None, _GOODPUT["num_steps"].description] = None
    checkpoint_every: Annotated[int | None, _GOODPUT["checkpoint_every"].description] = None

    def require_whole(self) -> None:
        """Refuse some of the options without the others, and an invalid time between failures.

        Raises:
            InputError: An option is missing or invalid.
        """
        given = [name for name, value in values_of(self).items() if value is not None]
        if self.fail_every is None:
            if given:
                option = declared(FailureOptions)[given[0]].option
                raise InputError(f"{option}: got this option without --fail-every, expected both; add --fail-every 3h")
            return
        added = [example for name, example in _EXAMPLES.items() if name not in given]
        if added:
            missing = ", ".join(example.split()[0] for example in added)
            raise InputError(
                f"--fail-every: got this option without {missing}, expected these options too; add {' '.join(added)}"
            )
        self._fail_every_s(self.fail_every)
        for name in given:
            if name in _GOODPUT and (fault := _GOODPUT[name].fault(getattr(self, name))):
                raise InputError(f"{declared(FailureOptions)[name].option}: {fault}")

    def goodput(self, result: Simulation, seed: int) -> Goodput | None:
        """Return the goodput of a training, or None without the options of failures.

        Args:
            result: The simulation of a step.
            seed: Seed of the failures.

        Raises:
            ArgumentError: A number makes no sense.
            SimulationError: A run fails too often to be simulated.
        """
        if self.fail_every is None:
            return None
        num_devices = len(result.timeline.devices) if self.fail_every.strip().endswith(_PER_DEVICE) else 1
        return pipesched.goodput(
            result.step_s,
            fail_every_s=self._fail_every_s(self.fail_every),
            num_devices=num_devices,
            seed=seed,
            **values_of(self),
        )

    @staticmethod
    def _fail_every_s(text: str) -> float:
        seconds = time_s(text.strip().removesuffix(_PER_DEVICE), "--fail-every", "3h, or 20000h/device")
        if not seconds:
            raise InputError(f"--fail-every: got {text.strip()}, expected a time above 0; try --fail-every 3h")
        return seconds


@grouped
def simulate(
    *,
    schedule: ScheduleOptions,
    costs: EstimatedCostOptions,
    failures: FailureOptions,
    simulation: SimulationOptions,
    asked: SimulateSettings,
    timeline: Annotated[Path | None, file_option("Write the Timeline, as --out", TIMELINE)] = None,
    memory: Annotated[Path | None, file_option("Write the memory of every device over time", CSV)] = None,
    json: Json = False,
    out: Annotated[
        list[Path] | None,
        out_option(
            "Write the Timeline (.json, .csv, .parquet), a page to zoom in (.html), or with --fail-every a picture of "
            "goodput (.png, .svg, .pdf); repeatable."
        ),
    ] = None,
) -> None:
    """Predict time, bubbles, idle time by cause and memory; with --fail-every also goodput under failures.

    Exits with 1 if a device runs out of memory.
    """
    failures.require_whole()
    if asked.fit_iteration_s is not None and costs.estimate.settings.fit_factor != 1:
        raise InputError("--fit-iteration: got --fit-factor too, expected only one of them; leave one out")
    pictures = () if failures.fail_every is None else views.FIGURE_SUFFIXES
    check_outputs((timeline, TIMELINE), (memory, CSV), *((path, (*TIMELINE, *pictures)) for path in out or ()))
    source = schedule.source()
    setup = costs.setup(source, simulation)
    with simulating(source.schedule) if asked.num_runs == 1 else progress_bar("simulating") as tick:
        result = pipesched.simulate(source, setup, **values_of(asked), progress=tick or (lambda share: None))  # noqa: ARG005
        data = result.to_dict()  # which works out memory and pace
        goodput = failures.goodput(result, simulation.seed)
    if goodput is not None:
        data["goodput"] = goodput.to_dict()
    notes = doubts_of_prediction(result, costs.machines)
    if goodput is not None and result.steady_s_per_microbatch is None:
        notes.append("goodput: the time of a step is the makespan, because the steady state is unknown")
    said = result.table().noted([*limit_lines(costs.machines, result), *costs.shares(result.schedule), *notes])
    if memory is not None:
        emit(analysis.to_csv(views.memory_table(result.in_flight, result.timeline.memory)), memory)
    if timeline is not None:
        write_timeline(result.timeline, timeline, result.details, said.lines(()))
    for path in out or ():
        if goodput is not None and suffix_of(path) in views.FIGURE_SUFFIXES:
            views.save_figure(lambda: views.goodput_figure(goodput.training, goodput.curve, goodput.intervals), path)
        else:
            write_timeline(result.timeline, path, result.details, said.lines(()))
    print_answer("simulate", data, notes, [said] if goodput is None else [said, goodput.table()], is_json=json)
    end_if_over(result.over)
