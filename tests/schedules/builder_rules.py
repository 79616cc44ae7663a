"""What every builder must keep, said without the code under test."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate

import pytest
from hypothesis import strategies as st

from pipesched.schedules import Schedule, ScheduleError
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.check import find_faults
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Average, Compute, Op, Overlap, Reduce, Step, computes
from tests.schedules.brute_force import Thing, delivers, finishes, made, wanted

RANKS = st.integers(1, 8)
MICROBATCHES = st.integers(1, 24)


def kind(name: str) -> Hashable:
    """Return the words of the lists of a schedule, and whether stages share a rank, ranks a stage, or weights age."""
    schedule = build(name, 4, 8)
    computed = [part for row in schedule.ops for part in parts(row)]
    words = {type(op) for row in schedule.ops for op in row} | {part.phase for part in computed}
    is_shared = len(set(schedule.routes().values())) < schedule.num_stages, schedule.num_ranks > schedule.num_stages
    return frozenset(words), is_shared, any(part.version for part in computed), any(part.lookahead for part in computed)


def kinds() -> list[str]:
    """Return the first schedule of each kind in the catalogue: where a rule is the same for schedules of a kind."""
    return list({kind(name): name for name in reversed(CATALOGUE)}.values())[::-1]


def assert_runs(schedule: Schedule) -> None:
    """Complete, nothing for `check` to find, and the lowered lists come to their end."""
    assert_complete(schedule)
    lowered = lower(schedule)
    assert find_faults(schedule) == find_faults(lowered) == ()
    assert finishes(lowered)
    assert delivers(lowered)


def assert_complete(schedule: Schedule) -> None:
    """Every stage meets every micro-batch on one rank: F once, and B once or I and W once each."""
    met: dict[tuple[int, int], list[tuple[int, str]]] = {}
    for rank, row in enumerate(schedule.ops):
        for part in parts(row):
            met.setdefault((part.stage, part.microbatch), []).append((rank, part.phase.value))
    assert sorted(met) == [(k, i) for k in range(schedule.num_stages) for i in range(schedule.num_microbatches)]
    for place, seen in met.items():
        assert len({rank for rank, _ in seen}) == 1, place
        assert sorted(letter for _, letter in seen) in (["B", "F"], ["F", "I", "W"]), place


def assert_ordered(schedule: Schedule) -> None:
    """On every rank a stage runs its micro-batches in order, F before B or I before W, and steps once, at the end.

    Forwards count up; backwards do too, or all down (looped_bfs). A stage on several ranks is reduced before it
    steps, or averaged after.
    """
    homes = [{part.stage for part in parts(row)} for row in schedule.ops]
    for rank, row in enumerate(schedule.ops):
        for stage in homes[rank]:
            stage_parts = [part for part in parts(row) if part.stage == stage]
            forwards, backwards = ([c.microbatch for c in stage_parts if c.phase.value in kind] for kind in ("F", "BI"))
            assert forwards == sorted(forwards)
            assert backwards in (forwards, forwards[::-1])
            places = {(part.phase.value, part.microbatch): place for place, part in enumerate(stage_parts)}
            for (letter, i), place in places.items():
                before = {"B": "F", "I": "F", "W": "I"}.get(letter)
                assert before is None or places[before, i] < place
            own = [op for op in row if not isinstance(op, Overlap) and getattr(op, "stage", None) == stage]
            last: list[Op] = [Reduce(stage), Step(stage)] if sum(stage in home for home in homes) > 1 else [Step(stage)]
            last = [Step(stage), Average(stage)] if Average(stage) in row else last
            assert own[-len(last) :] == last
            assert [op for op in own if not isinstance(op, Compute)] == last


def parts(row: tuple[Op, ...]) -> list[Compute]:
    """Return the computations of one rank, those inside an Overlap too."""
    return [part for op in row for part in computes(op)]


def most_in_flight(schedule: Schedule) -> list[int]:
    """Return, for each rank, the most forwards that were ahead of their B or W at one time."""
    peaks = []
    for row in schedule.ops:
        steps = [{"F": 1, "B": -1, "W": -1}.get(part.phase.value, 0) for part in parts(row)]
        peaks.append(max(accumulate(steps), default=0))
    return peaks


def finish_times(
    schedule: Schedule, seconds: Mapping[str, float] | None = None, transfer_s: float = 0.0
) -> dict[Compute, float]:
    """Return when each computation is over if it starts as early as it can; some are missing if the lists deadlock.

    Args:
        schedule: Op lists.
        seconds: Of each letter; None: every computation takes 1 s.
        transfer_s: Of a message to another rank.
    """
    rows = [parts(row) for row in schedule.ops]
    at, free = [0] * len(rows), [0.0] * len(rows)
    over: dict[Compute, float] = {}
    made_s: dict[Thing, tuple[float, int]] = {}
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row) and all(thing in made_s for thing in wanted(row[at[rank]], schedule.num_stages)):
                op = row[at[rank]]
                there = [made_s[thing] for thing in wanted(op, schedule.num_stages)]
                ready_s = max((at_s + transfer_s * (maker != rank) for at_s, maker in there), default=0.0)
                free[rank] = max(free[rank], ready_s) + (1.0 if seconds is None else seconds[op.phase.value])
                over[op] = free[rank]
                made_s |= dict.fromkeys(made(op), (free[rank], rank))
                at[rank] += 1
                moved = True
    return over


def letters(row: tuple[Op, ...]) -> str:
    """Return ``"F0 F1 B0"``: the computations without stage and version."""
    return " ".join(f"{op.phase.value}{op.microbatch}" for op in row if isinstance(op, Compute))


def assert_one_line(message: str, *parts: str) -> None:
    assert "\n" not in message
    for part in parts:
        assert part in message


@contextmanager
def refused(*parts: str, start: str = "") -> Iterator[pytest.ExceptionInfo[ScheduleError]]:
    """Expect a `ScheduleError` of one line that begins with `start` and has these parts."""
    with pytest.raises(ScheduleError) as error:
        yield error
    assert_one_line(str(error.value), *parts)
    assert str(error.value).startswith(start)


@contextmanager
def refused_file(start: str, *parts: str) -> Iterator[None]:
    """Expect a short refusal that begins with the place and has the expected value and advice."""
    with refused(*parts, "expected", "; try", start=start) as error:
        yield
    assert len(str(error.value)) < 1000
