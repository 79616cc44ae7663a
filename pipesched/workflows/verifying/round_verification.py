"""Verify in rounds: profiles and runs in turn, with a yardstick between them, so that slow drift cancels.

    yardstick  profile  yardstick  runs  yardstick  profile  yardstick  runs  yardstick  profile  yardstick
                  └───────── mean ─────────────────────┘
                        is compared with the runs

A machine that gets slower or faster at a steady pace is as fast in the runs as in the mean of the profiles around them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pipesched.executor import RunSettings
from pipesched.profiles.costs import Profile, median_profile
from pipesched.profiles.models import Model
from pipesched.profiles.processes import num_cores
from pipesched.workflows.arguments import ScheduleSource
from pipesched.workflows.simulating import Setup, predict_source
from pipesched.workflows.verifying.schedule_verification import (
    ScheduleRun,
    bounds_of,
    held_against,
    profile_for_runs,
    run_source,
    with_buffers_of,
)
from pipesched.workflows.verifying.verified_rounds import PRECISION, MachineDrift, RoundsVerification, ScheduleRounds
from pipesched.workflows.verifying.verified_schedule import VerifiedSchedule

_REPEATS, _WARMUP = 3, 1
"""Measured runs of each layer in a short profile, and warm-up runs before."""


def verify_in_rounds(
    sources: Sequence[ScheduleSource],
    model: Model,
    name: str,
    size: int,
    setup: Callable[[Profile, ScheduleSource], Setup],
    settings: RunSettings,
    rounds: int,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    *,
    precision: float = PRECISION,
    **measured_how: Any,
) -> RoundsVerification:
    """Profile a model and run schedules of it, in turn.

    Args:
        sources: Sources of the schedules.
        model: The model to profile and run.
        name: Name of the model, by which the ranks know it.
        size: Samples of a micro-batch.
        setup: Setup of the prediction of a schedule from a profile. The first profile determines the cut of
            the model.
        settings: Settings of the runs.
        rounds: At least 2.
        progress: Receives the finished fraction now and then.
        precision: Largest drift of the machine, or half-width of an interval, for a verdict on the profile.
        measured_how: Fields of `Measure`.
    """
    from pipesched.profiles.measuring import yardstick_s

    num_busy = max(source.schedule.num_ranks for source in sources)
    steps = _fractions(progress, 2 * rounds + 1)

    def look() -> float:
        return yardstick_s(min(num_busy, num_cores()), settings.device)

    def measure() -> Profile:
        return profile_for_runs(model, size, num_busy, None, settings, next(steps), repeats=_REPEATS, warmup=_WARMUP)

    yardsticks_s, profiles = [look()], [measure()]
    runs: list[list[ScheduleRun]] = []
    yardsticks_s.append(look())
    cuts = [_cut(source, with_buffers_of(settings, setup(profiles[0], source))) for source in sources]
    for _ in range(rounds):
        tick = next(steps)
        runs.append(
            [
                run_source(source, name, cut, settings, tick, **measured_how)
                for source, cut in zip(sources, cuts, strict=True)
            ]
        )
        yardsticks_s.append(look())
        profiles.append(measure())
        yardsticks_s.append(look())
    means = [median_profile(*pair) for pair in pairwise(profiles)]
    schedules = [
        ScheduleRounds(
            tuple(
                _held(runs_of_round[index], replace(cut, costs=profile))
                for runs_of_round, profile in zip(runs, means, strict=True)
            )
        )
        for index, cut in enumerate(cuts)
    ]
    return RoundsVerification(tuple(schedules), MachineDrift(tuple(yardsticks_s)), precision)


def _held(run: ScheduleRun, setup: Setup) -> VerifiedSchedule:
    return held_against(run, predict_source(run.source, setup), setup)


def _cut(source: ScheduleSource, setup: Setup) -> Setup:
    """Return the setup with the present layers of each stage, so that later profiles do not change them."""
    layers = [last - first for first, last in bounds_of(source, setup)]
    return replace(setup, partition=",".join(map(str, layers)))


def _fractions(progress: Callable[[float], None], count: int) -> Iterator[Callable[[float], None]]:
    """Yield, for each of `count` steps, a function that turns its finished fraction into the total's."""
    for index in range(count):

        def tick(fraction: float, index: int = index) -> None:
            progress((index + fraction) / count)

        yield tick
