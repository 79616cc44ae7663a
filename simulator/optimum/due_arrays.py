"""An order problem as the numbers that list scheduling by due dates works on, and its times back from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from enum import Enum
from itertools import accumulate, chain
from typing import NamedTuple

from pipesched.schedules.ops import Compute, Phase, Step
from pipesched.simulator.optimum.due_scheduling import DueArrays, DueState
from pipesched.simulator.optimum.message_room import MessageState
from pipesched.simulator.optimum.op_times import OpTimes
from pipesched.simulator.optimum.order_problem import OrderProblem, is_phase


class _Turn(Enum):
    """The position of an op's micro-batch in the batch, as `load_of` counts; a single micro-batch is FIRST."""

    BETWEEN = 0
    FIRST = 1
    LAST = 2


def due_arrays(problem: OrderProblem, *, is_w_due: bool = False) -> DueArrays:
    """Return a problem as numbers; an R is part of the backward that it is for.

    Args:
        problem: The problem.
        is_w_due: Whether a W has a due date like a forward or a backward, and does not fill gaps.
    """
    kinds, rebuilt = problem.kinds, recomputed_before(problem)
    merged = set(rebuilt.values())
    ops = {index: kind.op for index, kind in enumerate(kinds)}
    filling = {
        i for i, op in ops.items() if isinstance(op, Step) or (op.phase is Phase.BACKWARD_WEIGHT and not is_w_due)
    }
    urgent = [[kind for kind in of_rank if kind not in filling | merged] for of_rank in problem.of_rank]
    others = [[kind for kind in of_rank if kind in filling] for of_rank in problem.of_rank]
    arcs = [arc for arc in problem.arcs if not arc.distance and merged.isdisjoint((arc.before, arc.after))]
    waits = [[arc for arc in arcs if arc.after == kind] for kind in ops]
    followers = [[arc for arc in arcs if arc.before == kind] for kind in ops]
    firsts = [problem.num_microbatches if kind in merged else problem.first(kind) for kind in ops]
    num_ops = [sum(problem.num_microbatches - firsts[kind] for kind in of_rank) for of_rank in problem.of_rank]
    held = [_held(problem, op, turn, is_w_due=is_w_due) for turn in _Turn for op in ops.values()]
    return DueArrays(
        ranks=[kind.rank for kind in kinds],
        ticks=[kind.ticks + (kinds[rebuilt[i]].ticks if i in rebuilt else 0) for i, kind in enumerate(kinds)],
        firsts=firsts,
        num_waits=[*map(len, waits)],
        waits=[arc.before for row in waits for arc in row],
        wait_delays=[arc.ticks for row in waits for arc in row],
        wait_places=_places(waits),
        followers=[arc.after for row in followers for arc in row],
        delays=[arc.ticks for row in followers for arc in row],
        follower_places=_places(followers),
        urgent=[*chain.from_iterable(urgent)],
        urgent_places=_places(urgent),
        is_filling=[int(is_phase(op, Phase.BACKWARD_WEIGHT)) for op in ops.values()],
        others=[*chain.from_iterable(others)],
        other_places=_places(others),
        peaks=[op_held.peak for op_held in held],
        insides=[op_held.inside for op_held in held],
        changes=[op_held.change for op_held in held],
        lasting=[op_held.lasting for op_held in held],
        limits=[*problem.room.limits],
        op_places=[0, *accumulate(num_ops)],
        **_messages(problem),
    )


def _messages(problem: OrderProblem) -> dict[str, Sequence[int]]:
    """Return the fields of `DueArrays` about messages."""
    rooms, kinds = problem.room.stages, problem.kinds
    users, sent, received, working = ([value] * len(kinds) for value in (-1, 0, 0, 0))
    rebuilt = recomputed_before(problem)
    used = {}
    for index, kind in enumerate(kinds):
        if is_phase(kind.op, Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD_INPUT):
            used[is_phase(kind.op, Phase.FORWARD), kind.op.stage] = index
            working[index] = 0 if is_phase(kind.op, Phase.FORWARD) else rooms[kind.op.stage].working
    for (is_forward, stage), maker in used.items():
        user_stage = stage + 1 if is_forward else stage - 1
        user = used.get((is_forward, user_stage))
        if user is not None:
            users[maker], size = user, rooms[stage].made if is_forward else rooms[stage].handed
            is_kept = is_forward and Compute(Phase.RECOMPUTE, stage, 0) not in problem.index_of
            sent[maker] = rooms[stage].outputs if is_kept else size
            received[user] = size if kinds[maker].rank != kinds[user].rank else 0
    makers = [[kind for kind in of_rank if sent[kind]] for of_rank in problem.of_rank]
    return {
        "users": users,
        "sent": sent,
        "received": received,
        "working": working,
        "is_backward": [int(not is_phase(kind.op, Phase.FORWARD) and isinstance(kind.op, Compute)) for kind in kinds],
        "begins_with_r": [int(kind in rebuilt) for kind in range(len(kinds))],
        "makers": [*chain.from_iterable(makers)],
        "maker_places": _places(makers),
    }


def due_state(problem: OrderProblem) -> DueState:
    """Return an empty state for scheduling the ops of a problem."""
    num_kinds, num_ranks = len(problem.kinds), problem.num_ranks
    num_ops = num_kinds * problem.num_microbatches
    counts = (num_ops, num_ops, num_ops, num_kinds, num_ops, num_ops, *(num_ranks,) * 8)
    return DueState(*([0] * count for count in counts))


def message_state(problem: OrderProblem, arrays: DueArrays) -> MessageState:
    """Return an empty state for the check of messages; its lists are empty if the problem has no messages."""
    num_kinds, num_ranks = len(problem.kinds) if arrays.makers else 0, problem.num_ranks
    num_ops = num_kinds * problem.num_microbatches
    counts = (num_kinds, num_ranks, num_ranks**2, num_ops * num_ranks, num_ops, num_kinds, num_kinds)
    return MessageState(*([0] * count for count in counts))


def due_times(problem: OrderProblem, starts: list[int]) -> OpTimes:
    """Convert starts by op into starts by kind and micro-batch [ticks]; an R starts right before its backward."""
    size = problem.num_microbatches
    times = [starts[kind * size : (kind + 1) * size] for kind in range(len(problem.kinds))]
    for kind, rebuilt in recomputed_before(problem).items():
        times[rebuilt] = times[kind]
        times[kind] = [start + problem.kinds[rebuilt].ticks for start in times[kind]]
    return times


def recomputed_before(problem: OrderProblem) -> dict[int, int]:
    """Return the kind of R that comes before each kind of backward that has one."""
    phases = (Phase.BACKWARD, Phase.BACKWARD_INPUT)
    index_of = problem.index_of
    pairs = (
        (index_of.get(Compute(Phase.RECOMPUTE, op.stage, 0)), i) for op, i in index_of.items() if is_phase(op, *phases)
    )
    return {kind: rebuilt for rebuilt, kind in pairs if rebuilt is not None}


class _Held(NamedTuple):
    """Change of a rank's memory by an op, relative to the memory before it.

    Attributes:
        working: Working memory of the op.
        inside: Peak before its end, without working memory.
        left: At its end.
        change: Just after its end, when gradients whose Step takes no time are freed.
        lasting: After the gap-filling ops that it allows (W, Step), too; 0 for such an op itself.
    """

    working: int
    inside: int
    left: int
    change: int
    lasting: int

    @property
    def peak(self) -> int:
        """The peak during the op and at its end, relative to the memory before it."""
        return max(self.inside + self.working, self.left)


def _held(problem: OrderProblem, op: Compute | Step, turn: _Turn, *, is_w_due: bool) -> _Held:
    """Return the memory of an op; a stage holds gradients from the end of its first B or W to its Step."""
    room, is_last = problem.room.stages[op.stage], turn is _Turn.LAST
    gradients, has_step = room.gradients, Step(op.stage) in problem.index_of
    if isinstance(op, Step):
        return _Held(0, 0, 0, -gradients if is_last else 0, 0)
    taken = gradients if turn is _Turn.FIRST else 0
    given, given_at_once = gradients if is_last else 0, gradients if is_last and not has_step else 0
    saved, kept, working = room.saved, room.kept, room.working
    waiting = room.inputs if Compute(Phase.RECOMPUTE, op.stage, 0) in problem.index_of else saved
    match op.phase:
        case Phase.FORWARD:
            return _Held(0, waiting, waiting, waiting, waiting)
        case Phase.BACKWARD:
            left = taken - waiting
            return _Held(working, saved - waiting, left, left - given_at_once, left - given)
        case Phase.BACKWARD_INPUT:
            left = kept - waiting
            return _Held(working, saved - waiting, left, left, left if is_w_due else taken - waiting - given)
        case _:
            left = taken - kept
            return _Held(0, 0, left, left - given_at_once, left - given if is_w_due else 0)


def _places(rows: Iterable[Sized]) -> list[int]:
    return [0, *accumulate(map(len, rows))]
