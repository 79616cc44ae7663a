"""The peak bytes of a device, from the program: memory changes at the numbers of its times.

    op          F0   F1   B0   B1  Step  end     one stage: 100 bytes of weights, 30 of activations
    number       0    1    2    3    4    5      where an op starts, and the one before it is over
    totals     130  160  160  230  200  100      of one pipeline; N hold N times the most, and a reference

Costs of seconds do not change the numbers, so totals are found once; the times behind them say which totals last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesched.profiles.costs import StageCosts
from pipesched.schedules.columns import machine_code, spread
from pipesched.simulator import differ
from pipesched.simulator.fast.program import Program
from pipesched.simulator.memory import (
    Instants,
    Lifetimes,
    Part,
    holds_inside,
    lifetimes,
    require_stages,
    row_bytes,
)

_WEIGHTS, _OPTIMIZER, _UPDATES = (part.value for part in (Part.WEIGHTS, Part.OPTIMIZER, Part.UPDATES))
"""Numbers of these parts."""


@dataclass(frozen=True)  # without slots: its columns are kept beside the fields
class HeldBytes:
    """The bytes that a device holds; it runs one rank, or the same rank of several equal pipelines.

    If it runs one rank, later times have higher numbers.

    Attributes:
        device: The device.
        times: Numbers of the times at which the held bytes change, ascending; the beginning is the first.
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

    def _always_bytes(self, num_pipelines: int) -> int:
        return num_pipelines * self.update_bytes + self.reference_bytes if num_pipelines > 1 else 0


def held_on_devices(program: Program, costs: StageCosts) -> tuple[HeldBytes, ...]:
    """Return the memory of each device that holds any, in ascending order; one rank runs on each.

    Args:
        program: The program.
        costs: Bytes of every stage.

    Raises:
        SimulationError: The schedule has more stages than the costs.
    """
    schedule = program.schedule
    require_stages(schedule, costs)
    rows = lifetimes(schedule.columns, schedule.num_stages)
    num_bytes = row_bytes(rows, costs, schedule.num_stages)
    rank_of, always = np.repeat(np.arange(schedule.num_ranks), np.diff(rows.begins)), []
    is_update, is_constant = rows.parts == _UPDATES, (rows.parts == _WEIGHTS) | (rows.parts == _OPTIMIZER)
    for is_meant in (is_constant, is_update):
        always.append(np.zeros(schedule.num_ranks, num_bytes.dtype))
        np.add.at(always[-1], rank_of[is_meant], num_bytes[is_meant])
    num_bytes[is_constant | is_update] = 0
    numbers, inside, sums = _states(program, rows, num_bytes)
    cuts = np.searchsorted(numbers, program.begins)
    sums -= np.repeat(np.append(0, sums)[cuts[:-1]] - always[0], np.diff(cuts))  # of the ranks before
    times, held_inside, totals = (
        np.insert(column, cuts[:-1], first) for column, first in ((numbers, 0), (inside, False), (sums, always[0]))
    )
    held = []
    for rank, (begin, end) in enumerate(pairwise((cuts + np.arange(len(cuts))).tolist())):
        if program.begins[rank] + 1 < program.begins[rank + 1]:
            own, device, update_bytes = slice(begin, end), schedule.rank_to_device[rank], int(always[1][rank])
            held.append(HeldBytes(device, times[own], totals[own], held_inside[own], update_bytes, update_bytes))
    return tuple(sorted(held, key=attrgetter("device")))


def _states(
    program: Program, rows: Lifetimes, num_bytes: npt.NDArray[Any]
) -> tuple[machine_code.Int64s, npt.NDArray[np.bool_], npt.NDArray[Any]]:
    """Return the numbers of the times when held bytes change, whether each is inside an op, and the bytes then held."""
    columns, num_numbers = program.schedule.columns, len(program.kinds)
    posted, begun, over = (spread(columns.codes, column) for column in program.spans)
    instants = Instants(columns.cells, posted, begun, over, 0.0)
    width = 1 if columns.lookaheads is None else 2  # an op that looks ahead is over one instant after its end
    times, orders = instants.of(np.concatenate([rows.since, rows.until]))
    since, until = (width * np.minimum(times, num_numbers).astype(np.int64) + orders).reshape(2, -1)
    its = np.flatnonzero(since < until)
    changes = np.zeros(width * (num_numbers + 1), num_bytes.dtype)
    np.add.at(changes, since[its], num_bytes[its])
    np.subtract.at(changes, until[its], num_bytes[its])
    starts = np.zeros(num_numbers, np.bool_)
    starts[begun[holds_inside(columns.codes)]] = True
    is_state = changes[: width * num_numbers] != 0
    is_state[::width] |= starts
    places = np.flatnonzero(is_state)
    numbers = places // width
    inside = starts[numbers]
    inside[:-1] |= numbers[1:] == numbers[:-1]
    return numbers, inside, changes[places].cumsum()
