"""The array engine: SimPy's Timeline out of arrays, by a loop that numba compiles where it is there.

    lists ── compile_lists ──> Program ── costs, cluster ──> numbers ── event loop ──> times ──> Timeline

It covers all of `simulator.engine`. Lists that cannot finish are handed to SimPy, which reports the reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, final

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster, flat
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule, ScheduleError, Timeline
from pipesched.schedules.lowering import lower
from pipesched.simulator import USUAL_NETWORK, NetworkOptions, SimulationError, engine
from pipesched.simulator.engine import OpSeconds, require_given, require_simulable
from pipesched.simulator.fast.list_compiler import compile_lists
from pipesched.simulator.fast.loaded_program import LoadedProgram
from pipesched.simulator.fast.program import Program

_UNABLE = (ScheduleError, SimulationError, ProfileError)


def simulate_arrays(
    schedule: Schedule,
    costs: StageCosts,
    cluster: Cluster | None = None,
    *,
    network: NetworkOptions = USUAL_NETWORK,
    jitter: float = 0.0,
    seed: int = 0,
    given: Sequence[Sequence[OpSeconds]] | None = None,
) -> Timeline:
    """Predict the time of every op of `schedule`.

    Args, errors and result are the same as in `simulate_lists`.
    """
    cluster = flat(max(schedule.rank_to_device, default=-1) + 1) if cluster is None else cluster
    return CompiledLists(schedule, costs, cluster, network, given).timeline(jitter, seed)


@final
class CompiledLists:
    """Lists whose instructions are found once, for any seed.

    Args:
        schedule: Lowered or not.
        costs: Seconds of each op alone on its device.
        cluster: Devices and links.
        network: How messages go.
        given: Seconds of single ops, as in `simulate_lists`.

    Raises:
        As `simulate_lists` does.
    """

    def __init__(
        self,
        schedule: Schedule,
        costs: StageCosts,
        cluster: Cluster,
        network: NetworkOptions = USUAL_NETWORK,
        given: Sequence[Sequence[OpSeconds]] | None = None,
    ) -> None:
        require_simulable(schedule, costs, cluster, network, 0.0)
        self._lowered = lower(schedule)
        self._costs, self._cluster, self._network, self._given = costs, cluster, network, given
        if given is not None:
            require_given(given, self._lowered)
        self._program: Program | None = None  # None if SimPy has to report an error
        self._loaded: LoadedProgram | None = None
        with suppress(*_UNABLE):
            has_hand_over = cluster.has_hand_over
            self._program = compile_lists(self._lowered, network, has_hand_over=has_hand_over, given=given)

    def timeline(self, jitter: float = 0.0, seed: int = 0) -> Timeline:
        """Return the Timeline, with or without jitter; raises the same errors as `simulate_lists`."""
        times_s = self._times_s(jitter, seed)
        timeline = self._program.timeline(times_s) if self._program and len(times_s) else None
        if timeline is None or not math.isfinite(timeline.makespan_s):
            return self._simpys(jitter, seed)
        return timeline

    def makespan_s(self, jitter: float = 0.0, seed: int = 0) -> float:
        """Return the makespan of `timeline` [s]."""
        times_s = self._times_s(jitter, seed)
        makespan_s = self._program.makespan_s(times_s) if self._program and len(times_s) else math.inf
        return makespan_s if math.isfinite(makespan_s) else self._simpys(jitter, seed).makespan_s

    def _times_s(self, jitter: float, seed: int) -> Any:
        """Return the times, or an empty list if SimPy has to report an error."""
        require_simulable(self._lowered, self._costs, self._cluster, self._network, jitter)
        if self._program is not None:
            with suppress(*_UNABLE):
                if self._loaded is None:
                    self._loaded = LoadedProgram(self._program, self._costs, self._cluster, self._network)
                return self._loaded.times(jitter, seed)
        return []

    def _simpys(self, jitter: float, seed: int) -> Timeline:
        return engine.simulate_lists(
            self._lowered, self._costs, self._cluster, network=self._network, jitter=jitter, seed=seed,
            given=self._given,
        )  # fmt: skip


def program_times(
    program: Program,
    costs: StageCosts,
    cluster: Cluster,
    network: NetworkOptions = USUAL_NETWORK,
    *,
    jitter: float = 0.0,
    seed: int = 0,
    num_pipelines: int = 1,
) -> Any:
    """Return the times of a program by number [s]: a list, or an array of NumPy where machine code made them.

    Args:
        program: The program for `network` and for the cluster: hand-over takes time in both or in neither.
        costs: Seconds of each op alone on its device.
        cluster: Devices and links.
        network: How messages go.
        jitter: Same as in `simulate_lists`.
        seed: Same as in `simulate_lists`.
        num_pipelines: Equal pipelines in lockstep on the same devices. The times are of one of them. They share
            nothing but devices and links.

    Raises:
        ProfileError: The costs lack the seconds of a phase of the lists.
        SimulationError: A rank waits forever.
    """
    return LoadedProgram(program, costs, cluster, network, num_pipelines).times(jitter, seed)
