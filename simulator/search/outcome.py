"""The outcome of a setting: its predicted time and memory, or the reason of its refusal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from pipesched.profiles import STRICT, ProfileError
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import Profile
from pipesched.profiles.io import Plan, Predicted
from pipesched.schedules import Schedule, ScheduleError, Yardstick
from pipesched.simulator import Inexact, Scenario, SimulationError, SteadyPace, fast
from pipesched.simulator.search.setting import Setting

UNPREDICTABLE = (ScheduleError, ProfileError, SimulationError)
"""Errors of a judge for a setting that is impossible or unpredictable; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeParts:
    """The parts of a step, as the average over all devices [s]; with `bubble_s` they add up to a step.

    Attributes:
        work_s: Forwards, backwards, steps.
        recompute_s: Repeated forwards.
        transfer_s: Idle because a message was travelling, or its link busy.
        reduce_s: Idle because gradients were being summed.
        bubble_s: Idle because another rank was still computing, or no op was ready or left.
    """

    work_s: float
    recompute_s: float
    transfer_s: float
    reduce_s: float
    bubble_s: float


@dataclass(frozen=True, slots=True, repr=False)
class Outcome:
    """A setting with its time and memory, or the reason of its refusal.

    Attributes:
        setting: The setting.
        seconds: Time [s], or None without a prediction. It is the makespan of a swept setting, the time of one batch
            of each pipeline of a tuned setting, or the time of an optimizer step of a plan, in the steady state if the
            run has no flush.
        held_bytes: Peak memory of the fullest device [bytes], or None if unknown.
        reason: Why the setting is impossible or does not fit, or None if it fits.
        bubble_fraction: idle / (devices x makespan) of the predicted lists.
        steady_s_per_microbatch: Steady-state time per micro-batch [s], or None if unknown.
        steady_bubble_fraction: Idle share of all device time in the steady state.
        error: Relative error of the time of pipelines that drift apart, or None without a known error.
        is_judged: Whether a swept setting's memory was checked: the costs have bytes, and some device has a limit.
        yardstick: Speed of the machine in a run of the setting, or None without a run.
        device_bytes: Peak memory of each device of a plan [bytes].
        sent_bytes: Bytes of all messages and sums of a plan's step.
        parts: Parts of a plan's step, or None if unknown.
        staleness: Most steps by which a forward's weights are older than the weights that its gradient changes.
    """

    setting: Setting
    seconds: float | None = None
    held_bytes: int | None = None
    reason: str | None = None
    bubble_fraction: float | None = None
    steady_s_per_microbatch: float | None = None
    steady_bubble_fraction: float | None = None
    error: float | None = None
    is_judged: bool = False
    yardstick: Yardstick | None = None
    device_bytes: tuple[int, ...] = ()
    sent_bytes: int = 0
    parts: TimeParts | None = None
    staleness: int = 0

    __pydantic_config__ = STRICT

    def __repr__(self) -> str:
        known = [(part.name, getattr(self, part.name)) for part in fields(self) if part.name != "setting"]
        shown = [f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value!r}"
                 for name, value in known if value not in (None, False, ())]  # fmt: skip
        return f"Outcome({', '.join([repr(self.setting), *shown])})"

    @property
    def fits(self) -> bool:
        """Whether the setting can be used: nothing refuses it, and it does not exceed the memory."""
        return self.reason is None

    @property
    def s_per_microbatch(self) -> float | None:
        """The seconds per micro-batch of a swept setting [s], or None if they are unknown."""
        return None if self.seconds is None else self.seconds / self.setting.num_microbatches

    @property
    def s_per_sample(self) -> float | None:
        """The seconds per sample of a swept setting [s], or None if they are unknown or the costs have no samples."""
        size, each_s = self.setting.microbatch_size, self.s_per_microbatch
        return None if size is None or each_s is None else each_s / size

    def measures(self) -> dict[str, str | int | float | None]:
        """Return the measures of a swept setting as plain data, by column."""
        return {name: of(self) for name, of in MEASURES.items()}

    @property
    def samples(self) -> int:
        """Samples of a plan's step."""
        return self.setting.samples_per_step

    @property
    def throughput(self) -> float:
        """Samples per second of a plan; 0 without a prediction."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def pace(self) -> SteadyPace | None:
        """The steady state, or None if unknown."""
        if self.steady_s_per_microbatch is None:
            return None
        return SteadyPace(self.steady_s_per_microbatch, self.steady_bubble_fraction, self.error)

    def at_pace(self, pace: SteadyPace | Inexact | None) -> Outcome:
        """Return the outcome with its steady state, or unchanged if that is unknown."""
        if pace is None or isinstance(pace, Inexact):
            return self
        return replace(
            self,
            steady_s_per_microbatch=pace.s_per_microbatch,
            steady_bubble_fraction=pace.bubble_fraction,
            error=pace.error,
        )


def memory_excess(held_bytes: Mapping[int, float], cluster: Cluster, *, at_least: bool = False) -> str | None:
    """Return the first device that holds more than its memory, and its bytes, or None if all have room.

    Args:
        held_bytes: Peak memory by device [bytes].
        cluster: Devices with their memory.
        at_least: Whether the bytes are lower bounds.
    """
    for device, num_bytes in sorted(held_bytes.items()):
        limit = cluster.devices[device].memory_bytes
        if limit is not None and num_bytes > limit:
            return f"device {device} holds {'at least ' * at_least}{round(num_bytes)} bytes of {limit}"
    return None


def over_memory_reason(over: object | None) -> str | None:
    """Return the reason to refuse a setting that exceeds memory, or None if it fits."""
    return None if over is None else f"over memory: {over}"


def least(outcomes: Iterable[Outcome]) -> Outcome | None:
    """Return the known outcome with the least memory, of equal ones the fastest, or None."""
    known = [outcome for outcome in outcomes if outcome.seconds is not None and outcome.held_bytes is not None]
    return min(known, key=lambda outcome: (outcome.held_bytes, outcome.seconds), default=None)


def front_of(ordered: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """Return the Pareto front of outcomes in order of cost: each fitting outcome with less memory than all before it.

    Outcomes of unknown memory are left out.
    """
    front: list[Outcome] = []
    for outcome in ordered:
        num_bytes = outcome.held_bytes if outcome.fits else None
        if num_bytes is not None and (not front or num_bytes < (front[-1].held_bytes or 0)):
            front.append(outcome)
    return tuple(front)


def settled_pace(
    make: Callable[[], Scenario], num_cells: int, most_cells: int, longer: Callable[[int], Schedule] | None = None
) -> SteadyPace | Inexact:
    """Return the steady-state time per micro-batch of a setting, or the reason why it is unknown.

    Args:
        make: Returns the scenario of the setting.
        num_cells: Stages times micro-batches of its op lists, of all pipelines or copies.
        most_cells: Most cells of lists that are tried.
        longer: Makes a run without a flush a number of times as long; None for a batch.
    """
    if num_cells > most_cells:
        return Inexact(f"lists of more than {most_cells:,} stages x micro-batches are not tried")
    try:
        return fast.steady_pace(make(), longer=longer)
    except UNPREDICTABLE as error:
        return Inexact(str(error))


def plan_of(outcome: Outcome, samples: int, profile: Profile, cluster: Cluster) -> Plan:
    """Return the plan that runs a setting whose time and partition are known.

    Args:
        outcome: The setting, as predicted.
        samples: Samples of an optimizer step.
        profile: Profile of the model.
        cluster: Machines of the prediction.
    """
    setting, provenance, parts = outcome.setting, profile.provenance, outcome.parts
    assert outcome.seconds is not None, "its time is known"
    return Plan(
        model=profile.model,
        schedule_spec=setting.schedule_spec().portable(),
        partition=setting.partition,
        microbatch_size=setting.size,
        batch_size=samples,
        compression=setting.compression,
        predicted=Predicted(
            seconds=outcome.seconds,
            throughput=samples / outcome.seconds,
            memory_bytes=tuple(map(float, outcome.device_bytes)),
            bubble_fraction=outcome.bubble_fraction,
            communication_fraction=None if parts is None else (parts.transfer_s + parts.reduce_s) / outcome.seconds,
        ),
        origin=f"a profile of {provenance.device}; {cluster.origin or 'a cluster'}"[:400],
        sharding=provenance.sharding,
        dtype=provenance.dtype,
        yardstick=provenance.yardstick,
        cluster=cluster,
    )


MEASURES: dict[str, Callable[[Outcome], Any]] = {
    "makespan_s": attrgetter("seconds"),
    "s_per_microbatch": attrgetter("s_per_microbatch"),
    "s_per_sample": attrgetter("s_per_sample"),
    "bubble_fraction": attrgetter("bubble_fraction"),
    "steady_s_per_microbatch": attrgetter("steady_s_per_microbatch"),
    "steady_bubble_fraction": attrgetter("steady_bubble_fraction"),
    "peak_memory_bytes": attrgetter("held_bytes"),
    "fits": lambda outcome: outcome.fits if outcome.seconds is not None and outcome.is_judged else None,
    "reason": attrgetter("reason"),
}
"""The columns of measures of a sweep, each with the function of its value; None if that is unknown."""
COLUMN_HEADINGS = {
    "num_ranks": "p",
    "num_microbatches": "m",
    "num_chunks": "v",
    "recomputes": "recompute",
    "recompute_when": "when",
    "microbatch_size": "samples",
    "latency_s": "latency",
    "bandwidth_bytes_per_s": "bandwidth",
    "makespan_s": "makespan",
    "s_per_microbatch": "time / m",
    "s_per_sample": "time / sample",
    "bubble_fraction": "bubble",
    "steady_s_per_microbatch": "steady / m",
    "steady_bubble_fraction": "steady bubble",
    "peak_memory_bytes": "memory",
    "tokens_per_s": "tokens/s per GPU",
    "flops_per_s": "FLOP/s per GPU",
    "utilization": "MFU",
}
"""Headings of the columns of a sweep."""


def ordered_by(outcomes: Iterable[Outcome], by: str) -> tuple[Outcome, ...]:
    """Return the fitting outcomes, then the unfitting, then the invalid ones, each by rising `by` and memory.

    Args:
        outcomes: The outcomes.
        by: Name of a measure that is a number; outcomes without it come last.
    """

    def cost(outcome: Outcome) -> tuple[bool, bool, float, float]:
        value = MEASURES[by](outcome)
        memory = math.inf if outcome.held_bytes is None else outcome.held_bytes
        return not outcome.fits, outcome.seconds is None, math.inf if value is None else value, memory

    return tuple(sorted(outcomes, key=cost))


def pareto_front(outcomes: Iterable[Outcome], by: str) -> tuple[Outcome, ...]:
    """Return the fitting outcomes that no other outcome beats in both `by` and memory, sorted by `by`, ascending."""
    return front_of(outcome for outcome in ordered_by(outcomes, by) if MEASURES[by](outcome) is not None)
