"""The planner's outcome of a candidate: its time and memory, or why it was refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipesched.simulator import SteadyPace
from pipesched.simulator.planner.plan_candidate import Candidate
from pipesched.simulator.search import SearchOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The parts of a step, as the average over all devices [s]; with `bubble_s` they add up to a step.

    Attributes:
        work_s: Forwards, backwards, steps.
        recompute_s: Forwards that are done once more.
        transfer_s: Idle because a message was travelling, or its link busy.
        reduce_s: Idle because gradients were being summed.
        bubble_s: Idle because another rank was still computing, or nothing was to be done yet, or any more.
    """

    work_s: float
    recompute_s: float
    transfer_s: float
    reduce_s: float
    bubble_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOutcome(SearchOutcome):
    """One candidate, predicted in full, or refused.

    Attributes:
        seconds: Seconds of an optimizer step, from its first forward to the end of the last step of a stage; of a run
            without a flush its steady pace.
        samples: Samples that a step takes.
        held_bytes: Most that each device holds.
        sent_bytes: Bytes of all messages and sums of a step.
        costs: The parts of a step; None, like `bubble_fraction`, if a search was interrupted before.
        bubble_fraction: idle / (devices x makespan) of the predicted lists: of a batch, or of all steps of a run
            without a flush, from an empty pipeline to an empty one.
        steady_s_per_microbatch: Seconds of a micro-batch in the steady state, when batches follow one another or the
            run has no flush; None if unknown, or if it would take long to find out.
        steady_bubble_fraction: Idle share of all device time at that pace.
        staleness: The most steps that a forward's weights are behind the weights that its gradient changes.
        reason: Why it is refused, or None.
    """

    candidate: Candidate
    seconds: float | None = None
    samples: int = 0
    held_bytes: tuple[int, ...] = ()
    sent_bytes: int = 0
    costs: Costs | None = None
    bubble_fraction: float | None = None
    steady_s_per_microbatch: float | None = None
    steady_bubble_fraction: float | None = None
    staleness: int = 0
    reason: str | None = None

    @property
    def throughput(self) -> float:
        """Samples per second; 0 where nothing could be predicted."""
        return self.samples / self.seconds if self.seconds else 0.0

    def at_pace(self, pace: SteadyPace | None) -> PlanOutcome:
        """Return the outcome with a steady pace; as it is where that is not known."""
        if pace is None:
            return self
        return replace(self, steady_s_per_microbatch=pace.s_per_microbatch, steady_bubble_fraction=pace.bubble_fraction)

    @property
    def most_bytes(self) -> int:
        """The bytes of the device that holds most."""
        return max(self.held_bytes, default=0)
