"""What every builder must keep, said without the code under test."""

from __future__ import annotations

from hypothesis import strategies as st

from schedules.check import check
from schedules.lower import lower
from schedules.op import Compute, Op, Step, computes
from schedules.schedule import Schedule
from tests.schedules.brute_force import delivers, finishes

RANKS = st.integers(1, 8)
MICROBATCHES = st.integers(1, 24)


def assert_sound(schedule: Schedule, num_stages: int, num_microbatches: int) -> None:
    """Complete, ordered, nothing for `check` to find, and the lowered lists come to their end."""
    assert (schedule.num_stages, schedule.num_microbatches) == (num_stages, num_microbatches)
    assert_complete(schedule)
    assert_ordered(schedule)
    lowered = lower(schedule)
    assert check(schedule) == check(lowered) == ()
    assert finishes(lowered)
    assert delivers(lowered)


def assert_complete(schedule: Schedule) -> None:
    got = sorted((op.phase.value, op.stage, op.microbatch) for row in schedule.ops for op in row if computes(op))
    every = [(k, i) for k in range(schedule.num_stages) for i in range(schedule.num_microbatches)]
    assert got == sorted((letter, k, i) for letter in "FB" for k, i in every)


def assert_ordered(schedule: Schedule) -> None:
    """On its one rank each stage counts its micro-batches up, F before B, and no op follows its last Step."""
    for row in schedule.ops:
        for stage in {op.stage for op in row if isinstance(op, Compute)}:
            mine = [op for op in row if isinstance(op, Compute) and op.stage == stage]
            for letter in "FB":
                numbers = [op.microbatch for op in mine if op.phase.value == letter]
                assert numbers == list(range(schedule.num_microbatches))
            places = {(op.phase.value, op.microbatch): place for place, op in enumerate(mine)}
            assert all(places["F", i] < places["B", i] for i in range(schedule.num_microbatches))
            own: list[Op] = [op for op in row if getattr(op, "stage", None) == stage]
            assert own[-1] == Step(stage)


def most_in_flight(schedule: Schedule) -> list[int]:
    """Return, for each rank, the most forwards that were ahead of their backwards at one time."""
    peaks = []
    for row in schedule.ops:
        letters = "".join(op.phase.value for op in row if isinstance(op, Compute))
        peaks.append(max(letters[:n].count("F") - letters[:n].count("B") for n in range(len(letters) + 1)))
    return peaks


def letters(row: tuple[Op, ...]) -> str:
    """Return ``"F0 F1 B0"``: the computations without stage and version."""
    return " ".join(f"{op.phase.value}{op.microbatch}" for op in row if isinstance(op, Compute))


def assert_one_line(message: str, *parts: str) -> None:
    assert "\n" not in message
    for part in parts:
        assert part in message
