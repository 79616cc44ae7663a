"""The finished ops of a rank in a simulation, with times that for its posts are known only later."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipesched.schedules.ops import PostOp
from pipesched.simulator.engine.transfer_times import TransferTimes


@dataclass(frozen=True, slots=True)
class FinishedOps:
    """The ops of a rank's list that it has come through.

    Attributes:
        times_s: When it came to each, its start and its end [s].
        posts: The Sends, Recvs and Reduces by their places, and their times, which are known only later.
    """

    times_s: list[tuple[float, float, float]] = field(default_factory=list)
    posts: list[tuple[int, PostOp, TransferTimes]] = field(default_factory=list)

    def all_times_s(self) -> list[tuple[float, float, float]]:
        """Return all times, after all posted transfers and reductions are over."""
        for place, _, times in self.posts:
            start_s, over_s = times.start_s, times.over_s
            assert start_s is not None, "a channel without an unmet side has started all its transfers"
            assert over_s is not None
            self.times_s[place] = self.times_s[place][0], start_s, over_s
        return self.times_s
