"""``pipesched export``: a plan, or any setting, for another trainer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.common_options import Json, out_option
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.output.output_files import check_outputs, emit
from pipesched.cli.terminal import print_json
from pipesched.questions import TrainerName
from pipesched.workflows import ArgumentError

if TYPE_CHECKING:
    from pipesched.workflows.exporting import PipelineSetting


@grouped
def export(
    trainer: Annotated[TrainerName, typer.Argument(help="Trainer: torchtitan, megatron or deepspeed.")],
    schedule: ScheduleOptions,
    partition: Annotated[
        str | None,
        typer.Option(help="Layers of each stage: 3,3,4, or Megatron-LM's Ettt|ttt|tttL (default: the plan's)."),
    ] = None,
    microbatch_size: Annotated[
        int | None, typer.Option(help="Samples per micro-batch (default: the plan's).", min=1)
    ] = None,
    json: Json = False,
    out: Annotated[Path | None, out_option("Write the export: a script of bash, or DeepSpeed's .json.")] = None,
) -> None:
    """Export a plan or schedule as flags or configuration for Megatron-LM, torchtitan or DeepSpeed.

    Megatron-LM and torchtitan take an array of bash, DeepSpeed takes JSON. An error names a part of the setting that
    the trainer cannot express.
    """
    from pipesched.workflows.exporting import export_setting

    check_outputs((out, ()))
    if schedule.plan is None:
        text = export_setting(_setting(trainer, schedule, partition, microbatch_size), trainer)
    elif microbatch_size is not None:
        raise InputError("--microbatch-size: got it beside --plan, expected none; leave it out")
    else:
        plan = replace(schedule, placement=None, recompute=None).read_plan()
        assert plan is not None, "it is given"
        text = export_setting(
            plan, trainer, placement=schedule.placement, partition=partition, recompute=schedule.recomputed_stages()
        )
    if out is not None:
        emit(text, out)
    if json:
        print_json("export", {"trainer": trainer, "text": text})
    elif out is None:
        emit(text, None)


def _setting(
    trainer: TrainerName, schedule: ScheduleOptions, partition: str | None, microbatch_size: int | None
) -> PipelineSetting:
    """Return the setting of a schedule by name, or of lists."""
    from pipesched.workflows.exporting import PipelineSetting

    given = {"--partition": partition, "--microbatch-size": microbatch_size}
    wrong = [option for option, value in given.items() if value is None]
    if wrong and schedule.schedule is not None:
        _require_told(trainer, schedule.schedule)
    if partition is None or microbatch_size is None:
        raise InputError(f"{wrong[0]}: got none, expected it; try --partition 3,3,4 --microbatch-size 2, or --plan")
    schedule.load()  # refuses missing options
    return PipelineSetting(
        schedule_spec=schedule.schedule_spec(), partition=_layers(partition), microbatch_size=microbatch_size
    )


def _require_told(trainer: TrainerName, name: str) -> None:
    """Refuse a schedule that the trainer cannot express, whatever the other options."""
    from pipesched.schedules import ScheduleError
    from pipesched.workflows.exporting import PipelineSetting, export_setting

    try:
        schedule_spec = ScheduleOptions(schedule=name, stages=2, microbatches=4).schedule_spec()
        setting = PipelineSetting(schedule_spec=schedule_spec, partition=(), microbatch_size=1)
        export_setting(replace(setting, partition=(2,) * setting.lists.num_stages), trainer)
    except (ArgumentError, ScheduleError) as error:
        if str(error).startswith("schedule: got"):
            raise


def _layers(partition: str) -> tuple[int, ...]:
    from pipesched.profiles import ProfileError
    from pipesched.profiles.partitioning import stage_sizes

    try:
        return tuple(stage_sizes(partition))
    except ProfileError as error:
        raise InputError(f"--{error}") from None
