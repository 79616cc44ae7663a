"""The steady state of a long run: seconds per micro-batch when warm-up and cool-down no longer count.

A batch that is repeated is mostly settled by its own Timeline. Let the ranks that begin first all end at L, and no
other rank or channel end later than L after its own beginning:

    rank 0  F0 F1 .. .. .. B0 .. B1 | F2 F3 ..        begins at 0, ends at L
    rank 1  .. F0 F1 B0 .. B1 .. ..   .. F2 ..        begins at s, ends before L + s

Every time is the longest path to it from some rank's beginning, so from the beginning of the ranks that begin first:
all others wait for them. The next batch finds these ready at L, and the others no later than they begin to work; so it
is the same batch L later, and so are all that follow. If ranks share devices, links or NICs, one slows another, and
times are no longest paths; then nothing at all may be left at L, so that the next batch begins as the first did.

Otherwise longer runs are simulated, as in `unflushed_runs`.

The work of devices is the work of one period, too: the last Steps of a run need not keep a copy of the weights, and its
first ops have no weights to predict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import final

from pipesched.profiles.clusters import Cluster
from pipesched.schedules import Schedule, Timeline, repeat
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
from pipesched.simulator.fast.contention import is_unshared
from pipesched.simulator.fast.late_ops import LateOps
from pipesched.simulator.fast.timeline_extents import busy_s, idle_share, timeline_extents

_MOST_REPEATED_CELLS = 1_000_000
"""Stages times micro-batches of the longest batch that is looked at twice or more, one after the other."""
_MOST_CELLS = 20_000
"""Stages times micro-batches of the longest run that is looked at, which takes about a second."""


def predict_repeated(scenario: Scenario, timeline: Timeline | None = None) -> Estimate | Inexact:
    """Predict the pace at which batches follow one another, each stage stepping once between.

    Args:
        scenario: Scenario of one batch of a schedule with a flush.
        timeline: SimPy's Timeline of it without jitter, or None to simulate it here.

    Returns:
        The seconds of a batch in the steady state and its bubble, without memory; or the reason why they are unknown.

    Raises:
        ScheduleError, SimulationError, ProfileError: As `simulate_lists` does.
    """
    return RepeatedRuns(scenario.schedule).predict(scenario, timeline)


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
        """Predict the pace of the batch under the costs and on the machines of a scenario, as `predict_repeated`."""
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
    """Return why several pipelines have no pace that one run shows."""
    return Inexact(
        f"{scenario.schedule.name}: got {scenario.num_pipelines} pipelines, expected one, as several drift apart; "
        "try predict_drifting"
    )


def longer_times(schedule: Schedule) -> Iterator[int]:
    """Yield the lengths of the longer runs, as multiples: twice, four times and so on, at least one."""
    times, cells = 2, 2 * schedule.num_stages * schedule.num_microbatches
    while times == 2 or times // 2 * cells <= _MOST_CELLS:
        yield times
        times *= 2


def paced(scenario: Scenario, pace: SteadyPace | None) -> Estimate | Inexact:
    """Return the estimate of a pace, or the reason why it is missing."""
    schedule = scenario.schedule
    if pace is None:
        return Inexact(f"{schedule.name}: got runs that do not settle to one pace, expected some that do; try simulate")
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
    """Whether the Timeline of a batch, lowered, may show by itself when the next one is the same."""
    if not is_usual(network) or _predicts_weights(schedule):
        return False
    return not cluster.has_hand_over  # a rank that hands over is not free when its last work is over


def shown_period_s(
    ranks: Sequence[tuple[float, float]], channels: Sequence[tuple[float, float]], *, is_shared: bool = False
) -> float | None:
    """Return how long after a batch the next one is the same; None where the batch does not show it.

    Args:
        ranks: When each rank begins, and when its last op that is no message is over [s].
        channels: When the first message of each channel begins, and when the last is there [s].
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
