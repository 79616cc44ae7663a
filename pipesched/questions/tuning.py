"""The settings of the search for the best setting of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

from pipesched.questions.searching import Recompute, RecomputeTime, SearchSettings
from pipesched.schedules.common import MAX_NUMBER, Counts, Description, Names

EvaluatorChoice: TypeAlias = Literal["simulate", "avgpipe", "measure", "max_num", "max_size"]
AccountingChoice: TypeAlias = Literal["paper", "consistent"]


@dataclass(frozen=True, kw_only=True)
class TuneSettings(SearchSettings):
    """The settings of `tune`."""

    panel: ClassVar[str] = "Search"

    batch_size: Annotated[int, Description("Samples per batch of each pipeline.", short="-b", least=1, most=MAX_NUMBER)]
    num_devices: Annotated[
        int | None,
        Description(
            "Ranks of the pipeline, one per device (default: all devices of the cluster).",
            option="--ranks",
            short="-p",
            least=1,
            most=MAX_NUMBER,
        ),
    ] = None
    microbatches: Annotated[
        Counts | None,
        Description(
            "Micro-batches M per batch of each pipeline (default: all divisors of the batch that the profile covers). "
            "A run and a training count the micro-batches of all pipelines together.",
            short="-m",
            least=1,
            most=MAX_NUMBER,
        ),
    ] = None
    pipelines: Annotated[
        Counts | None,
        Description(
            "Parallel pipelines N of avgpipe (default: 1 to 4). Elastic averaging of several pipelines changes the "
            "training, so the answer has N = 1 unless `pipelines` is given.",
            short="-n",
            least=1,
            most=256,
        ),
    ] = None
    advances: Annotated[
        Counts,
        Description(
            "Number of forwards that avgpipe runs ahead of 1F1B.", option="--advance", least=0, most=MAX_NUMBER
        ),
    ] = (0, 1, 2, 3, 4)
    schedules: Annotated[
        Names,
        Description(
            "Schedules to try: names, or builders of your own; avgpipe includes 1f1b and 1f1b_afp.",
            option="--schedule",
            short="-s",
        ),
    ] = ("avgpipe",)
    chunks: Annotated[
        Counts, Description("Stages per device of schedules with several.", short="-v", least=1, most=MAX_NUMBER)
    ] = (2,)
    recompute: Recompute = "no"
    recompute_when: RecomputeTime = None
    evaluator: Annotated[
        EvaluatorChoice,
        Description(
            "Evaluator of the settings: our simulator, AvgPipe's equations, a run of each setting on this machine, or "
            "a guideline (most micro-batches, or largest micro-batches)."
        ),
    ] = "simulate"
    accounting: Annotated[
        AccountingChoice, Description("AvgPipe's equations as printed in the paper, or with all terms per iteration.")
    ] = "paper"
    budget_s: Annotated[
        float | None,
        Description(
            "Seconds of a race on this machine: the best settings and plain 1F1B run in turn until one is clearly the "
            "fastest (default: no race).",
            least=0.0,
            most=604_800.0,
        ),
    ] = None
    top: Annotated[
        int,
        Description(
            "Number of the best settings that get a steady-state time.",
            more="The command prints at most this number of settings that fit, and of settings that do not.",
            least=1,
            most=MAX_NUMBER,
            panel="Output",
        ),
    ] = 10
