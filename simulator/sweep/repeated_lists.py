"""The pace of a batch that is repeated, by longer runs of its lists as columns, as `predict_repeated` has it."""

from __future__ import annotations

from functools import partial
from typing import Any, final

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import OpColumns, Schedule, machine_code
from pipesched.simulator import SAME, SteadyPace
from pipesched.simulator.fast import idle_share, longer_times
from pipesched.simulator.sweep.list_walk import STEP, R
from pipesched.simulator.sweep.walked_lists import Links, WalkedLists


@final
class RepeatedLists:
    """Longer runs of a batch that does not show its pace by itself, made when they are first looked at.

    Args:
        schedule: One batch, of which `WalkedLists` could be made.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._runs: dict[int, WalkedLists] = {}

    def pace(self, costs: StageCosts, cluster: Cluster, links: Links | None = None) -> SteadyPace | None:
        """Return the pace in the long run; None where longer runs do not settle.

        Args:
            costs: Costs of the stages.
            cluster: Devices and links, of which nothing is shared.
            links: What all links have in the only case; None: as the cluster says.
        """
        schedule, batch = self._schedule, self._schedule.num_microbatches
        for times in longer_times(schedule):
            lists, count = self._run(times), times * batch
            run = lists.measures(costs, cluster, schedule.rank_to_device, links, with_bytes=False, with_cells=True)
            if not run.are_known[0]:
                return None
            room = partial(machine_code.filled, in_arrays=lists.in_arrays)
            period, num_cells = machine_code.filled_like(run.makespans_s, 3), len(run.begun_s)
            machine_code.loop_in(_find_pace, in_arrays=lists.in_arrays)(
                *lists.joined[1:], schedule.num_stages, count, batch, run.begun_s, run.over_s,
                float(run.makespans_s[0]), SAME, room((R + 1) * schedule.num_stages * count, -1), room(num_cells, 0),
                period,
            )  # fmt: skip
            lag, gain_s, busy_s = map(float, period)
            if lag:
                return SteadyPace(gain_s / lag, idle_share(busy_s, schedule.num_ranks, gain_s))
        return None

    def _run(self, times: int) -> WalkedLists:
        if times not in self._runs:
            schedule, count = self._schedule, times * self._schedule.num_microbatches
            columns = _repeated(schedule.columns, times, schedule.num_microbatches)
            self._runs[times] = WalkedLists([columns], schedule.num_stages, [count], is_repeated=True)
        return self._runs[times]


def _repeated(columns: OpColumns, times: int, num_microbatches: int) -> OpColumns:
    """Return the columns of a batch that is repeated, as `schedules.repeat` repeats it."""
    num_cells, num_ranks = len(columns.codes), columns.num_ranks
    in_arrays = machine_code.is_hot(times * num_cells, _write_repeated)
    cells = columns.in_form(in_arrays=in_arrays)[:4]
    room = partial(machine_code.filled, number=0, in_arrays=in_arrays)
    longer = (
        room(num_ranks + 1), room(times * num_cells, are_small=True), room(times * num_cells), room(times * num_cells)
    )  # fmt: skip
    machine_code.loop_in(_write_repeated, in_arrays=in_arrays)(*cells, times, num_microbatches, *longer)
    return OpColumns(*longer)


def _write_repeated(
    begins: Any, codes: Any, stages: Any, microbatches: Any, times: int, num_microbatches: int,
    longer_begins: Any, longer_codes: Any, longer_stages: Any, longer_microbatches: Any,
) -> None:  # fmt: skip
    """Write the cells of each rank so many times, the micro-batches of each batch behind those of the one before."""
    at = 0
    for rank in range(len(begins) - 1):
        longer_begins[rank] = at
        for batch in range(times):
            for i in range(begins[rank], begins[rank + 1]):
                longer_codes[at], longer_stages[at] = codes[i], stages[i]
                longer_microbatches[at] = microbatches[i] + (batch * num_microbatches if codes[i] != STEP else 0)
                at += 1
    longer_begins[len(begins) - 1] = at


def _find_pace(  # noqa: C901 -- a loop over numbers
    begins: Any, codes: Any, stages: Any, microbatches: Any, num_stages: int, count: int, batch: int, begun_s: Any,
    over_s: Any, makespan_s: float, same: float, cell_of: Any, late: Any, period: Any,
) -> None:  # fmt: skip
    """Find the lag after which all ops of the last batch come as long after those of before.

    Args:
        begins: As `OpColumns` has them, as are the next three.
        codes: n codes.
        stages: n stages.
        microbatches: n micro-batches.
        num_stages: How many stages there are.
        count: Micro-batches of the run.
        batch: Micro-batches of a batch.
        begun_s: When each cell begins [s].
        over_s: When it is over [s].
        makespan_s: The makespan of the run [s].
        same: By how much of it times may differ that are the same.
        cell_of: Of each phase of each micro-batch of each stage its cell, -1 at first.
        late: n numbers, to be written: the cells of the last batch.
        period: 3 numbers, to be written: the lag in micro-batches, 0 if there is none; how much later [s]; and how long
            all devices work in as long a time before each one's last of these cells [s].
    """
    num_late, num_cells = 0, begins[len(begins) - 1]
    for i in range(num_cells):
        if codes[i] <= R:
            cell_of[(codes[i] * num_stages + stages[i]) * count + microbatches[i]] = i
            if microbatches[i] >= count - batch:
                late[num_late] = i
                num_late += 1
    lag, gain_s = 0, 0.0
    for behind in range(batch, count // 2 + 1, batch):
        least_s, most_s, sum_s, is_known = 0.0, 0.0, 0.0, True
        for number in range(num_late):
            i = late[number]
            before = cell_of[(codes[i] * num_stages + stages[i]) * count + microbatches[i] - behind]
            if before < 0:
                is_known = False
                break
            gain_s = over_s[i] - over_s[before]
            least_s = gain_s if number == 0 else min(least_s, gain_s)
            most_s = gain_s if number == 0 else max(most_s, gain_s)
            sum_s += gain_s
        if is_known and num_late and most_s - least_s <= same * max(abs(most_s), abs(least_s)):
            lag, gain_s = behind, sum_s / num_late
            break
    period[0] = lag
    if lag == 0:
        return
    last_s, busy_s = 0.0, 0.0
    for number in range(num_late):
        last_s = max(last_s, over_s[late[number]])
    for rank in range(len(begins) - 1):
        until_s, has_late = 0.0, False
        for i in range(begins[rank], begins[rank + 1]):
            if codes[i] <= R and microbatches[i] >= count - batch:
                until_s, has_late = max(until_s, over_s[i]), True
        until_s = until_s if has_late else last_s
        now_s = until_s - gain_s
        for i in range(begins[rank], begins[rank + 1]):
            start_s, end_s = max(begun_s[i], now_s), min(over_s[i], until_s)
            if start_s - now_s <= same * makespan_s:  # no gap, as in the idle time of a run
                start_s = now_s
            if end_s > start_s:
                busy_s += end_s - start_s
                now_s = end_s
    period[1], period[2] = gain_s, busy_s
