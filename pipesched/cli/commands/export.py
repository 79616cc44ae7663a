"""``pipesched export``: a plan, or any setting, for another trainer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.common_options import Json, out_option
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.output.output_files import check_outputs, emit
from pipesched.cli.terminal import print_json
from pipesched.workflows import ArgumentError, TrainerName


@grouped
def export(
    trainer: Annotated[TrainerName, typer.Argument(help="Who trains: torchtitan, megatron or deepspeed.")],
    schedule: ScheduleOptions,
    partition: Annotated[
        str | None,
        typer.Option(help="Layers of each stage: 3,3,4, or Megatron-LM's Ettt|ttt|tttL; a plan has its own."),
    ] = None,
    microbatch_size: Annotated[int | None, typer.Option(help="Samples; a plan says them.", min=1)] = None,
    json: Json = False,
    out: Annotated[Path | None, out_option("Write it: a script of bash, or DeepSpeed's .json.")] = None,
) -> None:
    """Say a plan (--plan) or a schedule by name in another trainer's flags or configuration, or why that cannot be.

    Megatron-LM and torchtitan take an array of bash, DeepSpeed takes JSON.
    """
    from pipesched.workflows.exporting import PipelineSetting, export_setting

    check_outputs((out, ()))
    plan = schedule.read_plan()
    given = {"--partition": partition, "--microbatch-size": microbatch_size}
    wrong = [option for option, value in given.items() if (value is None) == (plan is None)]
    if wrong and plan is None and schedule.schedule is not None:
        _require_told(trainer, schedule.schedule)
    if wrong:
        got, expected, advice = ("none", "it", "try --partition 3,3,4 --microbatch-size 2, or --plan")
        if plan is not None:
            got, expected, advice = ("it beside --plan", "none", "leave it out")
        raise InputError(f"{wrong[0]}: got {got}, expected {expected}; {advice}")
    if plan is not None:
        text = export_setting(plan, trainer)
    else:
        schedule.load()  # refuses what is missing
        assert partition is not None, "as just asked"
        assert microbatch_size is not None, "as just asked"
        setting = PipelineSetting(
            schedule_spec=schedule.schedule_spec(),
            partition=_layers(partition),
            microbatch_size=microbatch_size,
        )
        text = export_setting(setting, trainer)
    if out is not None:
        emit(text, out)
    if json:
        print_json("export", {"trainer": trainer, "text": text})
    elif out is None:
        emit(text, None)


def _require_told(trainer: TrainerName, name: str) -> None:
    """Refuse a schedule that the trainer cannot be told of, whatever else is said."""
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
