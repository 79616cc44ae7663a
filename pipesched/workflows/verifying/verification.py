"""Profile a model, predict schedules of it, run them, and compare prediction and measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

from pipesched.executor import RunSettings
from pipesched.profiles.costs import Profile
from pipesched.profiles.models import Model
from pipesched.schedules.builders import ParameterValue
from pipesched.workflows import (
    ArgumentError,
    is_rank,
    require_at_least,
    require_callable,
    require_names,
    require_number,
)
from pipesched.workflows.arguments import (
    ClusterArgument,
    ModelArgument,
    PartitionArgument,
    ProfileArgument,
    RunKeywords,
    ScheduleArgument,
    ScheduleSource,
    name_for_processes,
    named_schedule,
    partition_text,
    read_model_argument,
    read_schedule_argument,
    read_settings,
    require_epsilon,
    require_followed,
    require_possible,
)
from pipesched.workflows.simulating import Setup
from pipesched.workflows.verifying.round_verification import verify_in_rounds
from pipesched.workflows.verifying.schedule_verification import profile_for_runs, require_verifiable, verify_source
from pipesched.workflows.verifying.verified_rounds import PRECISION, RoundsVerification
from pipesched.workflows.verifying.verified_schedule import Verification


def verify(
    model: ModelArgument,
    schedules: Sequence[ScheduleArgument] = ("gpipe", "1f1b"),
    *,
    num_ranks: int | None = None,
    num_microbatches: int | None = None,
    num_chunks: int | None = None,
    parameters: Mapping[str, ParameterValue] | None = None,
    microbatch_size: int = 1,
    partition: PartitionArgument | None = None,
    profile: ProfileArgument | None = None,
    cluster: ClusterArgument = None,
    iterations: int = 5,
    warmup: int = 1,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    **keywords: Unpack[RunKeywords],
) -> Verification:
    """Profile a model, predict schedules of it and run them, and compare times, memory and losses.

    Args:
        model: A name as `profile` takes it, or a Model made from one; under torchrun any Model.
        schedules: Each as `simulate` takes one.
        num_ranks: Ranks of the schedules given by name.
        num_microbatches: Micro-batches of the schedules given by name.
        num_chunks: Stages per rank of the schedules given by name that take chunks.
        parameters: Parameters of the schedules given by name that have them.
        microbatch_size: Samples of a micro-batch.
        partition: ``balanced`` (None), ``uniform``, or layers per stage as in ``3,3,4`` or in a list.
        profile: Profile of the model; None: it is measured first, while other cores are as busy as in a run.
        cluster: Machines of the prediction; None: equal devices whose links take no time.
        iterations: Measured runs of the lists, of which the median counts.
        warmup: Runs before them.
        progress: Receives the finished fraction now and then.
        keywords: Settings of the runs: the fields of `RunSettings`.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        NotRunnableError: Lists cannot run to their end.
        ScheduleError: No such schedule, bad counts, or a bad file.
        ProfileError: The model does not exist, the partition does not fit, or a file is bad.
        RankFailed: A rank failed, died or hung; with rank, op and micro-batch. All others are ended.
    """
    asked = _Asked.read(
        model, schedules, num_ranks, num_microbatches, num_chunks, parameters, microbatch_size, partition, cluster,
        iterations, warmup, progress, keywords,
    )  # fmt: skip
    if profile is None and is_rank():
        raise ArgumentError(
            "profile: got none under torchrun, where every process would measure its own, expected one for all; "
            "try a file that `pipesched.profile(..).save` has written"
        )
    num_busy = max(source.schedule.num_ranks for source in asked.sources)
    layers = profile_for_runs(asked.model, asked.microbatch_size, num_busy, profile, asked.settings)
    verified = []
    for index, source in enumerate(asked.sources):

        def tick(fraction: float, index: int = index) -> None:
            progress((index + fraction) / len(asked.sources))

        verified.append(verify_source(source, model, asked.setup(layers, source), asked.settings, tick, **asked.counts))
    return Verification(tuple(verified), layers)


def verify_rounds(
    model: ModelArgument,
    schedules: Sequence[ScheduleArgument] = ("gpipe", "1f1b"),
    rounds: int = 5,
    *,
    num_ranks: int | None = None,
    num_microbatches: int | None = None,
    num_chunks: int | None = None,
    parameters: Mapping[str, ParameterValue] | None = None,
    microbatch_size: int = 1,
    partition: PartitionArgument | None = None,
    cluster: ClusterArgument = None,
    iterations: int = 3,
    warmup: int = 1,
    precision: float = PRECISION,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    **keywords: Unpack[RunKeywords],
) -> RoundsVerification:
    """Profile a model and run schedules of it in turn, and report the error of predictions with its uncertainty.

    Args:
        model: The model, as `verify` takes it; the arguments not listed here are as in `verify` too.
        schedules: Each as `simulate` takes one.
        rounds: Rounds of a profile and runs, at least 2.
        num_ranks: Ranks of the schedules given by name.
        num_microbatches: Micro-batches of the schedules given by name.
        num_chunks: Stages per rank of the schedules given by name that take chunks.
        parameters: Parameters of the schedules given by name that have them.
        microbatch_size: Samples of a micro-batch.
        partition: ``balanced`` (None) by the first profile, ``uniform``, or layers per stage as in ``3,3,4``.
        cluster: Machines of the prediction; None: equal devices whose links take no time.
        iterations: Measured runs of the lists in a round, of which the median counts.
        warmup: Runs before them.
        precision: Largest drift of the machine, as a share, for a verdict on the profile.
        progress: Receives the finished fraction now and then.
        keywords: Settings of the runs: the fields of `RunSettings`.

    Raises:
        As `verify` does.
    """
    rounds = require_at_least("rounds", rounds, 2)
    require_number("precision", precision)
    asked = _Asked.read(
        model, schedules, num_ranks, num_microbatches, num_chunks, parameters, microbatch_size, partition, cluster,
        iterations, warmup, progress, keywords,
    )  # fmt: skip
    if is_rank():
        raise ArgumentError(
            "rounds: got them under torchrun, where every process would profile for itself, expected processes of our "
            "own; start it without torchrun"
        )
    return verify_in_rounds(
        asked.sources, asked.model, asked.name, asked.microbatch_size, asked.setup, asked.settings, rounds,
        progress, precision=precision, **asked.counts,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments of `verify`: the schedules, the model and the settings of the runs.

    Attributes:
        name: Name of the model, for the processes that run it.
        counts: Numbers of iterations: fields of `Measure`.
    """

    model: Model
    name: str
    settings: RunSettings
    sources: tuple[ScheduleSource, ...]
    microbatch_size: int
    partition: str | None
    cluster: ClusterArgument
    counts: Mapping[str, int]

    @staticmethod
    def read(
        model: ModelArgument,
        schedules: Sequence[ScheduleArgument],
        num_ranks: int | None,
        num_microbatches: int | None,
        num_chunks: int | None,
        parameters: Mapping[str, ParameterValue] | None,
        microbatch_size: int,
        given_partition: PartitionArgument | None,
        cluster: ClusterArgument,
        iterations: int,
        warmup: int,
        progress: Callable[[float], None],
        keywords: RunKeywords,
    ) -> _Asked:
        """Read the arguments; refuse, before any measurement, arguments that would fail after it."""
        schedules = require_names("schedules", schedules)
        require_callable("progress", progress)
        partition = partition_text(given_partition)
        settings = read_settings(keywords)
        microbatch_size = require_at_least("microbatch_size", microbatch_size, 1)
        counts = {
            "iterations": require_at_least("iterations", iterations, 1),
            "warmup": require_at_least("warmup", warmup, 0),
        }
        sources = tuple(
            read_schedule_argument(
                schedule,
                num_ranks=num_ranks,
                num_microbatches=num_microbatches,
                num_chunks=num_chunks,
                parameters=parameters,
            )
            if named_schedule(schedule) is not None
            else read_schedule_argument(schedule)
            for schedule in schedules
        )
        if not sources:
            raise ArgumentError("schedules: got none, expected at least one; try ['gpipe', '1f1b']")
        if all(source.schedule.origin is not None for source in sources):
            require_followed({source.schedule.name: source.schedule.traits for source in sources}, settings)
        require_possible(settings)
        require_epsilon([source.schedule.traits for source in sources], settings)
        built, name = read_model_argument(model), name_for_processes(model)
        require_verifiable([source.schedule for source in sources], built, partition, cluster)
        return _Asked(built, name, settings, sources, microbatch_size, partition, cluster, counts)

    def setup(self, profile: Profile, source: ScheduleSource) -> Setup:  # noqa: ARG002 -- the same for all
        """Return the setup of a prediction from `profile`."""
        return Setup(
            costs=profile,
            cluster=self.cluster,
            microbatch_size=self.microbatch_size,
            partition=self.partition or "balanced",
        )
