"""A program with its durations on one cluster: the full input of its loop, made once for any number of runs."""

from __future__ import annotations

from functools import cached_property
from typing import final

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules.columns import machine_code
from pipesched.simulator import USUAL_NETWORK, NetworkOptions, SimulationError
from pipesched.simulator.fast.loop_arrays import LoopArrays
from pipesched.simulator.fast.loop_runner import loop_times
from pipesched.simulator.fast.program import Program
from pipesched.simulator.fast.program_costs import instructions_of
from pipesched.simulator.fast.program_network import network_of


@final
class LoadedProgram:
    """A program under given costs and on given machines.

    Args:
        program: The program for `network` and for the cluster: hand-over takes time in both or in neither.
        costs: Seconds of each op alone on its device.
        cluster: Devices and links.
        network: How messages go.
        num_pipelines: Equal pipelines in lockstep on the same devices. The times are of one of them. They share
            nothing but devices and links.

    Raises:
        ProfileError: The costs lack the seconds of a phase of the lists.
        SimulationError: Handing over takes time on the cluster, and the program has no instructions for that.
    """

    def __init__(
        self,
        program: Program,
        costs: StageCosts,
        cluster: Cluster,
        network: NetworkOptions = USUAL_NETWORK,
        num_pipelines: int = 1,
    ) -> None:
        if cluster.has_hand_over and program.own_work is None:
            raise SimulationError(
                f"{program.schedule.name}: got a cluster ({cluster.origin}) where handing over takes time, expected "
                "one where it does not; compile the lists with `has_hand_over`"
            )
        self._program = program
        self._costs, self._cluster, self._num_pipelines = costs, cluster, num_pipelines
        self._network = network_of(self._program, costs, cluster, network, num_equal=num_pipelines)

    def times(self, jitter: float = 0.0, seed: int = 0) -> machine_code.Float64s:
        """Return the times of the program by number [s].

        Args:
            jitter: Same as in `simulate_lists`.
            seed: Same as in `simulate_lists`.

        Raises:
            SimulationError: A rank waits forever.
        """
        times_s = loop_times(self._arrays(jitter, seed) if jitter else self._usual)
        if not len(times_s) and len(self._program.kinds):
            name = self._program.schedule.name
            raise SimulationError(f"{name}: deadlock: some rank waits forever; check the schedule")
        return times_s

    @cached_property
    def _usual(self) -> LoopArrays:
        return self._arrays(0.0, 0)

    def _arrays(self, jitter: float, seed: int) -> LoopArrays:
        network = self._network
        instructions = instructions_of(
            self._program, self._costs, self._cluster, network.sharers, jitter, seed, self._num_pipelines
        )
        return LoopArrays(instructions, network.transfers, network.reductions, network.rules)
