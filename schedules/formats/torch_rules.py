"""The rules of op lists in PyTorch's CSV, for reading and writing.

Each stage lives on one rank; each (stage, micro-batch) has one F, and one B or one I and one W; stages and
micro-batches are numbered from 0 without holes; a message goes to a neighbouring stage on another rank; a stage is
reduced after all its backwards. A written file needs one more property: the last stage runs its forwards in order of
their numbers. `schedules.check.checker` decides whether the lists can finish, and whether every Send meets its Recv.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from pipesched.schedules.common import MAX_CELLS
from pipesched.schedules.formats.files import Faults
from pipesched.schedules.formats.op_text import NO_PEER
from pipesched.schedules.ops import (
    ENDS_MICROBATCH,
    Compute,
    Op,
    Overlap,
    Phase,
    Recv,
    Reduce,
    Reshard,
    Send,
    StageOp,
    Step,
    Unshard,
    computes,
)

OUR_JSON = "our JSON (schedules.formats.to_json)"
"""The advice if PyTorch's CSV cannot represent a schedule."""

Rows: TypeAlias = Sequence[Sequence[Op | None]]
"""The cells of each rank; None is a cell without an op."""

CellName: TypeAlias = Callable[[int, int], str]
"""Function from (rank, index) to the name of the cell in messages."""


@dataclass(slots=True)
class Survey:
    """A survey of lists: their computations, by stage and rank.

    Attributes:
        rank_of: The rank of each stage.
        strays: (stage, rank) of a stage on a second rank.
        done: The micro-batches of each stage, phase by phase.
    """

    rank_of: dict[int, int] = field(default_factory=dict)
    strays: set[tuple[int, int]] = field(default_factory=set)
    done: dict[int, dict[Phase, set[int]]] = field(default_factory=dict)

    @property
    def microbatches(self) -> set[int]:
        """The micro-batches that have an F on some stage."""
        return set().union(*(phases[Phase.FORWARD] for phases in self.done.values()))


def unsayable(op: Op) -> str | None:
    """Return the property of `op` that PyTorch's CSV cannot represent, or None."""
    for part in computes(op):
        if part.phase is Phase.RECOMPUTE:
            return "a recompute"
        if part.version or part.lookahead:
            return "a weight version"
    match op:
        case Step():
            return "an optimizer step that is not the last of a stage on its rank"
        case Reduce() if op.is_over_stages:
            return "a sum over stages"
        case StageOp():
            return None if op.is_torchs else f"the word {op.word}"
        case Compute() | Overlap() | Send() | Recv():
            return None
        case _:
            assert_never(op)


def is_communication(op: Op | None) -> bool:
    """Return whether `op` exists only in the compute+comms dialect; False for an idle cell."""
    match op:
        case StageOp():
            return op.is_torchs
        case Send() | Recv():
            return True
        case Compute() | Overlap() | None:
            return False
        case _:
            assert_never(op)


def survey(rows: Rows, place: CellName, faults: Faults) -> Survey:
    """Return the computations of `rows`; refuse ops given twice, a stage on two ranks, ranks without a computation."""
    surveyed = Survey()
    seen: set[str] = set()
    for rank, row in enumerate(rows):
        idle = True
        for index, op in enumerate(row):
            if op is None:
                continue
            for part in computes(op):
                idle = False
                problem = _count(part, rank, surveyed)
                if problem is not None:
                    faults.add(place(rank, index), problem)
            for word in computes(op) or (op,):
                text = str(word)
                if text in seen and not isinstance(word, Unshard | Reshard):
                    faults.add(place(rank, index), f"got {text} again, expected it once; try removing one of the two")
                seen.add(text)
        if idle:
            faults.add(place(rank, -1), "got no computation, expected one such as 0F0; try removing this row")
    return surveyed


def _count(part: Compute, rank: int, surveyed: Survey) -> str | None:
    phases = surveyed.done.setdefault(part.stage, {phase: set() for phase in Phase})
    phases[part.phase].add(part.microbatch)
    home = surveyed.rank_of.setdefault(part.stage, rank)
    if home == rank or (part.stage, rank) in surveyed.strays:  # one fault is enough
        return None
    surveyed.strays.add((part.stage, rank))
    reason = "PyTorch's CSV has each stage on one rank"
    return f"got {part} on rank {rank}, expected all of stage {part.stage} on rank {home}: {reason}; try {OUR_JSON}"


def check_complete(surveyed: Survey, num_stages: int, num_microbatches: int, place: CellName, faults: Faults) -> None:
    """Refuse gaps in the numbers, and a micro-batch of a stage without F or without its backward."""
    microbatches = surveyed.microbatches
    _check_numbers("stages", set(surveyed.rank_of), num_stages, faults)
    if len(surveyed.done) * len(microbatches) > MAX_CELLS:  # far from complete, and too many pairs to go through
        got = f"got {len(surveyed.done)} stages * {len(microbatches)} micro-batches"
        faults.add("", f"{got}, expected at most {MAX_CELLS} in all; try fewer micro-batches")
    elif _check_numbers("micro-batches with an F", microbatches, num_microbatches, faults):
        for stage in sorted(surveyed.done):
            where = f"{place(surveyed.rank_of[stage], -1)}, stage {stage}"
            _check_stage(where, surveyed.done[stage], microbatches, faults)


def _check_numbers(kind: str, numbers: set[int], count: int, faults: Faults) -> bool:
    highest = max(numbers, default=-1)
    if len(numbers) == count and highest == count - 1:
        return True
    missing = next((number for number in range(min(count, len(numbers) + 1)) if number not in numbers), None)
    got = f"got {len(numbers)} {kind} up to {highest}" + ("" if missing is None else f" without {missing}")
    faults.add(kind.split()[0], f"{got}, expected 0 to {count - 1}; try numbering from 0 without gaps")
    return False


def _check_stage(where: str, phases: dict[Phase, set[int]], microbatches: set[int], faults: Faults) -> None:
    full, inputs, weights = phases[Phase.BACKWARD], phases[Phase.BACKWARD_INPUT], phases[Phase.BACKWARD_WEIGHT]
    one_way = "expected one B, or one I and one W, for each F"
    for wrong, got, expected in (
        (microbatches - phases[Phase.FORWARD], "no F", "expected one F on each stage"),
        ((full | inputs | weights) - microbatches, "a backward but no F", one_way),
        (microbatches - full - inputs - weights, "no backward", one_way),
        (full & (inputs | weights), "B beside I or W", one_way),
        (inputs - weights - full, "I without W", one_way),
        (weights - inputs - full, "W without I", one_way),
    ):
        for microbatch in sorted(wrong):
            faults.add(f"{where}, micro-batch {microbatch}", f"got {got}, {expected}; try correcting the list")


def check_others(rows: Rows, surveyed: Survey, place: CellName, faults: Faults) -> None:
    """Refuse messages without a receiver, ops of a stage on another rank, and a Reduce before its backwards."""
    num_microbatches = len(surveyed.microbatches)
    for rank, row in enumerate(rows):
        last = _last_backwards(row)
        for index, op in enumerate(row):
            match op:
                case Send() | Recv():
                    problem = _message_problem(op, rank, surveyed, num_microbatches)
                case StageOp(stage) if op.is_torchs and surveyed.rank_of.get(stage) != rank:
                    problem = _elsewhere(stage, rank)
                case Reduce() if (later := last.get(op.stage)) is not None and later[0] > index:
                    problem = f"expected a place after {later[1]}, a backward of its stage; try moving it there"
                case Compute() | Overlap() | StageOp() | None:
                    problem = None
                case _:
                    assert_never(op)
            if problem is not None:
                faults.add(place(rank, index), f"got {op}, {problem}")


def _last_backwards(row: Sequence[Op | None]) -> dict[int, tuple[int, Compute]]:
    """Return the place and the computation of each stage's last weight gradient."""
    return {
        part.stage: (index, part)
        for index, op in enumerate(row)
        if op is not None
        for part in computes(op)
        if part.phase in ENDS_MICROBATCH
    }


def check_losses(rows: Rows, surveyed: Survey, place: CellName, faults: Faults) -> None:
    """Refuse a last stage whose forwards are not in order: PyTorch's runtime takes the k-th loss for micro-batch k."""
    last = max(surveyed.rank_of, default=0)
    forwards = (
        (place(rank, index), part)
        for rank, row in enumerate(rows)
        for index, op in enumerate(row)
        if op is not None
        for part in computes(op)
        if part.stage == last and part.phase is Phase.FORWARD
    )
    for expected, (where, part) in enumerate(forwards):
        if part.microbatch != expected:
            reason = "PyTorch's runtime knows losses by their order"
            faults.add(where, f"got {part}, expected {last}F{expected}: {reason}; try other numbers, or {OUR_JSON}")
            return


def peer_stage(op: Send | Recv) -> int:
    """Return the stage at the other end of the message."""
    return op.message.receiver if isinstance(op, Send) else op.message.stage


def _message_problem(op: Send | Recv, rank: int, surveyed: Survey, num_microbatches: int) -> str | None:
    message, other = op.message, peer_stage(op)
    own = message.stage if isinstance(op, Send) else message.receiver
    if surveyed.rank_of.get(own) != rank:
        return _elsewhere(own, rank)
    if other not in surveyed.rank_of:
        return f"expected a message between stages 0 to {len(surveyed.rank_of) - 1}; try removing it"
    if message.microbatch >= num_microbatches:
        return f"expected micro-batches 0 to {num_microbatches - 1}; try removing it"
    if surveyed.rank_of[other] == rank:
        return f"expected no message between stages {own} and {other}, both of rank {rank}; try removing it"
    if op.peer not in (NO_PEER, surveyed.rank_of[other]):
        return f"peer {op.peer}, expected peer {surveyed.rank_of[other]}, the rank of stage {other}; try {OUR_JSON}"
    return None


def _elsewhere(stage: int, rank: int) -> str:
    return f"expected a stage that rank {rank} computes; try moving it to the rank of stage {stage}"
