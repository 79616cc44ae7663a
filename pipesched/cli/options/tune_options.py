"""Options of ``pipesched tune``: the settings that the tuner may choose from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import typer

from pipesched.cli.errors import InputError, NotThereError
from pipesched.cli.options.count_list import counts
from pipesched.cli.options.machine_options import MachineOptions
from pipesched.cli.options.run_options import RunOptions
from pipesched.cli.options.schedule_list import schedule_names
from pipesched.cli.options.torch_options import load_model
from pipesched.questions import InputShare
from pipesched.schedules.common import MAX_NUMBER
from pipesched.simulator import NetworkOptions

if TYPE_CHECKING:
    from pipesched.profiles.costs import Profile
    from pipesched.simulator.search import Runner
    from pipesched.simulator.tuner import Problem, Space

_MOST_SIZES = 8
"""Micro-batch sizes to measure, with linear interpolation between them."""


@dataclass(frozen=True, slots=True)
class ProblemOptions:
    """Model, batch and number of devices."""

    panel: ClassVar[str] = "Search"
    model: Annotated[
        str,
        typer.Argument(
            metavar="PROFILE|MODEL", help="Measured profile (JSON), or a model that is profiled first, as gpt:layers=8."
        ),
    ]
    batch_size: Annotated[
        int, typer.Option("--batch-size", "-b", help="Samples per batch of each pipeline.", min=1, max=MAX_NUMBER)
    ]
    devices: Annotated[int, typer.Option("--ranks", "-p", help="Ranks of the pipeline, a device each.", min=1)]
    partition: Annotated[
        str | None,
        typer.Option(
            help="Cut of the layers into stages: balanced (the fastest cut found that fits; default), uniform, counts "
            "as 3,3,4, or Megatron-LM's layout, Ettt|tttL."
        ),
    ] = None
    input_share: InputShare = None
    network: NetworkOptions = NetworkOptions()  # noqa: RUF009 -- frozen

    @property
    def is_file(self) -> bool:
        """Whether a profile is given, and not a model."""
        from pipesched.profiles.io import names_profile

        return names_profile(self.model)

    def load(self, machines: MachineOptions, space: SpaceOptions, runs: RunOptions) -> Problem:
        """Read the profile, or measure one, and take the requested number of machines.

        Raises:
            InputError: The options contradict each other.
            ProfileError: A file is bad, the model does not exist, or it has fewer layers than stages.
        """
        from pipesched.profiles.clusters import first_devices
        from pipesched.profiles.partitioning import parse_partition
        from pipesched.simulator.tuner import Problem
        from pipesched.workflows.arguments import read_profile_argument

        cluster = first_devices(machines.load(self.devices, f"--ranks {self.devices}"), self.devices)
        profile = read_profile_argument(self.model if self.is_file else self._measured(space, runs), self.input_share)
        machines.require_judged_profile(profile)
        machines.require_gpus(profile)
        parse_partition(self.partition or "balanced", (1.0,) * len(profile.layers), self.devices)
        return Problem(profile, self.batch_size, cluster, self.partition, self.network)

    def _measured(self, space: SpaceOptions, runs: RunOptions) -> Profile:
        """Measure the micro-batch sizes of the space, or a few from the smallest to the largest."""
        from pipesched.profiles.partitioning import parse_partition
        from pipesched.simulator.search import divisors
        from pipesched.simulator.tuner import AVGPIPE
        from pipesched.workflows.tuning import require_dividing

        model = load_model(self.model)
        parse_partition(self.partition or "balanced", (1.0,) * len(model.layers), self.devices)
        counts = divisors(self.batch_size)
        counts_asked = space.given_microbatches() or counts
        require_dividing(counts_asked, self.batch_size, counts)
        sizes = sorted({self.batch_size // count for count in counts_asked})
        step = max(1.0, (len(sizes) - 1) / (_MOST_SIZES - 1))
        some = {sizes[round(step * number)] for number in range(min(_MOST_SIZES, len(sizes)))}
        runs.require_possible()
        return runs.profile(
            model,
            sorted(some),
            self.devices,
            splits=space.schedule != AVGPIPE,
            num_pipelines=max(space.given_pipelines(), default=1),
        )


@dataclass(frozen=True, slots=True)
class SpaceOptions:
    """Options for the settings to try."""

    panel: ClassVar[str] = "Search"
    microbatches: Annotated[
        str | None,
        typer.Option(
            "--microbatches",
            "-m",
            help="Micro-batches M per batch of each pipeline, as 1,2,4-8 (default: all divisors of the batch). -m of "
            "'run' and 'train' counts the micro-batches of all pipelines.",
        ),
    ] = None
    pipelines: Annotated[
        str | None,
        typer.Option(
            "--pipelines",
            "-n",
            help="Parallel pipelines N of avgpipe (default: 1-4). Above 1 pipelines are averaged elastically, which is "
            "another training; the answer has N = 1 unless -n is given.",
        ),
    ] = None
    advance: Annotated[str, typer.Option(help="Forwards of avgpipe ahead of 1F1B.")] = "0-4"
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule",
            "-s",
            help="Schedules to try: names, or builders of your own; avgpipe includes 1f1b and 1f1b_afp.",
        ),
    ] = "avgpipe"
    chunks: Annotated[str, typer.Option("--chunks", "-v", help="Stages per device of schedules with several.")] = "2"
    recompute: Annotated[
        Literal["no", "yes", "both"], typer.Option(help="Recompute activations from the input of each stage.")
    ] = "no"

    def load(self, problem: Problem) -> Space:
        """Return the search space.

        Raises:
            InputError: A number is invalid, with the nearest valid one.
            ScheduleError: A schedule does not exist.
        """
        from pipesched.simulator.tuner import Space
        from pipesched.workflows.tuning import covered_microbatches

        return Space(
            microbatches=covered_microbatches(problem, self.given_microbatches()),
            pipelines=self.given_pipelines() or (1, 2, 3, 4),
            advances=counts(self.advance, "--advance", 0),
            schedules=self.schedules(),
            chunks=counts(self.chunks, "--chunks", 1),
            recomputes={"no": (False,), "yes": (True,), "both": (False, True)}[self.recompute],
        )

    def schedules(self) -> tuple[str, ...]:
        """Return the names of the schedules to choose from, as a search knows them.

        Raises:
            InputError: There is none, or one steps without a flush.
            ScheduleError: A schedule does not exist.
        """
        from pipesched.workflows import ArgumentError
        from pipesched.workflows.tuning import tunable_schedules

        names = schedule_names(self.schedule)
        if not names:
            raise InputError(f"--schedule: got {self.schedule!r}, expected names; try avgpipe,zb_h1")
        try:
            return tunable_schedules(names)
        except ArgumentError as error:
            raise InputError(f"--schedule{str(error).removeprefix('schedules')}") from error

    def given_pipelines(self) -> tuple[int, ...]:
        """Return the given numbers of pipelines; empty if the tuner chooses."""
        return () if self.pipelines is None else counts(self.pipelines, "--pipelines", 1, 256)

    def given_microbatches(self) -> tuple[int, ...] | None:
        """Return the given numbers of micro-batches; None for all divisors of the batch."""
        return None if self.microbatches is None else counts(self.microbatches, "--microbatches", 1)


@dataclass(frozen=True, slots=True)
class Method:
    """The evaluator of settings, and its machines; the attributes are the command's options."""

    evaluator: str
    workers: int | None
    ray: str | None
    resume: Path | None

    def require_possible(self, problem: ProblemOptions) -> None:
        """Refuse options that contradict each other.

        Raises:
            InputError: The options contradict each other.
        """
        if self.resume is not None and self.evaluator == "avgpipe":
            raise InputError("--resume: got it with --evaluator avgpipe, whose equations take no time; leave it out")
        if self.resume is not None and not problem.is_file:
            raise InputError(
                f"--resume: got it with {problem.model}, which would be profiled anew, expected the same profile as "
                "before; try pipesched profile --out first"
            )
        for option, given in (("--workers", self.workers), ("--ray", self.ray)):
            if given is not None and self.evaluator == "measure":
                raise InputError(f"{option}: got it with --evaluator measure, which runs one setting after the other")
        if self.workers is not None and self.ray is not None:
            raise InputError("--ray: got --workers too, expected one of them: a cluster has its own; leave one out")

    def runner(self) -> Runner | None:
        """Return the function that evaluates settings on the given Ray cluster, or None for this machine.

        Raises:
            NotThereError: Ray is not installed, or the cluster does not exist.
        """
        return ray_runner(self.ray)


def ray_runner(address: str | None) -> Runner | None:
    """Return the function that evaluates settings on the Ray cluster of this address, or None without an address.

    Raises:
        NotThereError: Ray is not installed, or the cluster does not exist.
    """
    if address is None:
        return None
    from pipesched.simulator import SimulationError
    from pipesched.simulator.search import make_ray_runner

    try:
        return make_ray_runner(address)
    except SimulationError as error:
        raise NotThereError(str(error)) from error
