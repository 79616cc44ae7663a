"""Lists that are walked once and gone through for many cases: columns of numbers in, columns out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from operator import mul
from typing import Any, NamedTuple, final

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Compute, OpColumns, Schedule, Step, machine_code, op_columns
from pipesched.simulator import SAME
from pipesched.simulator.fast import CASE_PARTS, CASES_PARTS, measure_case, measure_cases
from pipesched.simulator.sweep.held_totals import bytes_of_stages, hold, message_bytes
from pipesched.simulator.sweep.list_walk import DONE, FULL, NUM_KINDS, walk

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
    """What lists amount to in k cases, in arrays, or in lists where they are few.

    Attributes:
        makespans_s: Seconds from the first work to the end of the last.
        busy_s: Seconds in which the devices compute, all of them together: the same in all cases.
        periods_s: How long after a batch the next one is the same; below 0 where the batch does not show it.
        peaks: Of each rank the most that it holds in each case; none where the costs have no bytes.
        begun_s: Of each cell when it begins in each case; none where that was not asked for.
        over_s: Of each when it is over.
    """

    makespans_s: Any
    busy_s: float
    periods_s: Any
    peaks: Any
    begun_s: Any
    over_s: Any


def walkable(schedule: Schedule) -> bool:
    """Whether lists have nothing in them that steps do not say, as far as is known before they are walked."""
    return (
        schedule.is_held
        and not schedule.is_lowered
        and schedule.num_ranks <= _MOST_RANKS
        and len(set(schedule.rank_to_device)) == schedule.num_ranks
        and all(
            numbers is None or machine_code.bounds(numbers) == (0, 0)
            for numbers in (schedule.columns.others, schedule.columns.lookaheads)
        )
    )


@final
class WalkedLists:
    """The steps of lists, and where what they hold is made and dropped.

    Args:
        columns: Columns without communication, `walkable`.
        num_stages: How many stages there are.
        num_microbatches: How many micro-batches.
        has_bytes: Whether it is asked what is held.
        is_repeated: Whether ops may come behind a Step of their stage, as those of the next batch do.
        num_cases: How many cases they will be gone through for, as far as that is known.

    Attributes:
        is_walked: Whether all is found; else the lists have something in them that steps do not say, or cannot end.
        in_arrays: Whether their numbers are in NumPy's arrays, and machine code goes through them.
        cells: Where the cells of each rank begin, their codes, stages and micro-batches.
    """

    def __init__(
        self, columns: OpColumns, num_stages: int, num_microbatches: int, *, has_bytes: bool = True,
        is_repeated: bool = False, num_cases: int = 1,
    ) -> None:  # fmt: skip
        self.num_stages, self.num_microbatches = num_stages, num_microbatches
        num_ranks, num_cells = columns.num_ranks, len(columns.codes)
        self.in_arrays = in_arrays = machine_code.is_hot(4 * num_cells * num_cases)
        self.cells = columns.in_form(in_arrays=in_arrays)[:4]
        self._numbers = partial(_numbers, in_arrays=in_arrays)
        self.room = partial(_room, in_arrays=in_arrays)
        num_states, num_pairs = num_stages * num_microbatches, num_ranks * num_ranks
        most_channels, most_steps = min(2 * num_stages, num_pairs), num_cells + 4 * num_states
        self.num_rows, outcome = max(64, 4 * num_ranks, min(2 * num_microbatches, 4096)), FULL
        walk_all = machine_code.loop_in(walk, in_arrays=in_arrays)
        while outcome == FULL:
            num_kept = num_ranks * self.num_rows if has_bytes else 0
            sizes = [
                2, num_states, num_states, *[2 * num_states] * 10, num_ranks, num_ranks, num_ranks, num_pairs, num_kept,
                self.num_rows, *[num_pairs] * 6, *[most_channels] * 4, 2 * num_stages, *[most_steps] * 7,
            ]  # fmt: skip
            parts = _rooms(sizes, in_arrays=in_arrays)
            outcome = walk_all(*self.cells, num_stages, num_microbatches, self.num_rows, has_bytes, is_repeated, *parts)
            self.num_rows *= 4 if outcome == FULL else 1
        self._counts, self.homes, self.masks, self._messages, self._now = *parts[:3], parts[3:13], parts[15]
        self._channels, self._steps = parts[25:29], parts[30:]
        self.is_walked = outcome == DONE
        self._kind_counts = columns.counts[: NUM_KINDS - 1] + columns.counts[op_columns.STEP : op_columns.STEP + 1]
        self._held: tuple[StageCosts, Any, Any] | None = None
        self._known_counts: list[tuple[int, int]] | None = None

    @property
    def takes_many(self) -> bool:
        """Whether several cases can be gone through together, which machine code does."""
        return self.in_arrays

    def can_add_up(self, costs: StageCosts) -> bool:
        """Whether all that costs say is held is so little that it is added up in 64 bits."""
        bytes_of = ((c.weight_bytes, c.optimizer_bytes, c.output_bytes, c.saved_bytes, c.saved_for_weight_bytes or 0)
                    for c in dict.fromkeys(costs.stages))  # fmt: skip
        return max(map(max, bytes_of)) * 8 * (len(self.cells[1]) + self.num_stages) < _LARGEST

    def measures(
        self, costs: StageCosts, cluster: Cluster, devices: tuple[int, ...], links: Links | None = None, *,
        with_bytes: bool = True, with_cells: bool = False, num_threads: int = 1,
    ) -> CaseColumns:  # fmt: skip
        """Return what the lists amount to.

        Args:
            costs: Costs of all cases.
            cluster: Machines of all cases, but for the links if these are given.
            devices: The device of each rank.
            links: What all links have in each case; None: one case, with the links of the cluster.
            with_bytes: Whether it is asked what is held, of costs with bytes.
            with_cells: Whether it is asked when each cell begins and is over, of a single case.
            num_threads: Threads that share out the cases.

        Raises:
            ProfileError: The costs do not say the seconds of a phase that the lists have.
        """
        num_ranks, num_cells, numbers = len(devices), len(self.cells[1]), self._numbers
        works_s, busy_s = self._works(costs, cluster, devices)
        sizes, link_of, latencies_s, bandwidths = self._ways(costs, cluster, devices, links)
        gaps, inside = self._totals(costs) if with_bytes else (numbers([], "int64"), numbers([], "int64"))
        num_cases = 1 if links is None else len(links.latencies_s)
        num_channels, room = int(self._counts[1]), self.room
        num_rows, num_kept = 1 + 2 * num_ranks + self.num_rows + 2 * num_channels, num_ranks + num_channels
        steps = *self._steps, gaps
        if num_cases == 1:
            peaks = numbers([*map(int, inside)], "int64")
            makespans_s, periods_s = room(1), room(1)
            begun_s, over_s = room(num_cells * with_cells), room(num_cells * with_cells)
            measure: Callable[..., Any] = (
                machine_code.compiled(measure_case, CASE_PARTS) if self.in_arrays else measure_case
            )
            measure(
                int(self._counts[0]), num_channels, *steps, self._now, *self._channels,
                self._lasts(works_s, sizes, link_of, latencies_s, bandwidths), SAME, room(num_rows), room(num_kept),
                makespans_s, periods_s, peaks, begun_s, over_s,
            )  # fmt: skip
            return CaseColumns(makespans_s, busy_s, periods_s, peaks, begun_s, over_s)
        import numpy as np

        measure_many = machine_code.compiled(measure_cases, CASES_PARTS)

        def measured(first: int, last: int) -> tuple[Any, Any, Any]:
            count = last - first
            block, num_lasts = min(_BLOCK, count), len(works_s) + 2 * len(sizes)
            of_cases = room(count), room(count), np.empty((len(inside), count), np.int64)
            measure_many(
                int(self._counts[0]), num_channels, count, *steps, inside, self._now, *self._channels, works_s, sizes,
                latencies_s[first:last], bandwidths[first:last], SAME,
                *(np.empty((rows, block)) for rows in (num_lasts, num_rows, num_kept)),
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
        return CaseColumns(makespans_s, busy_s, periods_s, np.hstack([part[2] for part in shares]), [], [])

    def _lasts(self, works_s: Any, sizes: Any, link_of: Any, latencies_s: Any, bandwidths: Any) -> Any:
        """Return all durations of a single case."""
        if self.in_arrays:
            import numpy as np

            lasts_s = np.empty(len(works_s) + 2 * len(sizes))
            lasts_s[: len(works_s)] = works_s
            lasts_s[len(works_s) :: 2] = sizes / bandwidths[link_of]
            lasts_s[len(works_s) + 1 :: 2] = latencies_s[link_of]
            return lasts_s
        ways = zip(sizes, link_of, strict=True)
        return works_s + [part for size, row in ways for part in (size / bandwidths[row], latencies_s[row])]

    def _works(self, costs: StageCosts, cluster: Cluster, devices: tuple[int, ...]) -> tuple[Any, float]:
        """Return the seconds of each phase and of the Step of each stage, and of all cells together.

        Raises:
            ProfileError: The costs do not say them.
        """
        num_stages, kinds = self.num_stages, op_columns.PHASES
        known: dict[tuple[int, int, float], float] = {}
        speeds = [cluster.devices[device].speed for device in devices]
        is_alike = costs.compression is None and len(set(map(id, costs.stages))) == len(set(speeds)) == 1

        def seconds_of(kind: int, stage: int) -> float:
            op = Step(stage) if kind == NUM_KINDS - 1 else Compute(kinds[kind], stage, 0)
            speed = speeds[int(self.homes[stage * self.num_microbatches])]
            key = kind, stage if costs.compression is not None else id(costs.stages[stage]), speed
            if key not in known:
                known[key] = costs.pieces(op)[0].seconds / speed
            return known[key]

        if is_alike:  # of all stages what is known of the first
            of_kinds = [seconds_of(kind, 0) if count else 0.0 for kind, count in enumerate(self._kind_counts)]
            busy_s = sum(map(mul, self._kind_counts, of_kinds))
            return self._numbers([second for second in of_kinds for _ in range(num_stages)], "float64"), busy_s
        seconds, busy_s = [0.0] * (NUM_KINDS * num_stages), 0.0
        for number, count in self._num_cells():
            seconds[number] = seconds_of(*divmod(number, num_stages))
            busy_s += count * seconds[number]
        return self._numbers(seconds, "float64"), busy_s

    def _num_cells(self) -> list[tuple[int, int]]:
        """Return how many cells there are of each phase, or Step, of each stage of which there are some."""
        if self._known_counts is None:
            _, codes, stages, _ = self.cells
            last = NUM_KINDS - 1
            if self.in_arrays:
                import numpy as np

                kinds = np.minimum(codes, last) * np.int64(self.num_stages) + stages
                counts = enumerate(np.bincount(kinds).tolist())
                self._known_counts = [(number, count) for number, count in counts if count]
            else:
                kinds = [min(code, last) * self.num_stages + stage for code, stage in zip(codes, stages, strict=True)]
                self._known_counts = sorted(Counter(kinds).items())
        return self._known_counts

    def _ways(
        self, costs: StageCosts, cluster: Cluster, devices: tuple[int, ...], links: Links | None
    ) -> tuple[Any, Any, Any, Any]:
        """Return the sizes of messages, the row of each one's link, and rows of latencies and bandwidths."""
        num_stages, count = self.num_stages, self.num_microbatches
        sizes = [0.0] * (2 * num_stages)
        for stage, num_bytes in enumerate(message_bytes(costs, num_stages - 1)):
            sizes[stage] = sizes[num_stages + stage + 1] = float(num_bytes)
        if links is not None or (cluster.inter is None and not cluster.links):
            link = cluster.intra
            columns = Links([link.latency_s], [link.bandwidth_bytes_per_s]) if links is None else links
            rows = ([0] * len(sizes), columns.latencies_s, columns.bandwidths)
        else:
            homes = [devices[int(self.homes[stage * count])] for stage in range(num_stages)]
            ends = [*pairwise(homes), (0, 0), (0, 0), *((target, source) for source, target in pairwise(homes))]
            hops = [cluster.link(*hop) for hop in ends]
            rows = (
                [*range(len(sizes))],
                [link.latency_s for link in hops],
                [link.bandwidth_bytes_per_s for link in hops],
            )
        link_of, latencies_s, bandwidths = rows
        reals = partial(self._numbers, kind="float64")
        return reals(sizes), self._numbers(link_of, "int32"), reals(latencies_s), reals(bandwidths)

    def _totals(self, costs: StageCosts) -> tuple[Any, Any]:
        """Return what each rank holds in front of cells, where that is more than what it holds inside all, and that."""
        if self._held is None or self._held[0] is not costs:
            num_cells, num_ranks = len(self.cells[1]), len(self._now)
            parts = bytes_of_stages(costs, self.num_stages, in_arrays=self.in_arrays)
            room = partial(self.room, kind="int64")
            (opened,) = _rooms([self.num_stages], in_arrays=self.in_arrays)
            starts, ends, before = room(num_cells), room(num_cells), room(num_cells + num_ranks)
            gaps, inside = room(num_cells), room(num_ranks)
            made, _, _, recv_at, gone_at, *_ = self._messages
            machine_code.loop_in(hold, in_arrays=self.in_arrays)(
                *self.cells, self.num_stages, self.num_microbatches, self.homes, self.masks, made, recv_at, gone_at,
                *parts, costs.compression is not None, opened, starts, ends, before,
                gaps, inside,
            )  # fmt: skip
            self._held = costs, gaps, inside
        return self._held[1:]


def _rooms(sizes: list[int], *, in_arrays: bool) -> list[Any]:
    """Return room for so many integers each: lists, or parts of one array, as many small ones would take longer."""
    if not in_arrays:
        return [[0] * size for size in sizes]
    import numpy as np

    room, ends = np.empty(sum(sizes), np.int32), [*accumulate(sizes)]
    return [room[end - size : end] for size, end in zip(sizes, ends, strict=True)]


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
