"""Lists that are walked once, for one case or for many: columns of numbers in, columns out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, final

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Compute, JoinedColumns, OpColumns, Schedule, Step, machine_code, op_cells
from pipesched.simulator import SAME
from pipesched.simulator.fast import CASES_PARTS, measure_cases
from pipesched.simulator.sweep.held_totals import bytes_of_stages, message_bytes
from pipesched.simulator.sweep.list_measures import LIST_PARTS, ListRoom, list_room, measure_lists
from pipesched.simulator.sweep.list_walk import DONE, FULL, NUM_KINDS

_BLOCK = 32
"""Cases that are gone through together, so few that their rows stay in the nearest cache."""
_MOST_RANKS = 256
"""Ranks of which all pairs are kept."""
_LARGEST = 2**62
"""Bytes that are added up in 64 bits."""


class Links(NamedTuple):
    """What all links have in k cases.

    Attributes:
        latencies_s: k latencies [s].
        bandwidths: k bandwidths [bytes/s].
    """

    latencies_s: Any
    bandwidths: Any


@dataclass(frozen=True, slots=True)
class CaseColumns:
    """What k lists amount to in one case, or one list in k cases, in arrays, or in lists where they are few.

    Attributes:
        are_known: Of each whether all else is found; else the lists have something in them that steps do not say.
        makespans_s: Seconds from the first work to the end of the last.
        busy_s: Seconds in which the devices compute, all of them together; NaN where the costs do not say it.
        periods_s: How long after a batch the next one is the same; below 0 where the batch does not show it.
        peaks: Of each a row: the most that each rank holds; none where that was not asked for.
        begun_s: Of each cell when it begins; none where that was not asked for.
        over_s: Of each when it is over.
    """

    are_known: Any
    makespans_s: Any
    busy_s: Any
    periods_s: Any
    peaks: Any
    begun_s: Any
    over_s: Any


_COLUMNS = tuple(CaseColumns.__slots__)
_OF_CASES = _COLUMNS[:5]
"""Those of which each case has its own."""


def _in_each(columns: CaseColumns, num_cases: int) -> CaseColumns:
    """Return the same of so many cases."""
    import numpy as np

    of_cases = {name: np.repeat(np.asarray(getattr(columns, name)), num_cases, axis=0) for name in _OF_CASES}
    return replace(columns, **of_cases)


def walkable(schedule: Schedule) -> bool:
    """Whether lists have nothing in them that steps do not say, as far as is known before they are walked."""
    if not schedule.is_held or schedule.is_lowered or schedule.num_ranks > _MOST_RANKS:
        return False
    if len(set(schedule.rank_to_device)) < schedule.num_ranks:
        return False
    columns = schedule.columns
    return columns.cells is not None or all(
        numbers is None or machine_code.bounds(numbers) == (0, 0) for numbers in (columns.others, columns.lookaheads)
    )


@final
class WalkedLists:
    """Lists that have the same stages and ranks, and run on the same machines.

    Args:
        columns: Columns of each without communication, `walkable`.
        num_stages: How many stages they have.
        counts: How many micro-batches each has.
        is_repeated: Whether ops may come behind a Step of their stage, as those of the next batch do.
        num_cases: How many cases they will be gone through for, as far as that is known.

    Attributes:
        in_arrays: Whether their numbers are in NumPy's arrays, and machine code goes through them.
    """

    def __init__(
        self, columns: Sequence[OpColumns], num_stages: int, counts: Sequence[int], *, is_repeated: bool = False,
        num_cases: int = 1,
    ) -> None:  # fmt: skip
        self._num_ranks, self._num_stages, self._counts = columns[0].num_ranks, num_stages, counts
        self._is_repeated = is_repeated
        num_cells = sum(lists.num_cells for lists in columns)
        self.in_arrays = machine_code.is_hot(4 * num_cells * num_cases, measure_lists, LIST_PARTS)
        self._room = partial(_room, in_arrays=self.in_arrays)
        self._numbers = partial(_numbers, in_arrays=self.in_arrays)
        self.joined = JoinedColumns.of(columns, in_arrays=self.in_arrays)
        self._most_cells = max(lists.num_cells for lists in columns)
        self._num_rows = max(64, 4 * self._num_ranks, min(2 * max(counts), 4096))

    def can_add_up(self, costs: StageCosts) -> bool:
        """Whether all that costs say is held is so little that it is added up in 64 bits."""
        bytes_of = ((c.weight_bytes, c.optimizer_bytes, c.output_bytes, c.saved_bytes, c.saved_for_weight_bytes or 0,
                     c.working_bytes) for c in dict.fromkeys(costs.stages))  # fmt: skip
        return max(map(max, bytes_of)) * 8 * (self._most_cells + self._num_stages) < _LARGEST

    def measures(
        self, costs: StageCosts, cluster: Cluster, devices: tuple[int, ...], links: Links | None = None, *,
        with_bytes: bool = True, with_cells: bool = False, num_threads: int = 1,
    ) -> CaseColumns:  # fmt: skip
        """Return what the lists amount to in one case, or one list in many.

        Args:
            costs: Costs of all cases.
            cluster: Machines of all cases, but for the links if these are given.
            devices: The device of each rank.
            links: What all links have in each case, in several of one list alone; None: one case, with the links of
                the cluster.
            with_bytes: Whether it is asked what is held, of costs with bytes.
            with_cells: Whether it is asked when each cell of the only list begins and is over.
            num_threads: Threads that share out the cases.
        """
        num_cases = 1 if links is None else len(links.latencies_s)
        if num_cases > 1 and not self.in_arrays:
            cases = (Links([latency_s], [bandwidth]) for latency_s, bandwidth in zip(*links or (), strict=True))
            singles = [
                self._walked(costs, cluster, devices, case, with_bytes, False, has_steps=False)[0] for case in cases
            ]
            columns = {name: [of for single in singles for of in getattr(single, name)] for name in _COLUMNS}
            return CaseColumns(**columns)
        walked, room = self._walked(costs, cluster, devices, links, with_bytes, with_cells, has_steps=num_cases > 1)
        if num_cases == 1 or links is None:
            return walked
        if not walked.are_known[0]:
            return _in_each(walked, num_cases)
        return self._in_cases(walked, room, costs, links, num_threads)

    def _walked(
        self, costs: StageCosts, cluster: Cluster, devices: tuple[int, ...], links: Links | None, with_bytes: bool,
        with_cells: bool, has_steps: bool,
    ) -> tuple[CaseColumns, ListRoom]:  # fmt: skip
        """Return what each list amounts to in the first case, and what was written on the way of the last one."""
        num_ranks, num_stages, counts, numbers = self._num_ranks, self._num_stages, self._counts, self._numbers
        speeds = [cluster.devices[device].speed for device in devices]
        seconds, sizes, of_bytes = _tables(costs, num_stages, with_bytes=with_bytes, in_arrays=self.in_arrays)
        of_costs = seconds, numbers(speeds, "float64"), sizes
        of_links = tuple(numbers(row, "float64") for row in _links(cluster, devices, links))
        answers, peaks = self._room(len(counts), "int32"), self._room(len(counts) * num_ranks * with_bytes, "int64")
        makespans_s, busy_s, periods_s = (self._room(len(counts)) for _ in range(3))
        loop: Callable[..., Any] = measure_lists
        if self.in_arrays:
            loop = machine_code.compiled(measure_lists, LIST_PARTS, are_inlined=False)
            loop = machine_code.interruptible(loop, 4 * int(self.joined.offsets[-1]))
        is_full = True
        while is_full:
            room = list_room(
                self._room, self._most_cells, num_ranks, num_stages, max(counts), self._num_rows, has_bytes=with_bytes,
                has_cells=with_cells, has_steps=has_steps,
            )  # fmt: skip
            loop(
                *self.joined, numbers(counts, "int64"), num_stages, self._num_rows, self._is_repeated, SAME, of_costs,
                of_links, of_bytes, costs.compression is not None, *room, answers, peaks, makespans_s, busy_s,
                periods_s,
            )  # fmt: skip
            is_full = FULL in answers
            self._num_rows *= 4 if is_full else 1
        are_known = [answer == DONE for answer in answers]
        if self.in_arrays:
            peaks = peaks.reshape(-1, num_ranks)
        else:
            peaks = [peaks[first : first + num_ranks] for first in range(0, len(peaks), num_ranks)]
        return CaseColumns(are_known, makespans_s, busy_s, periods_s, peaks, *room.asked[1:]), room

    def _in_cases(
        self, columns: CaseColumns, room: ListRoom, costs: StageCosts, links: Links, num_threads: int
    ) -> CaseColumns:
        """Return what the only list amounts to in all cases, by the steps of the first one."""
        import numpy as np

        num_stages = self._num_stages
        gaps, inside = room.held[-2:]
        now, senders, receivers, left, last_ways = (room.walked[place] for place in (5, 9, 10, 11, 12))
        works_s, sizes = room.lasts_s[: NUM_KINDS * num_stages], np.asarray(_sizes(costs, num_stages))
        num_cases, (num_steps, num_channels) = len(links.latencies_s), map(int, room.counts)
        latencies_s, bandwidths = (np.asarray(row, float) for row in links)
        num_rows, num_kept = len(room.walked[14]), len(room.walked[15])
        measure_many = machine_code.compiled(measure_cases, CASES_PARTS)

        def measured(first: int, last: int) -> tuple[Any, Any, Any]:
            count = last - first
            block = min(_BLOCK, count)
            of_cases = np.empty(count), np.empty(count), np.empty((len(inside), count), np.int64)
            measure_many(
                num_steps, num_channels, count, *room.steps, gaps, inside, now, senders, receivers, left, last_ways,
                works_s, sizes, latencies_s[first:last], bandwidths[first:last], SAME,
                *(np.empty((rows, block)) for rows in (len(room.lasts_s), num_rows, num_kept)),
                np.empty((len(inside), block), np.int64), *of_cases,
            )  # fmt: skip
            return of_cases

        parts = [num_cases * part // num_threads for part in range(num_threads + 1)]
        if num_threads == 1 or num_cases < num_threads * _BLOCK:
            shares = [measured(0, num_cases)]
        else:
            with ThreadPoolExecutor(num_threads) as pool:
                shares = [*pool.map(measured, parts, parts[1:])]
        makespans_s, periods_s = (np.concatenate([part[column] for part in shares]) for column in range(2))
        peaks = np.hstack([part[2] for part in shares]).T
        return CaseColumns([True] * num_cases, makespans_s, columns.busy_s, periods_s, peaks, [], [])


@lru_cache(maxsize=64)
def _tables(
    costs: StageCosts, num_stages: int, *, with_bytes: bool, in_arrays: bool
) -> tuple[Any, Any, tuple[Any, ...]]:
    """Return the seconds, sizes and bytes of the stages; of many lists they are the same."""
    seconds, sizes = (
        _numbers(column(costs, num_stages), "float64", in_arrays=in_arrays) for column in (_seconds, _sizes)
    )
    return seconds, sizes, bytes_of_stages(costs, num_stages * with_bytes, in_arrays=in_arrays)


def _seconds(costs: StageCosts, num_stages: int) -> list[float]:
    """Return the seconds of each phase, and of the Step, of each stage at speed 1; NaN where none are said."""
    known: dict[tuple[int, int], float] = {}
    rows: list[float] = []
    for kind in range(NUM_KINDS):
        for stage, cost in enumerate(costs.stages[:num_stages]):
            key = kind, stage if costs.compression is not None else id(cost)
            if key not in known:
                op = Step(stage) if kind == NUM_KINDS - 1 else Compute(op_cells.PHASES[kind], stage, 0)
                try:
                    known[key] = costs.pieces(op)[0].seconds
                except ProfileError:
                    known[key] = math.nan
            rows.append(known[key])
    return rows


def _sizes(costs: StageCosts, num_stages: int) -> list[float]:
    """Return the sizes of the activations of each stage, and of its gradients [bytes]."""
    sizes = [0.0] * (2 * num_stages)
    for stage, num_bytes in enumerate(message_bytes(costs, num_stages - 1)):
        sizes[stage] = sizes[num_stages + stage + 1] = float(num_bytes)
    return sizes


def _links(cluster: Cluster, devices: tuple[int, ...], links: Links | None) -> tuple[list[float], list[float]]:
    """Return latency and bandwidth of all links in the first case, or of each pair of ranks."""
    if links is not None:
        return [links.latencies_s[0]], [links.bandwidths[0]]
    if cluster.inter is None and not cluster.links:
        return [cluster.intra.latency_s], [cluster.intra.bandwidth_bytes_per_s]
    return _links_of_pairs(cluster, devices)


@lru_cache(maxsize=16)
def _links_of_pairs(cluster: Cluster, devices: tuple[int, ...]) -> tuple[list[float], list[float]]:
    hops = [cluster.link(source, target) for source in devices for target in devices]
    return [link.latency_s for link in hops], [link.bandwidth_bytes_per_s for link in hops]


def _room(count: int, kind: str = "float64", *, in_arrays: bool) -> Any:
    """Return room for so many numbers."""
    if not in_arrays:
        return [0] * count
    import numpy as np

    return np.empty(count, kind)


def _numbers(numbers: Any, kind: str, *, in_arrays: bool) -> Any:
    """Return numbers as they are, or as an array."""
    if not in_arrays:
        return numbers
    import numpy as np

    return np.asarray(numbers, kind)
