"""The peak bytes of a device, from the program: memory changes at the numbers of its times.

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
from functools import cached_property, partial
from itertools import accumulate, groupby, pairwise, zip_longest
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesched.profiles.costs import StageCosts
from pipesched.schedules.columns import machine_code, message_table, op_cells
from pipesched.schedules.ops import Message, Payload
from pipesched.simulator import SimulationError, differ
from pipesched.simulator.fast.held_changes import (
    BytesByStage,
    HeldChanges,
    HeldRules,
    KnownCells,
    KnownStages,
    KnownUses,
    write_changes,
)
from pipesched.simulator.fast.program import Program
from pipesched.simulator.memory import (
    NEVER,
    Instant,
    Lifetime,
    Part,
    activation_bytes,
    holds_inside,
    lifetimes,
    seen_at_once,
)

_BUFFERS = ("receive_buffers", "send_buffers")
_MOST_RANKS = 512
"""Ranks of which all pairs are kept."""
_MOST_VERSIONS = 4_000_000
"""Versions of all stages that are kept."""
_LARGEST = 2**62
"""Bytes; more are not added up in 64 bits."""


@dataclass(frozen=True)  # without slots: its columns are kept beside the fields
class HeldBytes:
    """The bytes that a device holds, on which one rank runs, or the same rank of several equal pipelines.

    With one rank the numbers of times go up as the times do.

    Attributes:
        device: The device.
        times: Numbers of the times from which it holds something else, ascending; the beginning is the first.
        totals: Memory of one pipeline from each time on [bytes], in 64 bits or, if larger, as Python's numbers.
        inside: Whether a total is inside an op: from its start on, or at its end with a predicted copy not dropped yet.
            Then it is held even if the next number has the same time.
        update_bytes: Bytes of the update of each pipeline for an Average, held always; 0 if there is one pipeline
            alone.
        reference_bytes: Bytes of the reference model, which all pipelines share.
    """

    device: int
    times: machine_code.Int64s
    totals: npt.NDArray[Any]
    inside: npt.NDArray[np.bool_]
    update_bytes: int
    reference_bytes: int

    def peak_bytes(self, times_s: machine_code.Float64s, num_pipelines: int) -> int:
        """Return the peak of `num_pipelines` pipelines together."""
        most, doubtful = self._peaks
        for number, following, total in doubtful:
            if differ(times_s[number], times_s[following]):
                most = total
                break
        return num_pipelines * most + self._always_bytes(num_pipelines)

    def range_bytes(self, num_pipelines: int) -> tuple[int, int]:
        """Return the bounds of the peak of `num_pipelines` pipelines together, whatever the times are."""
        certain, doubtful = self._peaks
        most = doubtful[0][2] if doubtful else certain
        always = self._always_bytes(num_pipelines)
        return num_pipelines * certain + always, num_pipelines * most + always

    def first_over(
        self, times_s: machine_code.Float64s, num_pipelines: int, capacity_bytes: int
    ) -> tuple[float, int, bool]:
        """Return when the pipelines first exceed `capacity_bytes` [s], by which total, and whether only in passing.

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
        """The peak for any times, and larger totals that count only if their time lasts, the largest first.

        A larger total is the number of its time, the number of the next time, and its bytes. Among equal totals the one
        nearest the middle of the list is first: in the steady state it is the likeliest to last.
        """
        times, totals = self.times, self.totals
        certain = int(totals[self.inside].max(initial=totals[-1]))
        places = np.flatnonzero(totals > certain)
        columns = times[places], times[places + 1], totals[places]
        middle = int(times[len(times) // 2])
        doubtful = zip(*(column.tolist() for column in columns), strict=True)
        return certain, sorted(doubtful, key=lambda held: (-held[2], abs(held[0] - middle)))

    def _states(self, times_s: machine_code.Float64s) -> Iterator[tuple[float, int]]:
        """Yield (time, bytes) of all that is held for a time, or inside an op that takes none."""
        totals, inside = self.totals.tolist(), self.inside.tolist()
        since_s = times_s[self.times].tolist()
        for now_s, next_s, held_bytes, is_inside in zip(since_s, [*since_s[1:], math.inf], totals, inside, strict=True):
            if is_inside or differ(now_s, next_s):
                yield now_s, held_bytes

    def _always_bytes(self, num_pipelines: int) -> int:
        return num_pipelines * self.update_bytes + self.reference_bytes if num_pipelines > 1 else 0


def held_on_devices(program: Program, costs: StageCosts, *, has_buffers: bool = True) -> tuple[HeldBytes, ...]:
    """Return the memory of each device that holds any, in ascending order; one rank runs on each.

    Args:
        program: The program.
        costs: Bytes of every stage.
        has_buffers: Whether buffers of messages count.

    Raises:
        SimulationError: The schedule has more stages than the costs.
    """
    held = _of_columns(program, costs, has_buffers)
    return _of_lifetimes(program, costs, has_buffers) if held is None else held


def _of_columns(program: Program, costs: StageCosts, has_buffers: bool = True) -> tuple[HeldBytes, ...] | None:
    """Return the memory of each device from columns of ops, or None if the loop over them does not support it."""
    schedule = program.schedule
    columns, num_ranks, num_stages = schedule.columns, schedule.num_ranks, schedule.num_stages
    if num_stages > costs.num_stages or num_ranks > _MOST_RANKS or columns.lookaheads is not None:
        return None
    num_cells, num_instructions = len(columns.codes), len(program.kinds)
    full: Any = machine_code.int32s
    cells = columns.cells if columns.others is not None else columns.cells._replace(others=full(num_cells))
    num_versions = 1 + _latest_version(cells.codes, cells.others)
    sizes = _sizes(costs, num_stages, has_buffers)
    if num_stages * num_versions > _MOST_VERSIONS or sum(map(sum, sizes)) * num_cells > _LARGEST:
        return None
    whole: Any = partial(np.zeros, dtype=np.int64)
    held_changes = HeldChanges(
        whole(num_instructions + 1), full(num_instructions + 1), whole(num_ranks), whole(num_ranks)
    )
    num_states = num_stages * schedule.num_microbatches
    is_written = machine_code.run_loop(
        write_changes,
        cells,
        message_table(num_stages),
        program.spans,
        HeldRules(schedule.num_microbatches, num_versions, costs.compression is not None),
        BytesByStage(*np.array(sizes, np.int64)),
        _known_cells(num_cells, num_states, num_stages * num_versions),
        _known_uses(2 * num_states, num_ranks * num_ranks),
        KnownStages(full(num_stages), full(num_stages), full(num_stages, -1), full(num_stages, -1)),
        held_changes,
        num_steps=8 * num_cells,
    )
    if not is_written:
        return None
    held = []
    for rank, (begin, end) in enumerate(pairwise(program.begins.tolist())):
        device, update_bytes = schedule.rank_to_device[rank], int(held_changes.updates[rank])
        if begin + 1 < end:
            changes, are_starts = held_changes.changes[begin:end], held_changes.are_starts[begin:end]
            part = changes, are_starts, begin, int(held_changes.always[rank])
            held.append(HeldBytes(device, *_states(*part), update_bytes, update_bytes))
    return tuple(sorted(held, key=attrgetter("device")))


def _known_cells(num_cells: int, num_states: int, num_versions: int) -> KnownCells:
    def unknown(count: int) -> Any:
        return machine_code.int32s(count, -1)

    return KnownCells(
        ops=unknown(num_cells),
        made=unknown(2 * num_states),
        used=unknown(2 * num_states),
        received=unknown(2 * num_states),
        rebuilt=unknown(num_states),
        weights=unknown(num_states),
        following=unknown(num_cells),
        freed=unknown(num_cells),
        last_read=unknown(num_versions),
    )


def _known_uses(num_messages: int, num_pairs: int) -> KnownUses:
    full: Any = machine_code.int32s
    return KnownUses(
        proven=full(num_messages),
        senders=full(num_messages, -1),
        numbers=full(num_messages),
        heads=full(num_pairs, -1),
        tails=full(num_pairs, -1),
        used=full(num_pairs),
        freed=full(num_pairs),
    )


def _states(
    changes: Any, are_starts: Any, begin: int, always: int
) -> tuple[machine_code.Int64s, machine_code.Int64s, npt.NDArray[np.bool_]]:
    """Return the times at which a rank holds something else, its totals from them on, and whether they are inside."""
    changed = np.flatnonzero((changes != 0) | (are_starts != 0))
    sums = np.concatenate([[always], changes[changed]]).cumsum()
    return np.concatenate([[0], begin + changed]), sums, np.concatenate([[False], are_starts[changed] != 0])


def _sizes(costs: StageCosts, num_stages: int, has_buffers: bool) -> list[list[int]]:
    """Return the bytes of each stage in the order of `BytesByStage`."""
    stages = costs.stages[:num_stages]
    return [
        [cost.weight_bytes for cost in stages],
        [cost.weight_bytes + cost.optimizer_bytes for cost in stages],
        [activation_bytes(costs, Part.INPUT, stage) for stage in range(num_stages)],
        [cost.output_bytes * has_buffers for cost in stages],
        [costs.message_bytes(Message(Payload.ACTIVATION, stage, 0)) * has_buffers for stage in range(num_stages)],
        [cost.saved_bytes for cost in stages],
        [activation_bytes(costs, Part.SAVED_FOR_WEIGHT, stage) for stage in range(num_stages)],
        [cost.working_bytes for cost in stages],
        [int(cost.output_is_saved) for cost in stages],
    ]


def _latest_version(codes: machine_code.Int8s, others: machine_code.Int32s) -> int:
    """Return the highest version of weights that is read."""
    return int(others[codes % op_cells.OVERLAPPED < op_cells.SEND_F].max(initial=0))


def _of_lifetimes(program: Program, costs: StageCosts, has_buffers: bool = True) -> tuple[HeldBytes, ...]:
    """Return the memory of each device from lifetimes."""
    numbers = program.timeline(program.time_numbers)  # in place of times
    starts: defaultdict[int, list[int]] = defaultdict(list)
    for span in numbers.spans:
        if holds_inside(span.op):
            starts[numbers.rank_to_device[span.rank]].append(int(span.start_s))
    by_device = lifetimes(numbers, costs, program.schedule)
    if not has_buffers:
        by_device = {
            device: [hold for hold in holds if hold.kind not in _BUFFERS] for device, holds in by_device.items()
        }
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
    times = [int(instant.time_s) for instant in instants]
    are_starts = set(starts)
    totals = [*accumulate(map(changes.__getitem__, instants))]
    inside = [number in are_starts or number == following for number, following in zip_longest(times, times[1:])]
    return HeldBytes(
        device,
        np.array(times, np.int64),
        np.array(totals, np.int64 if max(totals) < _LARGEST else object),
        np.array(inside, np.bool_),
        always["updates"],
        always["reference"],
    )
