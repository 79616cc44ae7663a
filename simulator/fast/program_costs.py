"""The durations of a program's instructions on a cluster."""

from __future__ import annotations

from itertools import pairwise
from typing import assert_never

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts, WorkPiece, shared_slowdown
from pipesched.schedules.ops import Overlap
from pipesched.simulator import HandOverWork
from pipesched.simulator.engine import first_factors
from pipesched.simulator.fast.loop_arrays import Instructions, in_arrays
from pipesched.simulator.fast.program import InstructionTime, LatencyTime, Program, WorkTime


def instructions_of(
    program: Program,
    costs: StageCosts,
    cluster: Cluster,
    sharers: list[int],
    jitter: float = 0.0,
    seed: int = 0,
    num_pipelines: int = 1,
) -> Instructions:
    """Return the instructions with their durations.

    Args:
        program: The program.
        costs: Seconds of each op alone on its device.
        cluster: Devices and links.
        sharers: Index of its device among the shared resources, by rank; -1 if the device is not shared.
        jitter: Sigma of a log-normal factor on the seconds of each op.
        seed: Seed of the factors.
        num_pipelines: Equal ones in lockstep, which slow each op as far as all together want more than the device.

    Raises:
        ProfileError: The costs lack the seconds of a phase of the lists.
    """
    pieces = [duration_piece(duration, costs, cluster) for duration in program.durations]
    seconds = [piece.seconds * shared_slowdown(num_pipelines, piece.utilisation) for piece in pieces]
    utilisations = [piece.utilisation for piece in pieces]
    instructions = in_arrays(
        Instructions,
        *(program.begins, program.kinds, program.targets, program.takes, seconds, utilisations, sharers),
    )
    return _varied(instructions, program, costs, cluster, jitter, seed) if jitter else instructions


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
