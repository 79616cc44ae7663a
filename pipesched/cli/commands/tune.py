"""``pipesched tune``: the best setting for a model."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import pipesched
from pipesched.cli.errors import NEGATIVE, InputError, in_flags
from pipesched.cli.options.machine_options import MachineOptions
from pipesched.cli.options.option_groups import Json, file_option, grouped, out_option
from pipesched.cli.options.torch_options import TrustModel, load_model
from pipesched.cli.options.values import enough
from pipesched.cli.output.notes import device_limit_lines, doubts_of_machine, doubts_of_own_machine
from pipesched.cli.output.output_files import PAGE, TABLE, check_outputs, emit
from pipesched.cli.terminal import complain, print_json, print_result, print_results, progress_bar
from pipesched.executor import LayerSettings, Repetitions
from pipesched.profiles import io, processes
from pipesched.questions import OF_PROCESSES, InputShare, LayerCut, MeasureSettings, TrainSettings, TuneSettings
from pipesched.schedules.common import declared, tuple_of, values_of
from pipesched.schedules.formats import suffix_of
from pipesched.simulator import NetworkOptions
from pipesched.simulator.analysis import TABLE_FORMATS, readable_bytes
from pipesched.simulator.views import FIGURE_SUFFIXES, save_figure
from pipesched.workflows import arguments
from pipesched.workflows.tuning import run_settings

if TYPE_CHECKING:
    from pipesched.profiles.clusters import Cluster
    from pipesched.profiles.costs import Profile
    from pipesched.simulator.search import Setting
    from pipesched.simulator.tuner import Problem
    from pipesched.workflows.simulating import Setup
    from pipesched.workflows.tuning import TuneResult, Verdict

_MOST_SIZES = 8
"""Micro-batch sizes to measure, with linear interpolation between them."""
_PASSES, _REPEATS, _WARMUP = 3, 4, 1
"""Short profiles behind each median, measured runs of a layer in each, and warm-up runs before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedModel:
    """A model or its profile, the cut of its layers, and the network."""

    model: Annotated[
        str,
        typer.Argument(
            metavar="PROFILE|MODEL", help="Measured profile (JSON), or a model that is profiled first, as gpt:layers=8."
        ),
    ]
    partition: LayerCut = None
    input_share: InputShare = None
    network: NetworkOptions = NetworkOptions()  # noqa: RUF009 -- frozen
    trust_model: TrustModel = False

    @property
    def is_file(self) -> bool:
        """Whether a profile is given, and not a model."""
        return io.names_profile(self.model)

    def setup(self, machines: MachineOptions, cluster: Cluster, asked: TuneSettings, runs: MeasureSettings) -> Setup:
        """Return the setup, with a profile that is read or measured.

        Args:
            machines: Options for the machines.
            cluster: The machines, a device for each rank.
            asked: The settings of the search.
            runs: The options of runs.

        Raises:
            InputError: The options contradict each other.
            ProfileError: A file is bad, the model does not exist, or it has fewer layers than stages.
        """
        from pipesched.workflows.simulating import Setup

        if asked.resume is not None and not self.is_file:
            raise InputError(
                f"--resume: got the model {self.model}, which tune would profile again, expected the profile of the "
                "stopped search; try pipesched profile --out first"
            )
        num_devices = len(cluster.devices)
        profile = io.load_profile(self.model) if self.is_file else self._measured(asked, runs, num_devices)
        machines.require_suited(profile)
        if self.trust_model:
            profile = replace(profile, model=io.trusted(profile.model))
        return Setup(profile, cluster, self.network, partition=self.partition, input_share=self.input_share)

    def _measured(self, asked: TuneSettings, runs: MeasureSettings, num_devices: int) -> Profile:
        """Measure the sizes of the space, or a few of them, in short passes, with other cores as busy as in a run.

        Raises:
            ArgumentError: This machine cannot do the runs.
            ProfileError: The model does not exist, fails, or has fewer layers than stages.
        """
        from pipesched.profiles.partitioning import parse_partition
        from pipesched.simulator.search import divisors
        from pipesched.simulator.tuner import AVGPIPE
        from pipesched.workflows.tuning import require_dividing

        model = load_model(self.model)
        partition = self.partition or "balanced"
        assert isinstance(partition, str), "an option is a text"
        parse_partition(partition, (1.0,) * len(model.layers), num_devices)
        counts: Sequence[int] = divisors(asked.batch_size)
        counts_asked = counts if asked.microbatches is None else tuple_of(asked.microbatches)
        require_dividing(counts_asked, asked.batch_size, counts)
        sizes = sorted({asked.batch_size // count for count in counts_asked})
        step = max(1.0, (len(sizes) - 1) / (_MOST_SIZES - 1))
        some = {sizes[round(step * number)] for number in range(min(_MOST_SIZES, len(sizes)))}
        arguments.require_possible(runs)  # before a long measurement; the printed lines have these settings
        with progress_bar(f"profiling {model.name}") as tick:
            return pipesched.profile(
                model,
                sorted(some),
                repeats=_REPEATS,
                warmup=_WARMUP,
                passes=_PASSES,
                companions=processes.num_companions(num_devices, runs.device),
                pipelines=processes.num_sharing(max(tuple_of(asked.pipelines or 1)), runs.device),
                splits=tuple(asked.schedules) != (AVGPIPE,),
                progress=tick,
                **values_of(runs, LayerSettings),
            ).profile


_NOT_TUNED = {"prediction", "averaging"}
"""Options of runs without a meaning for tuned schedules, or for schedules without averaging."""


@dataclass(frozen=True, slots=True)
class CommandLines:
    """Makes the lines, with the options of `runs` that differ from their defaults."""

    problem: Problem
    given: TunedModel
    runs: MeasureSettings

    def __call__(self, setting: Setting) -> dict[str, str]:
        """Return the line that runs `setting` and, if the profile is of a model, the line that trains with it.

        ``-m`` of both counts the micro-batches of all pipelines together.
        """
        size = self.problem.microbatch_size(setting)
        model, schedule = self.problem.profile.model, self._schedule(setting)
        cut = ["--partition", ",".join(map(str, self.problem.partition_of(setting)))]
        share = [] if self.given.input_share is None else ["--input-share", f"{self.given.input_share:g}"]
        profile = ["--profile", self.given.model, *share] if self.given.is_file else []
        sized = ["--microbatch-size", str(size)]
        if io.costs_file_of(model) is not None:
            return {"run": _line("run", *schedule, *profile, *cut, *sized, *self._options(setting, MeasureSettings))}
        batch = ["--batch-size", str(self.problem.batch_size)]
        return {
            "run": _line("run", *schedule, "--model", model, *cut, *sized, *self._options(setting, MeasureSettings)),
            "train": _line("train", model, *schedule, *profile, *cut, *batch, *self._options(setting, TrainSettings)),
        }

    def lines(self, setting: Setting) -> list[str]:
        """Return the same lines, indented for a caption."""
        return [f"    {line}" for line in self(setting).values()]

    def warnings(self) -> list[str]:
        """Return a warning if a file, and not the user, names the code that the lines import."""
        model = self.problem.profile.model
        file = None if io.costs_file_of(model) is not None else io.imports_of(model)
        return (
            [] if file is None else [f"these lines import {model}, which {file} names: run them only if you trust it"]
        )

    def _schedule(self, setting: Setting) -> list[str]:
        simplest = setting.simplest
        words = ["-s", simplest.schedule, "-p", str(setting.num_ranks), "-m", str(setting.num_microbatches)]
        words += [] if setting.num_chunks is None else ["-v", str(setting.num_chunks)]
        words += [word for name, value in simplest.parameters for word in ("--set", f"{name}={value}")]
        words += ["--recompute", "all"] if setting.recomputes else []
        return [*words, *(["--recompute-when", "late"] if setting.recompute_when == "late" else [])]

    def _options(self, setting: Setting, kind: type[MeasureSettings | TrainSettings]) -> list[str]:
        """Return the options of `runs` that `kind` has too, if they differ from their defaults."""
        untold = set(_NOT_TUNED) if setting.num_pipelines == 1 else {"prediction"}
        untold |= set(OF_PROCESSES) if kind is TrainSettings else set()  # it trains in one process
        default, shared = MeasureSettings(), {field.name for field in fields(kind)} - untold
        values = {name: value for name, value in values_of(self.runs).items() if name in shared}
        given = {name: value for name, value in values.items() if value != getattr(default, name)}
        return [word for name, value in given.items() for word in setting_words(name, value)]


def setting_words(name: str, value: object) -> list[str]:
    """Return the words of a command line for a setting of a measured run that is not the default."""
    option = declared(MeasureSettings)[name].option
    return [option] if isinstance(value, bool) else [option, str(value)]


def _line(*words: str) -> str:
    return shlex.join(["pipesched", *words])


NumVerified = Annotated[
    int | None,
    typer.Option(
        help=(
            "Run the best N settings and plain 1F1B here, and compare the times with the prediction; with "
            "--budget: number of settings in the race (default: 4)."
        ),
        min=1,
    ),
]


@grouped
def tune(
    tuned: TunedModel,
    asked: TuneSettings,
    machines: MachineOptions = MachineOptions(),  # noqa: B008 -- frozen
    runs: MeasureSettings = MeasureSettings(),  # noqa: B008
    verify: NumVerified = None,
    plot: Annotated[Path | None, file_option("Draw time and memory over M and N", FIGURE_SUFFIXES)] = None,
    json: Json = False,
    out: Annotated[list[Path] | None, out_option("Write every setting", (*TABLE, PAGE), is_repeatable=True)] = None,
) -> None:
    """Choose micro-batches M, pipelines N and more for a model, a batch and a memory limit (--out: a table or page).

    A model is profiled here first, at the sizes of its possible micro-batches: the medians of three short profiles.
    Counts are lists and ranges: 1,2,4 or 8:64:x2. Batch, micro-batches M and times are per pipeline; N pipelines run at
    once. Several pipelines are averaged elastically, which trains differently. The answer has plain training unless
    --pipelines is given; the best setting with elastic averaging stands beside it. Exits with 1 if nothing fits.
    """
    from pipesched.workflows.tuning import require_same_layers, require_tuning

    journal = None if asked.resume is None else Path(asked.resume)
    check_outputs((plot, FIGURE_SUFFIXES), *((path, (*TABLE, PAGE)) for path in out or ()), journal=journal)
    require_tuning(asked, runs)
    is_run = asked.evaluator == "measure" or verify is not None or asked.budget_s is not None
    if is_run:
        _require_possible(runs)
    meter = processes.LoadMeter()
    cluster = machines.load_first(asked.num_devices, "--ranks", "tune")
    setup = tuned.setup(machines, cluster, asked, runs)
    profile, num_devices, doubts = setup.profile, len(cluster.devices), list[str]()
    if is_run:
        require_same_layers(profile)
        doubts += doubts_of_machine(num_devices, runs, meter)
    doubts += doubts_of_own_machine(profile, machines.machine)
    result = _searched(setup, asked, runs, verify, is_exact=json or any([plot, out, asked.budget_s]))
    commands = CommandLines(result.problem, tuned, runs)
    if plot is not None:
        save_figure(result.plot, plot)
    limit = [*device_limit_lines(machines, cluster, range(num_devices)), *commands.warnings(), *doubts]
    for path in out or ():
        _write(result, limit, commands, path)
    verdict = None if verify is None or asked.budget_s is not None else _verdict(result, verify, runs)
    if json:
        data = _data(result, commands) | ({} if verdict is None else {"verified": verdict.to_dict()})
        print_json("tune", data, [*doubts, *result.notes, *([] if verdict is None else verdict.notes)])
    else:
        print_results(result.tables(asked.top, limit, commands.lines, in_flags))
        if verdict is not None:
            print_result(verdict.table(), verdict.notes)
    if not result.fitting:
        can_recompute = asked.recompute == "no" and not profile.is_recomputed
        complain(_nothing_fits(result, machines.memory_limit, can_recompute=can_recompute))
        raise typer.Exit(NEGATIVE)


def _searched(
    setup: Setup, asked: TuneSettings, runs: MeasureSettings, verify: int | None, *, is_exact: bool
) -> TuneResult:
    """Search, and race the best settings if there is a budget."""
    from pipesched.workflows.tuning import CONTENDERS

    first = asked.top if is_exact else max(asked.top, verify or 1)
    searching = "running the settings" if asked.evaluator == "measure" else "tuning"
    with progress_bar(searching if asked.budget_s is None else "tuning, then racing the best settings") as tick:
        return pipesched.tune(
            setup,
            **values_of(asked) | {"top": first},
            **_how(runs),
            num_contenders=verify or CONTENDERS,
            is_exact=is_exact,
            progress=tick,
        )


def _require_possible(runs: MeasureSettings) -> None:
    """Refuse runs that this machine cannot do."""
    arguments.require_possible(runs)  # loads torch, which a prediction does without
    arguments.require_epsilon((), runs)


def _write(result: TuneResult, notes: Sequence[str], commands: CommandLines, out: Path) -> None:
    """Write every setting, as a page or a table."""
    if suffix_of(out) == PAGE:
        emit(result.page(notes, commands.lines, in_flags), out)
    else:
        rows = _rows_with_plan(result, out) if suffix_of(out) == ".json" else result.to_rows()
        emit(TABLE_FORMATS[suffix_of(out)](rows), out)


def _data(result: TuneResult, commands: CommandLines) -> dict[str, Any]:
    """Return plain data, with the command lines of the answer, and of the best setting with elastic averaging."""
    data, best, averaged = result.to_dict(), result.chosen, result.averaged
    if averaged is not None:
        data["with_elastic_averaging"]["commands"] = commands(averaged.setting)
    return data | {"commands": None if best is None else commands(best.setting)}


def _how(runs: MeasureSettings) -> dict[str, Any]:
    """Return the arguments of the library for runs."""
    return {"run_settings": runs, **values_of(runs, Repetitions)}


def _verdict(result: TuneResult, count: int, runs: MeasureSettings) -> Verdict | None:
    """Run the best settings, and plain 1F1B; return None if nothing fits."""
    if not result.candidates:
        return None
    with progress_bar("running the best settings") as tick:
        return run_settings(result, count, **_how(runs), progress=tick)


def _rows_with_plan(result: TuneResult, out: Path) -> list[dict[str, Any]]:
    """Return the rows of all settings; the row of the answer has its plan, which `run --plan` reads."""
    from json import loads

    from pipesched.profiles.io.plan_json import plan_text

    rows, chosen = result.to_rows(), result.chosen
    if chosen is not None:
        rows[result.outcomes.index(chosen)]["plan"] = loads(plan_text(result.problem.plan_of(chosen), str(out)))
    return rows


def _nothing_fits(result: TuneResult, limit: str | None, *, can_recompute: bool) -> str:
    from pipesched.simulator.search import least

    nearest = least(result.outcomes)
    assert nearest is not None, "some setting has a time, and so a memory"
    assert nearest.held_bytes is not None
    needed = f"{nearest.held_bytes} bytes ({readable_bytes(nearest.held_bytes)})"
    return (
        f"nothing fits into {limit or 'the memory of the devices'}: {nearest.setting} needs the least, {needed}; try "
        f"--memory-limit {enough(nearest.held_bytes)}, {'--recompute both, ' * can_recompute}more --ranks"
    )
