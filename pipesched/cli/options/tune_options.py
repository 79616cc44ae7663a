"""What the tuner may choose from, as options say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.flows.run_jobs import RunOptions
from pipesched.cli.options.count_list import counts
from pipesched.cli.options.machine_options import MachineOptions
from pipesched.cli.options.schedule_list import schedule_names
from pipesched.cli.options.torch_options import load_model

if TYPE_CHECKING:
    from pipesched.profiles.costs import Profile
    from pipesched.simulator.tuner import Problem, Space

_MOST_SIZES = 8
"""Micro-batches to measure; between them there are straight lines."""


@dataclass(frozen=True, slots=True)
class ProblemOptions:
    """Model, batch and number of devices."""

    model: Annotated[
        str,
        typer.Argument(
            metavar="PROFILE|MODEL", help="Measured profile (JSON), or a model that is profiled first, as gpt:layers=8."
        ),
    ]
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", help="Samples in a batch, of each pipeline.", min=1)]
    devices: Annotated[int, typer.Option("--devices", "-p", help="Devices: stages of the pipeline.", min=1)]
    partition: Annotated[str, typer.Option(help="Layers to stages: balanced, uniform, or counts as 3,3,4.")] = (
        "balanced"
    )

    @property
    def is_file(self) -> bool:
        """Whether a profile is given, and not a model."""
        return Path(self.model).suffix == ".json" or Path(self.model).is_file()

    def load(self, machines: MachineOptions, space: SpaceOptions, runs: RunOptions) -> Problem:
        """Read the profile, or measure one, and take as many of the machines as are asked for.

        Raises:
            InputError: The options contradict each other.
            ProfileError: A file is bad, there is no such model, or it cannot be cut into so many stages.
        """
        from pipesched.profiles.io import load_profile
        from pipesched.profiles.partitioning import parse_partition
        from pipesched.simulator.tuner import Problem

        cluster = machines.load(self.devices, f"--devices {self.devices}")
        cluster = replace(cluster, devices=cluster.devices[: self.devices])
        profile = load_profile(Path(self.model)) if self.is_file else self._measured(space, runs)
        machines.require_judged_profile(profile)
        parse_partition(self.partition, (1.0,) * len(profile.layers), self.devices)
        return Problem(profile, self.batch_size, cluster, self.partition)

    def _measured(self, space: SpaceOptions, runs: RunOptions) -> Profile:
        """Measure the micro-batches that the space may have, or some from the smallest to the largest."""
        from pipesched.profiles.partitioning import parse_partition
        from pipesched.simulator.tuner import AVGPIPE, divisors

        model = load_model(self.model)
        parse_partition(self.partition, (1.0,) * len(model.layers), self.devices)
        there = divisors(self.batch_size)
        counts_asked = space.given_microbatches(self.batch_size, there) or there
        sizes = sorted({self.batch_size // count for count in counts_asked})
        step = max(1.0, (len(sizes) - 1) / (_MOST_SIZES - 1))
        some = {sizes[round(step * number)] for number in range(min(_MOST_SIZES, len(sizes)))}
        runs.require_possible()
        return runs.profile(model, sorted(some), self.devices, splits=space.schedule != AVGPIPE)


@dataclass(frozen=True, slots=True)
class SpaceOptions:
    """What to try."""

    microbatches: Annotated[
        str | None,
        typer.Option(
            "--microbatches",
            "-m",
            help="M of each pipeline's batch, as 1,2,4-8; unless given, all that divide it. -m of 'run' and 'train' "
            "counts those of all pipelines together.",
        ),
    ] = None
    pipelines: Annotated[
        str | None,
        typer.Option(
            "--pipelines",
            "-n",
            help="Parallel pipelines N of avgpipe. Above 1 they are averaged elastically, which is another training: "
            "unless given, 1-4 are tried, and the answer is one that trains as plain training does.",
        ),
    ] = None
    advance: Annotated[str, typer.Option(help="How far ahead of 1F1B avgpipe's forwards may run.")] = "0-4"
    schedule: Annotated[
        str, typer.Option("--schedule", "-s", help="Names, as avgpipe,zb_h1; avgpipe has 1f1b and 1f1b_afp in it.")
    ] = "avgpipe"
    chunks: Annotated[str, typer.Option("--chunks", "-v", help="Stages per device, where a schedule takes them.")] = "2"
    recompute: Annotated[Literal["no", "yes", "both"], typer.Option(help="Keep only the input of each stage.")] = "no"

    def load(self, problem: Problem) -> Space:
        """Return what there is to choose from.

        Raises:
            InputError: A number cannot be, with the nearest that can.
            ScheduleError: There is no such schedule.
        """
        from pipesched.schedules.builders import find
        from pipesched.simulator.tuner import Space

        names = schedule_names(self.schedule)
        if not names:
            raise InputError(f"--schedule: got {self.schedule!r}, expected names; try avgpipe,zb_h1")
        for name in names:
            if find(name).traits.is_asynchronous:
                raise InputError(
                    f"--schedule: got {name}, which steps without a flush, expected schedules that train batch by "
                    "batch; try avgpipe,zb_h1"
                )
        return Space(
            microbatches=self._microbatches(problem),
            pipelines=counts("1-4" if self.pipelines is None else self.pipelines, "--pipelines", 1, 256),
            advances=counts(self.advance, "--advance", 0),
            schedules=names,
            chunks=counts(self.chunks, "--chunks", 1),
            recomputes={"no": (False,), "yes": (True,), "both": (False, True)}[self.recompute],
        )

    def _microbatches(self, problem: Problem) -> tuple[int, ...]:
        from pipesched.simulator.tuner import divisors

        size = problem.batch_size
        covered = [m for m in divisors(size) if problem.covers(m)]
        if not covered:
            raise InputError(
                f"--batch-size: got {size}, expected a multiple of a micro-batch that {_covered(problem.profile)}; "
                f"try {_near_batch(problem)}, or profile the model again with other sizes"
            )
        given = self.given_microbatches(size, covered)
        if given is None:
            return tuple(covered)
        for m in given:
            if m not in covered:
                raise InputError(
                    f"--microbatches: got {m} in a batch of {size}, so {size // m} samples in each, expected a size "
                    f"that {_covered(problem.profile)}; try --microbatches {_nearest(m, covered)}"
                )
        return given

    def given_microbatches(self, batch_size: int, there: Sequence[int]) -> tuple[int, ...] | None:
        """Return the numbers asked for; None if all that divide the batch.

        Args:
            there: Numbers that would do.

        Raises:
            InputError: One does not divide it.
        """
        if self.microbatches is None:
            return None
        given = counts(self.microbatches, "--microbatches", 1)
        for m in given:
            if batch_size % m:
                raise InputError(
                    f"--microbatches: got {m}, expected what divides the batch of {batch_size}; "
                    f"try --microbatches {_nearest(m, there)}"
                )
        return given


def _nearest(wanted: int, there: Sequence[int]) -> str:
    return " or ".join(map(str, sorted(sorted(there, key=lambda each: abs(each - wanted))[:2])))


def _covered(profile: Profile) -> str:
    sizes = profile.microbatch_sizes
    return f"the profile covers, {sizes[0]} to {sizes[-1]}"


def _near_batch(problem: Problem) -> int:
    """Return the nearest batch that can be cut into micro-batches that the profile covers."""
    from pipesched.simulator.tuner import divisors

    size = problem.batch_size
    near = (
        each for step in range(size + problem.profile.microbatch_sizes[0] + 1) for each in (size - step, size + step)
    )
    return next(
        each for each in near if each > 0 and any(replace(problem, batch_size=each).covers(m) for m in divisors(each))
    )
