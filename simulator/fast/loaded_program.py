"""A program with its durations on one cluster: the full input of its loop, made once for any number of runs.

`run_ahead` runs it if no two ranks compete for anything but the ends of a channel, otherwise the event loop.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import assert_never, final

import numpy as np

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts, WorkPiece, shared_slowdown
from pipesched.schedules.columns import machine_code
from pipesched.schedules.ops import Overlap
from pipesched.simulator import USUAL_NETWORK, HandOverWork, NetworkOptions, SimulationError
from pipesched.simulator.engine import first_factors
from pipesched.simulator.fast.event_loop import EVENT_PARTS, run_events
from pipesched.simulator.fast.loop_arrays import Instructions, LoopArrays, in_arrays
from pipesched.simulator.fast.program import InstructionTime, LatencyTime, Program, WorkTime
from pipesched.simulator.fast.program_network import NetworkCompiler
from pipesched.simulator.fast.run_ahead import run_ahead, run_ahead_columns


@final
class LoadedProgram:
    """A program under given costs and on given machines.

    Args:
        program: The program for `network` and for the cluster: hand-over takes time in both or in neither.
        costs: Seconds of each op alone on its device.
        cluster: Devices and links.
        network: How messages go.
        num_pipelines: Equal pipelines on the same devices, of which this is one. They share nothing but devices and
            links.
        are_in_lockstep: Whether the times of this one are the times of all: its ops and messages take as long as all
            pipelines together make them. Otherwise `arrays` are to be put side by side.

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
        *,
        are_in_lockstep: bool = True,
    ) -> None:
        if cluster.has_hand_over and program.own_work is None:
            raise SimulationError(
                f"{program.schedule.name}: got a cluster ({cluster.origin}) with hand-over times, expected one "
                "without; compile the lists with `has_hand_over`"
            )
        self._program, self._costs, self._cluster = program, costs, cluster
        num_beside, self._num_equal = (1, num_pipelines) if are_in_lockstep else (num_pipelines, 1)
        self._network = NetworkCompiler(program, costs, cluster, network, num_beside, self._num_equal).numbers()

    def times(self, jitter: float = 0.0, seed: int = 0) -> machine_code.Float64s:
        """Return the times of the program by number [s].

        Args:
            jitter: Same as in `simulate_lists`.
            seed: Same as in `simulate_lists`.

        Raises:
            SimulationError: A rank waits forever.
        """
        times_s = loop_times(self._arrays(jitter, seed) if jitter else self.arrays)
        if not len(times_s) and len(self._program.kinds):
            name = self._program.schedule.name
            raise SimulationError(f"{name}: deadlock: some rank waits forever; check the schedule")
        return times_s

    @cached_property
    def arrays(self) -> LoopArrays:
        """The input of the loop, without jitter."""
        return self._arrays(0.0, 0)

    def _arrays(self, jitter: float, seed: int) -> LoopArrays:
        program, network = self._program, self._network
        pieces = [duration_piece(duration, self._costs, self._cluster) for duration in program.durations]
        seconds = [piece.seconds * shared_slowdown(self._num_equal, piece.utilisation) for piece in pieces]
        utilisations = [piece.utilisation for piece in pieces]
        instructions = in_arrays(
            Instructions,
            *(program.begins, program.kinds, program.targets, program.takes, seconds, utilisations, network.sharers),
        )
        if jitter:
            instructions = _varied(instructions, program, self._costs, self._cluster, jitter, seed)
        return LoopArrays(instructions, network.transfers, network.reductions, network.rules)


def duration_piece(duration: InstructionTime, costs: StageCosts, cluster: Cluster) -> WorkPiece:
    """Return seconds and utilisation of an instruction on its device, at the device's speed.

    Raises:
        ProfileError: The costs lack it.
    """
    match duration:
        case WorkTime(device, op, copies, number):
            piece = costs.pieces(op, copies=copies)[number]
        case HandOverWork():
            device, piece = duration.device, duration.piece(costs, cluster)
        case LatencyTime(hop):
            return WorkPiece(cluster.link(*hop).latency_s, 1.0)
        case float():
            return WorkPiece(duration, 1.0)
        case _:
            assert_never(duration)
    return WorkPiece(piece.seconds / cluster.devices[device].speed, piece.utilisation)


def _varied(
    instructions: Instructions, program: Program, costs: StageCosts, cluster: Cluster, jitter: float, seed: int
) -> Instructions:
    """Return instructions whose works take longer or shorter, each op by a factor of its own."""
    varied_instructions = instructions.each_its_own()
    seconds = varied_instructions.seconds
    parts: dict[int, list[WorkPiece]] = {}  # of each duration that varies the ops in it
    for number, duration in enumerate(program.durations):
        if isinstance(duration, WorkTime):
            ops = (duration.op.first, duration.op.second) if isinstance(duration.op, Overlap) else (duration.op,)
            parts[number] = [costs.pieces(op, copies=duration.copies)[0] for op in ops]
    takes = program.takes.tolist()
    for rank, (begin, end) in enumerate(pairwise(program.begins.tolist())):
        speed = cluster.devices[program.schedule.rank_to_device[rank]].speed
        varied = [index for index in range(begin, end) if takes[index] in parts]
        factors = iter(first_factors(jitter, seed, rank, 2 * len(varied)))
        pieces: tuple[WorkPiece, ...] = ()
        for index in varied:
            duration, alone = program.durations[takes[index]], parts[takes[index]]
            if len(alone) == 1:
                seconds[index] = alone[0].seconds * next(factors) / speed
                continue
            assert isinstance(duration, WorkTime), "only works vary"
            if duration.piece == 0:
                first, second = (WorkPiece(part.seconds * next(factors), part.utilisation) for part in alone)
                pieces = costs.beside(first, second)
            seconds[index] = pieces[duration.piece].seconds / speed
    return varied_instructions


def loop_times(arrays: LoopArrays) -> machine_code.Float64s:
    """Run the loop and return all times [s].

    Returns:
        The time when each instruction is reached, then the starts of all transfers and reductions, then their ends; an
        empty array if a rank waits forever.
    """
    instructions, transfers, reductions, rules = arrays
    num_steps = len(instructions.kinds) * (2 if rules.num_shared else 1)
    if rules.runs_ahead:
        times_s = np.empty(arrays.num_times)
        columns = run_ahead_columns(instructions, transfers, reductions)
        is_over = machine_code.run_loop(
            run_ahead, *columns, rules.is_eager, times_s, arrays.ahead_state(), num_steps=num_steps
        )
        return times_s if is_over else np.empty(0)
    state = arrays.state()
    is_over = machine_code.run_loop(
        run_events, instructions, transfers, reductions, rules, state, num_steps=num_steps, parts=EVENT_PARTS
    )
    return np.concatenate([state.at_s, state.start_s, state.end_s]) if is_over else np.empty(0)
