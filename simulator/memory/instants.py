"""Instants: the order of a rank's ops in time, including ops that take no time.

    op        F         B         Step      F
    start     (0, 0)    (1, 0)    (3, 0)    (3, 1)
    end       (1, 0)    (3, 0)    (3, 1)    (4, 0)

An instant is a time and the number of steps without time that the rank has done at that time: B is over at 3 s, then
the Step that takes no time runs, and then the next F begins. So memory during the Step alone is held at some instant,
whether the Step takes 0 s or a nanosecond. A predicted copy of the weights, too, is dropped one instant after its op
has ended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from pipesched.schedules.columns import Cells, Float64s, Int32s, machine_code, op_cells
from pipesched.simulator.memory.lifetime_loop import ALWAYS, END, NEVER, OVER, POSTED, START

SEND_F, STEP, OVERLAPPED = op_cells.SEND_F, op_cells.STEP, op_cells.OVERLAPPED


@final
class Instants:
    """The instants of the points of all cells (`memory.lifetimes`).

    Args:
        cells: The lists.
        posted: For each cell, when its rank reached the op; in seconds, or in other numbers in the order of time.
        starts: When each op began.
        ends: When each op was over.
        begin: The time of `ALWAYS`, the beginning; the time of `NEVER` is infinite.
    """

    def __init__(self, cells: Cells, posted: Any, starts: Any, ends: Any, begin: float) -> None:
        self._columns, self._begin = (posted, starts, ends), begin
        is_short = bool(((starts == ends) & holds_inside(cells.codes)).any())
        self._orders: Int32s | None = None  # without ops of no time and without predictions, all places are 0
        if is_short or len(cells.lookaheads):
            self._orders = machine_code.int32s(4 * len(cells.codes))
            machine_code.run_loop(find_orders, cells, posted, starts, ends, self._orders, num_steps=len(cells.codes))

    def of(self, points: Int32s) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the times of some points, and their places among the points of their rank at the same time."""
        cells, kinds, (posted, starts, ends) = points >> 2, points & 3, self._columns
        late = np.where(kinds == POSTED, posted[cells], ends[cells])
        times = np.where(kinds == START, starts[cells], late).astype(np.float64)
        orders = np.zeros(len(points), np.int32)
        times[points == ALWAYS], times[points == NEVER] = self._begin, math.inf
        if self._orders is not None:
            orders = np.where(points >= 0, self._orders[points], 0)
        return times, orders


def find_orders(cells: Cells, posted: Any, starts: Any, ends: Any, orders: Any) -> None:
    """Write the places of the points of each rank among its points at the same time, zeros at first."""
    begins, codes, _, _, versions, lookaheads = cells
    for rank in range(len(begins) - 1):
        now, order = -1e308, 0  # before all
        for i in range(begins[rank], begins[rank + 1]):
            at = 4 * i
            if i > begins[rank] and codes[i - 1] >= OVERLAPPED:  # the second part of an Overlap
                for point in range(at, at + 4):
                    orders[point] = orders[point - 4]
                continue
            orders[at + POSTED] = order if posted[i] == now else 0
            orders[at + START] = order if starts[i] == now else 0
            is_short = ends[i] == starts[i]
            orders[at + END] = orders[at + OVER] = orders[at + START] if is_short else 0
            if SEND_F <= codes[i] < OVERLAPPED and codes[i] != STEP:
                continue  # it holds nothing inside
            orders[at + END] = orders[at + OVER] = orders[at + START] + 1 if is_short else 0
            for part in range(i, i + (2 if codes[i] >= OVERLAPPED else 1)):
                if len(lookaheads) > 0 and lookaheads[part] > 0 and versions[part] > 0:
                    orders[at + OVER] = orders[at + END] + 1
            now, order = ends[i], orders[at + OVER]


def holds_inside(codes: Any) -> npt.NDArray[np.bool_]:
    """Return which cells are of ops that hold memory of their own; other ops post, or leave memory as it is."""
    is_held: npt.NDArray[np.bool_] = (codes < SEND_F) | (codes >= OVERLAPPED) | (codes == STEP)
    return is_held


class Totals(NamedTuple):
    """The amounts of devices after all changes of each instant, in order of device, then of time.

    Attributes:
        devices: Device of each amount.
        times: Time of each amount.
        orders: Place of each amount among the instants of the same time.
        amounts: Amount from that instant on; of several kinds, a row for each instant.
    """

    devices: Int32s
    times: Float64s
    orders: Int32s
    amounts: npt.NDArray[Any]

    def where(self, is_meant: npt.NDArray[np.bool_] | Sequence[int]) -> Totals:
        """Return some of the totals, by a mask or by their places."""
        return Totals(self.devices[is_meant], self.times[is_meant], self.orders[is_meant], self.amounts[is_meant])

    def places(self, devices: Int32s, times: Float64s, orders: Int32s) -> npt.NDArray[np.int64]:
        """Return, for each (device, time, order) in any sequence, the place of the device's total at that instant."""
        asked = np.repeat([False, True], [len(self.times), len(times)])
        pairs = zip((orders, times, devices), (self.orders, self.times, self.devices), strict=True)
        in_order = asked[np.lexsort((asked, *(np.concatenate([its, own]) for own, its in pairs)))]
        places: npt.NDArray[np.int64] = (np.cumsum(~in_order) - 1)[in_order]
        return places


def totals(devices: Int32s, times: Float64s, orders: Int32s, changes: npt.NDArray[Any]) -> Totals:
    """Add up changes at instants.

    Args:
        devices: Device of each change.
        times: Time of each change; an infinite one never comes.
        orders: Place of each change among the changes of the same time.
        changes: Changes of an amount, or of several kinds, a row for each change.
    """
    in_order = np.lexsort((orders, times, devices))
    in_order = in_order[np.isfinite(times[in_order])]
    keys, changes = (devices[in_order], times[in_order], orders[in_order]), changes[in_order]
    begins = _begins(keys[0])
    amounts = changes.cumsum(axis=0)
    before = amounts[begins] - changes[begins]  # of the devices before
    amounts -= np.repeat(before, np.diff(np.append(begins, len(amounts))), axis=0)
    is_last = np.ones(len(amounts), np.bool_)
    is_last[:-1] = ~_is_same(*keys)
    return Totals(*keys, amounts).where(is_last)


def seen_at_once(held: Totals, sizes: npt.NDArray[Any]) -> Sequence[int]:
    """Return the indices of the totals to show, ascending.

    For each time, this is the last total. If a total at the same time is larger, the first largest one is shown too.

    Args:
        held: The totals.
        sizes: Size of each.
    """
    begins = _begins(held.devices, held.times)
    ends = np.append(begins[1:], len(sizes))[: len(begins)]
    most = np.maximum.reduceat(sizes, begins) if len(begins) else sizes
    is_most = np.flatnonzero(sizes == np.repeat(most, ends - begins))
    firsts, lasts = is_most[np.searchsorted(is_most, begins)], ends - 1
    shown: list[int] = np.union1d(lasts, firsts[sizes[firsts] > sizes[lasts]]).tolist()
    return shown


def _begins(*keys: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the first place, and each place whose keys differ from the keys of the place before."""
    return np.flatnonzero(np.append(np.ones(min(1, len(keys[0])), np.bool_), ~_is_same(*keys)))


def _is_same(*keys: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return whether each key is followed by an equal key."""
    is_same: npt.NDArray[np.bool_] = np.logical_and.reduce([key[1:] == key[:-1] for key in keys])
    return is_same
