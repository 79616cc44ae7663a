"""The peak bytes of a device, from the program: what is held from which of its times to which.

    op          F0   F1   B0   B1  Step  end     one stage: 100 bytes of weights, 30 of activations
    number       0    1    2    3    4    5      where an op starts, and the one before it is over
    totals     130  160  160  230  200  100      of one pipeline; N hold N times the most, and a reference

Costs of seconds do not change the numbers, so totals are found once; the times behind them say which totals last.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, zip_longest
from operator import itemgetter

from pipesched.profiles.costs import StageCosts
from pipesched.simulator import SimulationError
from pipesched.simulator.fast.program import Program
from pipesched.simulator.memory import NEVER, Instant, Lifetime, holds_inside, lifetimes, seen_at_once


@dataclass(frozen=True)  # without slots: its columns are kept beside the fields
class HeldBytes:
    """The bytes that a device holds, on which one rank runs, or the same rank of several equal pipelines.

    With one rank the numbers of times go up as the times do.

    Attributes:
        times: Numbers of the times from which it holds something else, ascending; the beginning is the first.
        totals: How much one pipeline then holds [bytes].
        inside: Whether that is inside an op: from its start on, or at its end with a predicted copy not dropped yet. So
            it is held even if the next number is that of the same time.
        update_bytes: Bytes of the update of each pipeline for an Average, held always; 0 if there is one pipeline
            alone.
        reference_bytes: Bytes of the reference model, which all pipelines share.
    """

    device: int
    times: tuple[int, ...]
    totals: tuple[int, ...]
    inside: tuple[bool, ...]
    update_bytes: int
    reference_bytes: int

    def peak_bytes(self, times_s: Sequence[float], num_pipelines: int) -> int:
        """Return the most that so many hold together."""
        most, doubtful = self._peaks
        for number, following, total in doubtful:
            if times_s[number] < times_s[following]:
                most = total
                break
        return num_pipelines * most + self._always_bytes(num_pipelines)

    def first_over(self, times_s: Sequence[float], num_pipelines: int, capacity_bytes: int) -> tuple[float, int, bool]:
        """Return when so many hold more than `capacity_bytes` for the first time [s], how much, and whether in passing.

        Raises:
            SimulationError: They never do.
        """
        for time_s, group in groupby(self._states(times_s), key=itemgetter(0)):
            states = seen_at_once([num_bytes for _, num_bytes in group], float)
            for index, num_bytes in enumerate(states, 1):
                held_bytes = num_pipelines * num_bytes + self._always_bytes(num_pipelines)
                if held_bytes > capacity_bytes:
                    return time_s, held_bytes, index < len(states)
        raise SimulationError(f"device {self.device}: got {capacity_bytes} bytes, expected less than it ever holds")

    @cached_property
    def _peaks(self) -> tuple[int, list[tuple[int, int, int]]]:
        """The most that is held whatever the times are, and what is more, the most first, if its time lasts.

        Of these the number of the time, that at which it is over, and the bytes.
        """
        spans = [*zip(self.times, self.times[1:], self.totals, self.inside, strict=False)]
        certain = max([self.totals[-1], *(total for _, _, total, is_inside in spans if is_inside)])
        doubtful = [span[:3] for span in spans if span[2] > certain and not span[3]]
        return certain, sorted(doubtful, key=itemgetter(2), reverse=True)

    def _states(self, times_s: Sequence[float]) -> Iterator[tuple[float, int]]:
        """Yield (time, bytes) of all that is held for a time, or inside an op that takes none."""
        since_s = [times_s[number] for number in self.times]
        for now_s, next_s, held_bytes, is_inside in zip(
            since_s, [*since_s[1:], math.inf], self.totals, self.inside, strict=True
        ):
            if now_s < next_s or is_inside:
                yield now_s, held_bytes

    def _always_bytes(self, num_pipelines: int) -> int:
        return num_pipelines * self.update_bytes + self.reference_bytes if num_pipelines > 1 else 0


def held_on_devices(program: Program, costs: StageCosts) -> tuple[HeldBytes, ...]:
    """Return what each device holds that does hold something, in ascending order; one rank runs on each.

    Raises:
        SimulationError: The schedule has more stages than the costs.
    """
    numbers = program.timeline(range(program.num_times))  # in place of times
    starts: defaultdict[int, list[int]] = defaultdict(list)
    for span in numbers.spans:
        if holds_inside(span.op):
            starts[numbers.rank_to_device[span.rank]].append(int(span.start_s))
    by_device = lifetimes(numbers, costs, program.schedule)
    return tuple(_held(device, holds, starts[device]) for device, holds in sorted(by_device.items()))


def _held(device: int, all_holds: Iterable[Lifetime], starts: Sequence[int]) -> HeldBytes:
    changes = defaultdict(int, dict.fromkeys(map(Instant, (0, *starts)), 0))
    always = Counter[str]()
    for kind, num_bytes, since, until in all_holds:
        if kind in ("updates", "reference"):
            always[kind] += num_bytes
        elif since < until:
            changes[since] += num_bytes
            if until < NEVER:
                changes[until] -= num_bytes
    instants = sorted(changes)
    times = tuple(int(instant.time_s) for instant in instants)
    are_starts = set(starts)
    return HeldBytes(
        device,
        times,
        tuple(accumulate(map(changes.__getitem__, instants))),
        tuple(number in are_starts or number == following for number, following in zip_longest(times, times[1:])),
        always["updates"],
        always["reference"],
    )
