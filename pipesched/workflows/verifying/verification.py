"""Profile a model, predict schedules of it, run them, and compare prediction and measurement, once or in rounds.

In rounds, profiles and runs take turns, with a yardstick between them, so that slow drift cancels:

    yardstick  profile  yardstick  runs  yardstick  profile  yardstick  runs  yardstick  profile  yardstick
                  └───────── mean ─────────────────────┘
                        is compared with the runs

A machine that gets slower or faster at a steady pace is as fast in the runs as in the mean of the profiles around them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

from pipesched.executor import ExecutionError, LayerSettings
from pipesched.profiles import ProfileError, measuring
from pipesched.profiles.costs import Profile, median_profile
from pipesched.profiles.models import Model
from pipesched.profiles.partitioning import parse_partition
from pipesched.profiles.processes import num_companions, num_cores
from pipesched.questions import CutSettings, MeasureSettings, NumRounds, OnShare, RoundPrecision, unheard
from pipesched.schedules import ScheduleError
from pipesched.schedules.check import require_runnable
from pipesched.schedules.common import values_of
from pipesched.simulator import SimulationError
from pipesched.workflows import ArgumentError, asks, is_rank, require_callable, require_names, shares_of_steps
from pipesched.workflows.arguments import (
    ClusterArgument,
    ListsArgument,
    ModelArgument,
    ProfileArgument,
    ScheduleSource,
    as_clipped,
    as_tied,
    name_for_processes,
    read_cluster_argument,
    read_lists_argument,
    read_model_argument,
    read_profile_of,
    require_epsilon,
    require_followed,
    require_possible,
)
from pipesched.workflows.measuring import profile as profile_layers
from pipesched.workflows.simulating import Setup, predict_source
from pipesched.workflows.verifying.verified_rounds import PRECISION, MachineDrift, RoundsVerification, ScheduleRounds
from pipesched.workflows.verifying.verified_schedule import (
    ScheduleRun,
    Verification,
    VerifiedSchedule,
    held_against,
    run_source,
    with_buffers_of,
)

_REPEATS, _WARMUP = 3, 1
"""Measured runs of each layer in the short profile of a round, and warm-up runs before."""


@dataclass(frozen=True)
class _Question(MeasureSettings, CutSettings):
    """The arguments that `verify` and `verify_rounds` have in common."""

    model: ModelArgument
    schedules: Sequence[ListsArgument]
    cluster: ClusterArgument = field(default=None, kw_only=True)
    progress: OnShare = field(default=unheard, kw_only=True)


@dataclass(frozen=True)
class VerifyQuestion(_Question):
    """The question of `verify`; its fields are the arguments of that function."""

    profile: ProfileArgument | None = field(default=None, kw_only=True)
    on_verified: Callable[[Verification], None] = field(default=lambda verified: None, kw_only=True)  # noqa: ARG005


@dataclass(frozen=True)
class VerifyRoundsQuestion(_Question):
    """The question of `verify_rounds`; its fields are the arguments of that function."""

    rounds: NumRounds = 5
    precision: RoundPrecision = field(default=None, kw_only=True)


@asks(VerifyQuestion)
def verify(question: VerifyQuestion) -> Verification:
    """Profile a model, predict schedules of it and run them, and compare times, memory and losses.

    Args:
        model: A name as `profile` takes it, or a Model made from one; under torchrun any Model.
        schedules: Each as `simulate` takes one.
        cluster: Machines of the prediction; None: equal devices whose links take no time.
        profile: Profile of the model; None: it is measured first, while other cores are as busy as in a run.
        on_verified: Receives the results so far, after each schedule.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        NotRunnableError: Lists cannot run to their end.
        ScheduleError: A bad file.
        ProfileError: The model does not exist, the partition does not fit, or a file is bad.
        RankFailed: A rank failed, died or hung; the message names rank, op and micro-batch. All others are ended.
    """
    runs = _Runs.of(question)
    require_callable("on_verified", question.on_verified)
    if question.profile is None and is_rank():
        raise ArgumentError(
            "profile: got none under torchrun, where every process would measure its own, expected one for all "
            "processes; try a file that `pipesched.profile(..).save` has written"
        )
    steps = shares_of_steps(question.progress, 1 + len(runs.sources))
    tick = next(steps)
    layers = runs.measured_profile(tick) if question.profile is None else runs.given_profile(question.profile)
    verified = Verification((), layers)
    setup = runs.setup(layers)
    for source in runs.sources:
        with _named(source.schedule.name):
            source = runs.tied(source, setup)
            prediction = predict_source(source, setup)
            run = run_source(source, question.model, setup, question, next(steps))
            verified = replace(verified, schedules=(*verified.schedules, held_against(run, prediction, setup)))
        question.on_verified(verified)
    return verified


@asks(VerifyRoundsQuestion)
def verify_rounds(question: VerifyRoundsQuestion) -> RoundsVerification:
    """Profile a model and run schedules of it in turn, and report the error of predictions with its uncertainty.

    Args:
        model: The model, as `verify` takes it.
        schedules: Each as `simulate` takes one.
        rounds: Number of rounds; the profile of the first round determines the cut of the model.
        cluster: Machines of the prediction; None: equal devices whose links take no time.

    Raises:
        ArgumentError: As `verify` does, and every other error of `verify` too.
    """
    if question.rounds is None:
        raise ArgumentError("rounds: got None, expected at least 2; try 5")
    runs = _Runs.of(question)
    if is_rank():
        raise ArgumentError(
            "rounds: got rounds under torchrun, where every process would profile for itself, expected a start without "
            "torchrun; leave torchrun out"
        )
    steps = shares_of_steps(question.progress, 2 * question.rounds + 1)

    def look() -> float:
        return measuring.yardstick_s(min(runs.num_busy, num_cores()), question.device)

    def measure() -> Profile:
        return runs.measured_profile(next(steps), repeats=_REPEATS, warmup=_WARMUP)

    yardsticks_s, profiles = [look()], [measure()]
    rounds: list[list[ScheduleRun]] = []
    yardsticks_s.append(look())
    first = runs.setup(profiles[0])
    sources = [runs.tied(source, first) for source in runs.sources]
    cuts = [_cut(source, first) for source in sources]
    for _ in range(question.rounds):
        tick = next(steps)
        rounds.append(
            [run_source(source, question.model, cut, question, tick) for source, cut in zip(sources, cuts, strict=True)]
        )
        yardsticks_s.append(look())
        profiles.append(measure())
        yardsticks_s.append(look())
    means = [median_profile(*pair) for pair in pairwise(profiles)]
    schedules = [
        ScheduleRounds(
            tuple(
                _held(runs_of_round[index], replace(cut, costs=mean))
                for runs_of_round, mean in zip(rounds, means, strict=True)
            )
        )
        for index, cut in enumerate(cuts)
    ]
    precision = PRECISION if question.precision is None else question.precision
    return RoundsVerification(tuple(schedules), MachineDrift(tuple(yardsticks_s)), precision)


@dataclass(frozen=True, slots=True)
class _Runs:
    """The model and the schedules of a question, which can run."""

    question: _Question
    model: Model
    sources: tuple[ScheduleSource, ...]

    @staticmethod
    def of(question: _Question) -> _Runs:
        """Read the arguments; refuse, before any measurement, arguments that would fail after it."""
        read = map(read_lists_argument, require_names("schedules", question.schedules))
        sources = tuple(as_clipped(source, question.clip_grad_norm) for source in read)
        if not sources:
            raise ArgumentError(
                "schedules: got none, expected at least one; try [pipesched.build('1f1b', num_ranks=4, "
                "num_microbatches=8)]"
            )
        schedules = [source.schedule for source in sources]
        if all(schedule.origin is not None for schedule in schedules):
            require_followed({schedule.name: schedule.traits for schedule in schedules}, question)
        require_possible(question)
        require_epsilon([schedule.traits for schedule in schedules], question)
        model = read_model_argument(question.model)
        name_for_processes(question.model)  # refuses a model that other processes cannot make
        for source in sources:
            schedule, text = source.schedule, question.partition_text or "uniform"
            require_runnable(schedule)
            bounds = parse_partition(text, (1.0,) * len(model.layers), schedule.num_stages)
            if question.partition not in (None, "balanced"):
                as_tied(source, model, bounds)  # refuses a schedule without a flush
            read_cluster_argument(question.cluster, max(schedule.rank_to_device) + 1, f"schedule {schedule.name}")
        return _Runs(question, model, sources)

    @property
    def num_busy(self) -> int:
        """The most ranks that compute at once."""
        return max(source.schedule.num_ranks for source in self.sources)

    def setup(self, profile: Profile) -> Setup:
        """Return the setup of a prediction from `profile`, with receive buffers as the run has them."""
        question = self.question
        setup = Setup(
            profile,
            question.cluster,
            microbatch_size=question.microbatch_size or 1,
            partition=question.partition or "balanced",
        )
        return with_buffers_of(question, setup)

    def tied(self, source: ScheduleSource, setup: Setup) -> ScheduleSource:
        """Return the schedule with the sums of the parameters that its stages share."""
        return as_tied(source, self.model, setup.bounds_of(source)) if self.model.ties else source

    def measured_profile(self, progress: Callable[[float], None], *, repeats: int = 10, warmup: int = 3) -> Profile:
        """Return a profile, measured while other cores are as busy as in a run."""
        return profile_layers(
            self.model,
            [self.question.microbatch_size or 1],
            repeats=repeats,
            warmup=warmup,
            companions=num_companions(self.num_busy, self.question.device),
            progress=progress,
            **values_of(self.question, LayerSettings),
        ).profile

    def given_profile(self, profile: ProfileArgument) -> Profile:
        """Return a profile.

        Raises:
            ArgumentError: The profile is of another model, dtype or optimizer than the run.
            ProfileError: The file is no profile.
        """
        loaded = read_profile_of(profile, self.model)
        where = "profile" if isinstance(profile, Profile) else profile
        for name, profiled, wanted in (
            ("dtype", loaded.provenance.dtype, self.question.dtype),
            ("optimizer", loaded.provenance.optimizer, self.question.optimizer),
        ):
            if profiled != wanted:
                raise ArgumentError(
                    f"{where}: {name}: got a profile measured with {profiled}, expected {wanted} as in the run; "
                    f"try `{name}={profiled}`, or leave out `profile`"
                )
        return loaded


@contextmanager
def _named(schedule: str) -> Iterator[None]:
    """Name the schedule in raised errors."""
    try:
        yield
    except (ExecutionError, ProfileError, ScheduleError, SimulationError) as error:
        raise type(error)(f"verify {schedule}: {error}") from error


def _held(run: ScheduleRun, setup: Setup) -> VerifiedSchedule:
    return held_against(run, predict_source(run.source, setup), setup)


def _cut(source: ScheduleSource, setup: Setup) -> Setup:
    """Return the setup with the present partition fixed, so that a later profile does not change it."""
    return replace(setup, partition=[last - first for first, last in setup.bounds_of(source)])
