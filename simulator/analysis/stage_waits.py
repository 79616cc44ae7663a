"""Waits for stages: idle time between two works, by the stage that sent the last message for the second work.

    work ├ idle ............... ┤ op
    ends      message arrives   starts
    └─ waits for its stage ─┘

Idle time before a device's first work is no wait: some device must come later. A wait lasts until the message has
been computed, handed over and transferred. The causes of `idle_time` distinguish these three.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise

from pipesched.schedules import Span, Timeline
from pipesched.schedules.ops import Message, Recv, computes, needs


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
