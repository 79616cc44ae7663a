"""The steady state of a long run: seconds per micro-batch when warm-up and cool-down no longer count.

A batch that is repeated is mostly settled by its own Timeline. Let the ranks that begin first all end at L, and no
other rank or channel end later than L after its own beginning:

    rank 0  F0 F1 .. .. .. B0 .. B1 | F2 F3 ..        begins at 0, ends at L
    rank 1  .. F0 F1 B0 .. B1 .. ..   .. F2 ..        begins at s, ends before L + s

Every time is the longest path to it from some rank's beginning. All other ranks wait for the ranks that begin first, so
it is the longest path from the beginning of these. At L they are ready for the next batch, and every other rank is
ready before it has to work on that batch. So the next batch runs like the first, L later, and so do all that follow. If
ranks share devices, links or NICs, one slows another, and times are not longest paths. Then nothing at all may be left
at L, so that the next batch begins as the first did.

Otherwise longer runs are simulated, as in `steady_pace`.

The work of devices is also counted over one period, because a whole run has less: its last Steps need not keep a copy
of the weights, and its first ops have no weights to predict.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import final

import numpy as np

from pipesched.profiles.clusters import Cluster, possible_hops
from pipesched.schedules import Schedule, Timeline, repeat
from pipesched.schedules.columns import OpColumns, machine_code, op_cells
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Message, Op, Recv, Reduce, Send, Summed
from pipesched.schedules.transforms import with_steps
from pipesched.simulator import (
    SAME,
    USUAL_NETWORK,
    Estimate,
    Inexact,
    Meaning,
    NetworkOptions,
    Scenario,
    SteadyPace,
    is_usual,
)
from pipesched.simulator.engine import lists_of_all
from pipesched.simulator.fast.array_engine import ScenarioLists
from pipesched.simulator.fast.timeline_extents import busy_s, idle_share, timeline_extents

_MOST_REPEATED_CELLS = 1_000_000
"""Stages times micro-batches of the longest batch that is looked at twice or more, one after the other."""
_MOST_CELLS = 20_000
"""Stages times micro-batches of the longest run that is looked at, which takes about a second."""


@final
class RepeatedRuns:
    """A batch that is repeated ever more often, each run compiled once for any costs and links.

    Args:
        schedule: One batch of a schedule with a flush.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._runs: dict[int, ScenarioLists] = {}  # by the number of batches

    def predict(self, scenario: Scenario, timeline: Timeline | None = None) -> Estimate | Inexact:
        """Predict the pace at which batches follow one another, each stage stepping once between.

        Args:
            scenario: Scenario of one batch of the schedule, with any costs and machines.
            timeline: SimPy's Timeline of it without jitter, or None to simulate it here.

        Returns:
            The seconds of a batch in the steady state and its bubble, without memory; or the reason why they are
            unknown.

        Raises:
            ScheduleError, SimulationError, ProfileError: As `simulate_lists` does.
        """
        if scenario.num_pipelines > 1:
            return several(scenario)
        batch, schedule = self._batch, self._schedule
        if timeline is None or batch is not schedule:
            _, timeline = self._run(scenario, 1)
        pace = batch_pace(batch, timeline, scenario.cluster, scenario.network)
        if pace is None and schedule.num_stages * schedule.num_microbatches <= _MOST_REPEATED_CELLS:
            pace = repeated_pace(map(partial(self._run, scenario), longer_times(schedule)), batch.num_microbatches)
        return paced(scenario, pace)

    @cached_property
    def _batch(self) -> Schedule:
        schedule = self._schedule
        is_alone = schedule.averagers and schedule.pipelines == 1  # so it has no reference to average with
        return with_steps(lists_of_all(schedule, 1) if is_alone else schedule)

    def _run(self, scenario: Scenario, times: int) -> tuple[Schedule, Timeline]:
        """Return the op lists of `times` batches, and their Timeline in a scenario."""
        if times not in self._runs:
            lists = self._batch if times == 1 else repeat(self._batch, times, in_memory=True)
            self._runs[times] = ScenarioLists(lists)
        return self._runs[times].schedule, self._runs[times].under(scenario).timeline()


def several(scenario: Scenario) -> Inexact:
    """Return the reason why one run cannot show the pace of several pipelines."""
    return Inexact(
        f"{scenario.schedule.name}: got {scenario.num_pipelines} pipelines, expected one, as several drift apart; "
        "try predict_drifting"
    )


def longer_times(schedule: Schedule) -> Iterator[int]:
    """Yield the lengths of the longer runs as multiples of the given run: 2, 4 and so on, at least one."""
    times, cells = 2, 2 * schedule.num_stages * schedule.num_microbatches
    while times == 2 or times // 2 * cells <= _MOST_CELLS:
        yield times
        times *= 2


def paced(scenario: Scenario, pace: SteadyPace | None) -> Estimate | Inexact:
    """Return the estimate of a pace, or the reason why it is missing."""
    schedule = scenario.schedule
    if pace is None:
        return Inexact(f"{schedule.name}: got runs that reach no steady state, expected a steady state; try simulate")
    seconds = pace.s_per_microbatch * schedule.num_microbatches
    return Estimate(Meaning.PACE, seconds, {}, bubble_fraction=pace.bubble_fraction)


def batch_pace(
    schedule: Schedule, timeline: Timeline, cluster: Cluster, network: NetworkOptions = USUAL_NETWORK
) -> SteadyPace | None:
    """Return the pace of a batch that is repeated, or None if its Timeline alone does not show it.

    Args:
        schedule: Schedule of one batch, lowered.
        timeline: Timeline of `schedule`, without jitter.
        cluster: The machines that it was simulated with.
        network: How messages went in that simulation.
    """
    if not shows_period(schedule, cluster, network):
        return None
    extents = timeline_extents(timeline)
    period_s = shown_period_s(extents.ranks, extents.channels, is_shared=not is_unshared(schedule, cluster))
    if period_s is None:
        return None
    bubble_fraction = idle_share(busy_s(timeline), len(timeline.devices), period_s)
    return SteadyPace(period_s / schedule.num_microbatches, bubble_fraction)


def shows_period(schedule: Schedule, cluster: Cluster, network: NetworkOptions = USUAL_NETWORK) -> bool:
    """Whether the Timeline of one batch, lowered, can show the period of the repeated batch."""
    if not is_usual(network) or _predicts_weights(schedule):
        return False
    return not cluster.has_hand_over  # a rank that hands over is not free when its last work is over


def shown_period_s(
    ranks: Sequence[tuple[float, float]], channels: Sequence[tuple[float, float]], *, is_shared: bool = False
) -> float | None:
    """Return the period of a batch that repeats without a change, or None if the times of one batch do not show it.

    Args:
        ranks: For each rank, the start of its list and the end of its last op other than messages [s].
        channels: For each channel, the start of its first message and the arrival of its last [s].
        is_shared: Whether ranks share a device, a link or a NIC.
    """
    first_s = min(begin_s for begin_s, _ in ranks)
    ready_s = [end_s for begin_s, end_s in ranks if begin_s == first_s]
    period_s = max(ready_s) - first_s
    longest_s = max(end_s - (first_s if is_shared else begin_s) for begin_s, end_s in (*ranks, *channels))
    is_same = max(longest_s, period_s) - period_s + max(ready_s) - min(ready_s) <= SAME * period_s
    return period_s if is_same else None


def _predicts_weights(schedule: Schedule) -> bool:
    """Whether ops look ahead, which takes time in every batch but the first, which has nothing to predict from."""
    lookaheads = schedule.columns.lookaheads
    return lookaheads is not None and bool((lookaheads > 0).any())


def repeated_pace(runs: Iterable[tuple[Schedule, Timeline]], batch: int) -> SteadyPace | None:
    """Return the pace of a batch that is repeated ever more often; None if it does not settle.

    Args:
        runs: The runs from the shortest to the longest, which are simulated only as far as they are needed.
        batch: Micro-batches of the batch.
    """
    for schedule, timeline in runs:
        count = schedule.num_microbatches
        late = LateOps(timeline.columns.ops, range(count - batch, count))
        pace = late.pace(timeline, range(batch, count // 2 + 1, batch))
        if pace is not None:
            return pace
    return None


@final
class LateOps:
    """The computations of some micro-batches of a run, found once for any times.

    Args:
        ops: All ops of the run.
        microbatches: The micro-batches.
    """

    def __init__(self, ops: OpColumns, microbatches: range) -> None:
        self.ops = ops
        cells = np.flatnonzero((ops.codes < op_cells.SEND_F) | (ops.codes >= op_cells.OVERLAPPED))
        ranks = np.repeat(np.arange(ops.num_ranks), np.diff(ops.begins))[cells]
        numbers, shape = (
            ops.microbatches[cells],
            (ops.num_ranks, op_cells.OVERLAPPED, 1 + int(ops.stages.max(initial=0))),
        )
        kinds = np.ravel_multi_index((ranks, ops.codes[cells] % op_cells.OVERLAPPED, ops.stages[cells]), shape)
        last = int(numbers.max(initial=0))
        keys = kinds * (1 + last) + numbers  # neighbours are the same op of the next micro-batch
        order, is_late = keys.argsort(), np.isin(numbers, microbatches)
        self._keys, self._cells = keys[order], cells[order]
        self._late, self._late_keys, self._late_ranks = cells[is_late], keys[is_late], ranks[is_late].tolist()
        self._first = int(numbers[is_late].min(initial=last))
        self._before: dict[int, machine_code.Int64s] = {}

    def pace(self, timeline: Timeline, lags: Iterable[int]) -> SteadyPace | None:
        """Return the pace of the first lag at which all computations end the same time after their counterparts.

        Args:
            timeline: Timeline of the run.
            lags: Micro-batches from a computation back to its counterpart, each tried in turn.

        Returns:
            The pace, or None if no lag gives one.
        """
        ends_s = timeline.columns.ends_s
        late_s = ends_s[self._late]
        for lag in lags:
            before = self._cells_before(lag)
            gains_s = late_s[: len(before)] - ends_s[before]
            if len(before) < len(late_s) or not math.isclose(gains_s.min(), gains_s.max(), rel_tol=SAME):
                continue
            gain_s, last_s = math.fsum(gains_s) / len(gains_s), float(late_s.max())
            until_s: dict[int, float] = {}
            for rank, end_s in zip(self._late_ranks, late_s.tolist(), strict=True):
                device = timeline.rank_to_device[rank]
                until_s[device] = max(until_s.get(device, 0.0), end_s)
            ends_of = {device: until_s.get(device, last_s) for device in timeline.devices}
            windows = {device: (end_s - gain_s, end_s) for device, end_s in ends_of.items()}
            return SteadyPace(gain_s / lag, idle_share(busy_s(timeline, windows), len(windows), gain_s))
        return None

    def _cells_before(self, lag: int) -> machine_code.Int64s:
        """Return the cells of the same ops a lag before; nothing where one is missing."""
        if lag not in self._before:
            wanted = self._late_keys - lag
            places = np.minimum(self._keys.searchsorted(wanted), len(self._keys) - 1)
            are_there = lag <= self._first and (self._keys[places] == wanted).all()
            self._before[lag] = self._cells[places] if are_there else self._cells[:0]
        return self._before[lag]


def is_unshared(schedule: Schedule, cluster: Cluster) -> bool:
    """Whether nothing is shared, so that times follow from the lists alone.

    Every rank has a device of its own, and every device a NIC. A link that a reduction needs is used in one order only:
    both ends post messages and reductions alike, and where more than two ranks reduce there are no messages.
    """
    is_alone = schedule.num_devices == schedule.num_ranks and not cluster.nics
    return is_alone and Summed.TIED not in schedule.summands and _has_ordered_rings(schedule, cluster)


def _has_ordered_rings(schedule: Schedule, cluster: Cluster) -> bool:
    members = schedule.reducers
    rank_of = {device: rank for rank, device in enumerate(schedule.rank_to_device)}
    rings: defaultdict[tuple[int, int], set[tuple[int, ...]]] = defaultdict(set)
    for ranks in members.values():
        for source, target in possible_hops([schedule.rank_to_device[rank] for rank in ranks], cluster):
            rings[rank_of[source], rank_of[target]].add(ranks)
    lists = lower(schedule).ops if rings else ()
    for (source, target), ranks_of in rings.items():
        stages = {stage for stage, ranks in members.items() if ranks in ranks_of}
        sent, got = _along(lists[source], Send, target, stages), _along(lists[target], Recv, source, stages)
        has_messages = any(isinstance(op, Message) for op in sent)
        if sent != got or len(ranks_of) > 1 or (has_messages and len(next(iter(ranks_of))) > 2):
            return False
    return True


def _along(row: Sequence[Op], kind: type[Send] | type[Recv], peer: int, stages: Collection[int]) -> list[Message | int]:
    """Return the posts at one end of a link: messages, and reductions by stage."""
    return [
        op.stage if isinstance(op, Reduce) else op.message
        for op in row
        if (isinstance(op, Reduce) and op.stage in stages) or (isinstance(op, kind) and op.peer == peer)
    ]
