"""What every asynchronous schedule must keep, and what its ops must read, in plain loops."""

from __future__ import annotations

from collections import Counter

from pipesched.schedules import Schedule
from pipesched.schedules.ops import Compute, Phase, Reduce, Step
from pipesched.schedules.weights import staleness
from tests.schedules.builder_rules import parts

Reads = dict[tuple[str, int, int], tuple[int, int]]
"""(version, look-ahead) by ("F" or "B", stage, micro-batch)."""


def assert_stepped(schedule: Schedule, accumulate: int = 1) -> None:
    """In order, and a Step after each period's last B and nowhere else, behind a Reduce where a stage has replicas."""
    replicas = Counter(stage for row in schedule.ops for stage in {part.stage for part in parts(row)})
    for row in schedule.ops:
        for stage in {part.stage for part in parts(row)}:
            own = [op for op in row if op.stage == stage]
            for letter in "FB":
                numbers = [op.microbatch for op in own if isinstance(op, Compute) and op.phase.value == letter]
                assert numbers == sorted(numbers)
            count = 0
            expected = [Reduce(stage), Step(stage)] if replicas[stage] > 1 else [Step(stage)]
            for place, op in enumerate(own):
                if isinstance(op, Compute) and op.phase is Phase.BACKWARD:
                    count += 1
                    due = expected if count % accumulate == 0 else []
                    following = own[place + 1 :][: len(expected)]
                    assert [after for after in following if not isinstance(after, Compute)] == due
            assert count % accumulate == 0
            assert sum(isinstance(op, Step) for op in own) == count // accumulate


def agrees(schedule: Schedule) -> bool:
    """Whether F and the backward of each micro-batch read the same weights on every stage."""
    return all(stage.same == stage.num_microbatches for stage in staleness(schedule).stages)


def reads_of(schedule: Schedule) -> Reads:
    return {
        (part.phase.value, part.stage, part.microbatch): (part.version, part.lookahead)
        for row in schedule.ops
        for part in parts(row)
    }


def newest(p: int, m: int, slack: int = 1) -> Reads:
    """The newest version when each op runs: a loop over each stage's turns, a Step after every B."""
    reads: Reads = {}
    for k in range(p):
        forwards = 0
        for steps in range(m):  # before the B of micro-batch `steps`
            while forwards <= steps + slack * (p - 1 - k) and forwards < m:
                reads["F", k, forwards] = (steps, 0)
                forwards += 1
            reads["B", k, steps] = (steps, 0)
    return reads


def ordinary(num_stages: int, m: int, accumulate: int = 1) -> Reads:
    """What training without a pipeline reads."""
    return {(letter, k, i): (i // accumulate, 0) for letter in "FB" for k in range(num_stages) for i in range(m)}
