"""The straggler of a run: the device that takes longer than its peers, and at which the chain of waits ends.

The stage that is waited for most may itself be waiting. The critical path follows every wait to the work that caused
it: it stays longest on the device for which all others wait in the end. A first or last stage may have other layers, so
it counts only where the path stays longest on its device.

The wait for a stage is idle time between two works, by the stage that sent the last message for the second work:

    work ├ idle ............... ┤ op
    ends      message arrives   starts
    └─ waits for its stage ─┘

Idle time before a device's first work is no wait: some device must come later. A wait lasts until the message has
been computed, handed over and transferred. The causes of `idle_time` distinguish these three.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipesched.schedules import Span, Timeline
from pipesched.schedules.ops import Message, Recv, computes, needs
from pipesched.simulator.analysis.critical_paths import Kind, critical_path
from pipesched.simulator.analysis.device_speeds import device_speeds


@dataclass(frozen=True, slots=True)
class Straggler:
    """A device or a stage that is slower than its peers.

    Attributes:
        ranks: Ranks of the device.
        stages: The slow stages.
        factor: Time of the device for them, over the time of its peers.
        share: Share of the makespan for which the chain of waits ends at the device.
        is_device: Whether all of several stages are slow, or the same stages are quicker on other devices.
        is_edge: Whether the first or last stage is slow, which may have other layers, and no other.
    """

    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    factor: float
    share: float
    is_device: bool
    is_edge: bool

    @property
    def sentence(self) -> str:
        """The slow part, as text for people."""
        stages = _counted("stage", self.stages)
        ends = f"{self.share:.0%} of the makespan"
        if self.is_edge:
            takes, peers = ("take", "their peers") if len(self.stages) > 1 else ("takes", "its peers")
            return (
                f"{stages} {takes} {self.factor:.3g} times as long as {peers}, perhaps because its layers differ; the "
                f"chain of waits ends there for {ends}"
            )
        who = f"{_counted('rank', self.ranks)} ({stages})" if self.is_device else stages
        is_one = len(self.ranks if self.is_device else self.stages) == 1
        verb, peers = ("is", "its peers") if is_one else ("are", "their peers")
        return f"{who} {verb} {self.factor:.3g} times slower than {peers}; the chain of waits ends there for {ends}"


def _counted(noun: str, numbers: Sequence[int]) -> str:
    return f"{noun}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def straggler(timeline: Timeline) -> Straggler | None:
    """Return the straggler of a run; None where no device is significantly slower than its peers."""
    seconds = defaultdict[int, float](float)
    for piece in critical_path(timeline):
        if piece.kind not in (Kind.MESSAGE, Kind.WAIT):
            seconds[timeline.rank_to_device[piece.span.rank]] += piece.seconds
    slow = [speed for speed in device_speeds([timeline]) if max(speed.odd.values(), default=0.0) > 1]
    if not slow:
        return None
    speed = max(slow, key=lambda speed: seconds[speed.device])
    stages = tuple(stage for stage, factor in speed.odd.items() if factor > 1)
    is_device = speed.cause == "device"
    is_edge = not is_device and set(stages) <= {0, timeline.num_stages - 1}
    if is_edge and seconds[speed.device] < max(seconds.values()):
        return None
    return Straggler(
        tuple(rank for rank, device in enumerate(timeline.rank_to_device) if device == speed.device),
        stages,
        speed.slow[0] if is_device else max(speed.odd.values()),
        seconds[speed.device] / timeline.makespan_s,
        is_device,
        is_edge,
    )


def waits_by_stage(timeline: Timeline) -> dict[int, float]:
    """Return how long devices waited for messages of each stage [s], the longest first; stages without are left out."""
    arrivals_s = {(span.rank, span.op.message): span.end_s for span in timeline.spans if isinstance(span.op, Recv)}
    waits: defaultdict[int, list[float]] = defaultdict(list)
    for device in timeline.devices:
        busy_until_s = -math.inf
        for before, span in pairwise(timeline.work_of_device(device)):
            busy_until_s = max(busy_until_s, before.end_s)
            arrived_s, message = _last_needed(span, timeline.num_stages, arrivals_s)
            if message is not None and min(arrived_s, span.start_s) > busy_until_s:
                waits[message.stage].append(min(arrived_s, span.start_s) - busy_until_s)
    seconds = {stage: math.fsum(parts) for stage, parts in waits.items()}
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def _last_needed(
    span: Span, num_stages: int, arrivals_s: dict[tuple[int, Message], float]
) -> tuple[float, Message | None]:
    """Return when the last message that a work needs from another rank arrives, and which it is."""
    needed = [message for part in computes(span.op) for message in needs(part, num_stages)]
    arrived = [(arrivals_s[span.rank, message], message) for message in needed if (span.rank, message) in arrivals_s]
    return max(arrived, key=lambda arrival: arrival[0], default=(-math.inf, None))
