"""The settings of a measured run, of its verification, and of a change on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

from pipesched.executor import Repetitions, RunSettings
from pipesched.schedules.common import MAX_NUMBER, Description
from pipesched.simulator.analysis import Slowness


@dataclass(frozen=True, kw_only=True)  # without slots, as two of them are joined
class MeasureSettings(RunSettings, Repetitions):
    """The settings of a measured run."""

    panel: ClassVar[str] = "Run"


NumRounds: TypeAlias = Annotated[
    int | None,
    Description(
        "Number of rounds, each of a short profile and runs; gives median errors with intervals.",
        least=2,
        most=MAX_NUMBER,
    ),
]
RoundPrecision: TypeAlias = Annotated[
    float | None,
    Description("Largest drift of the machine that still allows a verdict, with `rounds` (default: 0.05).", least=0.0),
]


@dataclass(frozen=True, kw_only=True)  # without slots, as settings are joined
class RunFacts:
    """Facts about runs that their Timelines lack."""

    panel: ClassVar[str] = "Costs"

    run_partition: Annotated[
        str | Sequence[int] | None,
        Description("Partition of the runs' layers, with a profile: balanced (default), uniform, or 3,3,4."),
    ] = None
    microbatch_size: Annotated[
        int | None,
        Description(
            "Samples per micro-batch of the runs (default: the smallest of the profile).", least=1, most=2**31 - 1
        ),
    ] = None
    warmup: Annotated[
        int,
        Description(
            "Number of first ops of each kind and stage to ignore, if other ops remain.", least=0, most=MAX_NUMBER
        ),
    ] = 1


@dataclass(frozen=True, kw_only=True)
class MessageFacts(RunFacts):
    """Facts about runs without a profile."""

    output_bytes: Annotated[
        int | None, Description("Size of a message if there is no profile: 1e6 or 4MiB.", least=0, most=2**63 - 1)
    ] = None


@dataclass(frozen=True, kw_only=True)
class ImportSettings:
    """The choice of ranges and of a step in the traces of a run."""

    patterns: Annotated[
        Sequence[str],
        Description(
            "Regular expression for names of passes, with groups phase, stage and microbatch (default: known names).",
            option="--pattern",
        ),
    ] = ()
    step: Annotated[
        int | None,
        Description("ProfilerStep to read, or the k-th step from 0 (default: the last whole step).", least=0),
    ] = None
    has_one_clock: Annotated[
        bool, Description("Do not align the clocks of the ranks, because all ran on one host.", option="--same-clock")
    ] = False


@dataclass(frozen=True, kw_only=True)
class WhatIfSettings:
    """The cut, the assumptions and the draws of a prediction of `what_if`."""

    partition: Annotated[
        str | Sequence[int] | None,
        Description("New layers of each stage, with `profile`: balanced, uniform, or 3,3,4."),
    ] = None
    slowness: Annotated[
        Slowness | None,
        Description(
            "Assumed cause of a stage that is slower than its peers, if the run does not show the cause (default: both "
            "in turn)."
        ),
    ] = None
    input_share: Annotated[
        float,
        Description("Share of B spent on I, if neither the runs nor a profile give it.", least=0.0, most=1.0),
    ] = 0.5
    draws: Annotated[
        int,
        Description(
            "Number of predictions with seconds drawn from the measured seconds, for the interval.",
            least=1,
            most=MAX_NUMBER,
        ),
    ] = 100
    seed: Annotated[int, Description("Seed of the draws.", least=0, most=2**63 - 1)] = 0
