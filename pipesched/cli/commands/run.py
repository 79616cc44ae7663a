"""``pipesched run``: execute a schedule with real processes and measure it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import pipesched
from pipesched.cli.errors import InputError
from pipesched.cli.options.cost_options import CostOptions
from pipesched.cli.options.machine_options import SlowOption, with_slow_parts
from pipesched.cli.options.option_groups import Json, file_option, grouped, out_option
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.options.torch_options import ModelChoice, TrustModel, planned_model
from pipesched.cli.output.notes import device_limit_lines, doubts_of_machine, require_fits
from pipesched.cli.output.output_files import JSON, TIMELINE, check_outputs, emit, print_answer, write_timeline
from pipesched.cli.terminal import progress_bar
from pipesched.executor import EmulationSettings, FaultSettings, launch
from pipesched.executor.launch import fork_client
from pipesched.profiles.processes import LoadMeter
from pipesched.questions import CutSettings, MeasureSettings
from pipesched.schedules.common import values_of
from pipesched.simulator import views
from pipesched.workflows import busy_machine, measuring, simulating

if TYPE_CHECKING:
    from pipesched.workflows.arguments import ScheduleSource


@dataclass(frozen=True, kw_only=True)
class EmulatedModel(ModelChoice):
    """The model to run, if costs are not emulated."""

    given: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Model to run, as for 'profile' (default: emulate the costs)."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RunOutputs:
    """The files and the form of the output."""

    job: Annotated[Path | None, file_option("Write only the job (.json), for 'torchrun ... -m pipesched.executor'")] = (
        None
    )
    json: Json = False
    out: Annotated[Path | None, out_option("Write the measured Timeline", TIMELINE)] = None


@grouped
def run(
    *,
    schedule: ScheduleOptions,
    costs: CostOptions,
    options: MeasureSettings,
    emulation: EmulationSettings,
    faults: FaultSettings,
    model: EmulatedModel,
    trust_model: TrustModel = False,
    slow: SlowOption = None,
    outputs: RunOutputs,
) -> None:
    """Run the op lists, one process per rank, and write the measured Timeline (--out).

    Exits with 1 if a device exceeds --memory-limit, and with 3 if a rank fails.
    """
    meter, job = LoadMeter(), outputs.job
    check_outputs((outputs.out, TIMELINE), (job, JSON))
    if job is not None and outputs.out is not None:
        raise InputError(
            "--job: got --out too, expected only one of them; give --out to 'torchrun ... -m pipesched.executor'"
        )
    name = model.name
    plan = schedule.read_plan()
    if plan is not None and (name is not None or not costs.are_given):
        name = planned_model(plan, name, "--model", trusts=trust_model)
    limit = _limit_bytes(costs, name, slow or (), job)
    source = schedule.source()
    loaded, stages = source.schedule, _stages(source, costs, options, name, slow or ())
    asked = values_of(options) | values_of(emulation) | values_of(faults)
    if name is None:
        asked["compression"] = None  # the setup has it
    else:
        asked |= {"profile": costs.profile} | values_of(costs, CutSettings)
    if job is not None:
        emit(launch.job_to_json(measuring.run_job(source, stages, **asked)), job)
        return
    computes = name is not None or emulation.how == "busy"
    notes = doubts_of_machine(loaded.num_ranks, options, meter) if computes else busy_machine(meter.others(), 1)
    measure = pipesched.run  # loads torch, which may be missing, before a process is started
    fork_client.prepare(options.device)
    with progress_bar(f"running {loaded.name}") as tick:
        result = measure(source, stages, **asked, progress=tick)
    notes += result.notes
    judged = device_limit_lines(costs.machines, costs.load_cluster(loaded), loaded.rank_to_device) if limit else []
    measured, *others = result.tables()
    said = [measured.noted([*judged, *costs.shares(loaded), *notes]), *others]
    if outputs.out is not None:
        details = views.RunDetails({} if limit is None else dict.fromkeys(result.timeline.devices, limit))
        write_timeline(result.timeline, outputs.out, details, [line for table in said for line in table.lines(())])
    data = result.to_dict() | {"stage_share": None if costs.uniform is None else float(loaded.stage_share)}
    print_answer("run", data, notes, said, is_json=outputs.json)
    require_fits(result.metrics, limit)


def _limit_bytes(costs: CostOptions, model: str | None, slow: Sequence[str], job: Path | None) -> int | None:
    """Return the memory limit of every device [bytes], or None without one; refuse options that do not apply."""
    if costs.machines.are_given and model is not None:
        raise InputError(
            "--cluster, --link and --nodes: got one of them with --model, expected costs to emulate: the messages of a "
            "model are real; leave it out"
        )
    if slow and model is not None:
        raise InputError(
            "--slow: got this option with --model, expected costs to emulate; try --inject slow:rank=1,factor=1.3"
        )
    limit = costs.machines.limit_bytes()
    if limit is not None and (model is None or job is not None):
        raise InputError(
            "--memory-limit: got this option for emulated ranks or with --job, expected --model without --job; leave "
            "it out, or see 'pipesched simulate'"
        )
    return limit


def _stages(
    source: ScheduleSource, costs: CostOptions, options: MeasureSettings, model: str | None, slow: Sequence[str]
) -> str | simulating.Setup:
    """Return the model to run, or the setup to emulate."""
    if model is not None:
        by_hand = costs.sources.keys() - {"--profile"}
        if by_hand:
            raise InputError(f"--model: got {by_hand.pop()} to emulate too, expected only one of them; leave one out")
        if costs.input_share is not None:
            raise InputError("--input-share: got this option with --model, expected costs to emulate; leave it out")
        return model
    if not costs.are_given:
        raise InputError(
            "run: got neither MODEL nor costs, expected one; try 'run mlp', or --uniform f=10ms,b=20ms to emulate costs"
        )
    is_given = costs.machines.are_given or slow
    cluster = with_slow_parts(costs.load_cluster(source.schedule), slow) if is_given else None
    given = costs.source()
    return simulating.Setup(given, cluster, compression=options.compression, **values_of(costs))
