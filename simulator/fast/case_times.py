"""The times of a program under many costs and on many machines at once.

    case                0     1     2          k pairs of costs and machines
    F on rank 0       1 s   1 s   2 s          each duration is a vector,
    message           0 s   3 s   3 s          each time the larger of two others, and a duration later
    ...

Each case is a run of the event loop. Where nothing is shared, though, it is known beforehand what comes after what:
then the program is gone through once, and its steps are those that `step_times` goes through for many cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, final

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import machine_code
from pipesched.simulator import NetworkOptions, SimulationError, differ, is_usual
from pipesched.simulator.fast.array_engine import program_times
from pipesched.simulator.fast.loop_arrays import END, PAUSE, RECV, SEND, WAIT
from pipesched.simulator.fast.program import Program, WorkTime
from pipesched.simulator.fast.program_costs import duration_piece
from pipesched.simulator.fast.step_times import go_through, go_through_together

Case: TypeAlias = tuple[StageCosts, Cluster]

_FEW_CASES = 8
"""So few are quicker one after the other: to find the steps takes as long as some runs of the loop."""

_UNKNOWN = -1


class CaseTimes(NamedTuple):
    """The times of a program in k cases.

    Attributes:
        rows: Rows of k times [s].
        row_of: Of each time of the program its row.
    """

    rows: Any
    row_of: Any

    def of(self, numbers: Sequence[int]) -> Any:
        """Return an array of the times with some numbers: a row each, a column for each case [s]."""
        import numpy as np

        return self.rows[self.row_of[np.asarray(numbers, np.int64)]]


@final
class CaseProgram:
    """A program for many cases; where nothing is shared, the steps through it are found once.

    Args:
        program: Program of lowered lists, a device for every rank.
        network: How messages go.
    """

    def __init__(self, program: Program, network: NetworkOptions) -> None:
        self._program = program
        self._network = network
        self._steps: _Steps | None = None

    def times(self, cases: Sequence[Case]) -> CaseTimes:
        """Return the times in each case.

        Raises:
            ProfileError: Costs do not say the seconds of a phase that the lists have.
            SimulationError: A rank waits forever.
        """
        import numpy as np

        program, network = self._program, self._network
        is_shared = program.reductions or not is_usual(network) or any(cluster.nics for _, cluster in cases)
        if len(cases) < _FEW_CASES or is_shared:
            columns = [program_times(program, *case, network) for case in cases]
            return CaseTimes(np.array(columns).T, np.arange(program.num_times))
        if self._steps is None:
            self._steps = _Steps(program)
        return CaseTimes(self._steps.rows(cases), np.array(self._steps.row_of))


@final
class _Steps:
    """The way through a program on which each step knows what it needs: a topological order of its times.

    Row 0 is the beginning, and row n what step n gives: the larger of two rows, and some duration later.
    """

    def __init__(self, program: Program) -> None:
        program = program.in_lists
        self.row_of = [_UNKNOWN] * program.num_times
        self._program = program
        self._steps: list[tuple[int, int, int]] = [(0, 0, 0)]
        self._ways: dict[tuple[int, int], int] = {}  # (channel, size): its duration, behind those of the program
        self._posted = [_UNKNOWN] * len(program.following)  # the row of the first side
        self._left = [0] * len(program.channels)  # the row from which on the link is free
        self._waiting: dict[int, int] = {}  # by transfer the rank that waits for it
        at, now = program.begins[:-1], [0] * len(program.schedule.ops)
        ready = list(range(len(at)))
        while ready:
            rank = ready.pop()
            at[rank], now[rank] = self._advance(rank, at[rank], now[rank], ready)
        if any(program.kinds[i] != END for i in at):
            raise SimulationError(f"{program.schedule.name}: deadlock: some rank waits forever; check the schedule")

    def rows(self, cases: Sequence[Case]) -> Any:
        """Return the row of each step, in all cases [s]."""
        import numpy as np

        lasts_s, count = self._durations(cases), len(self._steps)
        lasts_s[0] = 0.0  # which says that there is none
        firsts, seconds, takes = ([step[part] for step in self._steps[1:]] for part in range(3))
        if not machine_code.is_hot(count * len(cases), go_through_together, (differ,)):
            columns = []
            for column_s in lasts_s.T.tolist():
                rows = [0.0] * count
                go_through(count - 1, firsts, seconds, takes, column_s, rows)
                columns.append(rows)
            return np.array(columns).T
        dests, none = range(1, count), [-1] * (count - 1)  # they are of no cell, and nothing is asked for
        rows_s, nothing = np.zeros((count, len(cases))), np.empty((0, len(cases)))
        steps = (np.array(part, np.int32) for part in (dests, firsts, seconds, takes, none, none, none))
        machine_code.compiled(go_through_together, (differ,))(
            count - 1, len(cases), *steps, np.empty(0, np.int64), lasts_s, rows_s, nothing, nothing.astype(np.int64)
        )
        return rows_s

    def _advance(self, rank: int, i: int, now: int, ready: list[int]) -> tuple[int, int]:
        """Work through the instructions of a rank until a time is not known yet; return where it is, and its row."""
        kinds, targets, takes = self._program.kinds, self._program.targets, self._program.takes
        over = self._program.num_times - len(self._posted)
        while True:
            kind, target = kinds[i], targets[i]
            self.row_of[i] = now
            if kind == END:
                return i, now
            if kind == WAIT:
                end = self.row_of[over + target]
                if end == _UNKNOWN:
                    self._waiting[target] = rank
                    return i, now
                now = self._step(now, end)
            elif kind <= PAUSE:
                now = self._step(now, takes=takes[i])
            elif kind in (SEND, RECV):
                if self._posted[target] == _UNKNOWN:
                    self._posted[target] = now
                else:
                    self._transfer(target, now)
                    if target in self._waiting:
                        ready.append(self._waiting.pop(target))
            i += 1

    def _transfer(self, target: int, posted: int) -> None:
        """Add a transfer whose second side has come: over the link, as soon as it is free, and the latency."""
        program, count = self._program, len(self._program.kinds)
        channel = program.channel_of[target]
        start = self._step(self._step(posted, self._posted[target]), self._left[channel])
        number = len(program.durations) + 2 * self._ways.setdefault((channel, program.sizes[target]), len(self._ways))
        self._left[channel] = self._step(start, takes=number)
        self.row_of[count + target] = start
        self.row_of[program.num_times - len(self._posted) + target] = self._step(self._left[channel], takes=number + 1)

    def _step(self, first: int, second: int = 0, takes: int = 0) -> int:
        """Return the row of a step, a new one where it is not that of another."""
        if not first:
            first, second = second, 0
        if not takes and second in (0, first):
            return first
        self._steps.append((first, second, takes))
        return len(self._steps) - 1

    def _durations(self, cases: Sequence[Case]) -> Any:
        """Return a row for each duration, of its seconds in each case; those of an op are asked once for like cases."""
        import numpy as np

        program, devices = self._program, self._program.schedule.rank_to_device
        rows = np.empty((len(program.durations) + 2 * len(self._ways), len(cases)))
        alike_on: dict[int, tuple[list[Case], Any]] = {}
        for row, duration in zip(rows, program.durations, strict=False):
            if not isinstance(duration, WorkTime):
                row[:] = [duration_piece(duration, *case).seconds for case in cases]
                continue
            if duration.device not in alike_on:
                alike_on[duration.device] = _alike(cases, duration.device)
            some, numbers = alike_on[duration.device]
            row[:] = np.array([duration_piece(duration, *case).seconds for case in some])[numbers]
        all_costs = {id(costs): costs for costs, _ in cases}
        links_of: dict[bool | tuple[int, int], tuple[Any, Any]] = {}
        is_flat = all(cluster.inter is None and not cluster.links for _, cluster in cases)
        for number, (channel, size) in zip(range(len(program.durations), len(rows), 2), self._ways, strict=True):
            source, target = (devices[rank] for rank in program.channels[channel])
            key = is_flat or (source, target)
            if key not in links_of:
                links = [cluster.link(source, target) for _, cluster in cases]
                rates = np.array([link.bandwidth_bytes_per_s for link in links])
                links_of[key] = rates, np.array([link.latency_s for link in links])
            rates, latencies_s = links_of[key]
            sizes_of = {id(costs): costs.message_bytes(program.messages[size]) for costs in all_costs.values()}
            sizes = np.array([sizes_of[id(costs)] for costs, _ in cases] if len(sizes_of) > 1 else [*sizes_of.values()])
            rows[number], rows[number + 1] = sizes / rates, latencies_s
        return rows


def _alike(cases: Sequence[Case], device: int) -> tuple[list[Case], Any]:
    """Return cases of distinct costs and speeds of a device, and of each case the number of the one that is like it."""
    import numpy as np

    numbers: dict[tuple[int, float], int] = {}
    some: list[Case] = []
    like = np.empty(len(cases), np.int64)
    for i, case in enumerate(cases):
        key = id(case[0]), case[1].devices[device].speed
        if key not in numbers:
            numbers[key] = len(some)
            some.append(case)
        like[i] = numbers[key]
    return some, like
