"""Schedules changed by hand or by chance, to be found fault with."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import replace

from pipesched.schedules import Schedule, ScheduleError, make_schedule
from pipesched.schedules.builders import CATALOGUE
from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.check import find_faults
from pipesched.schedules.formats.op_text import parse_op_with_peer
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Op, Reduce, Step, computes
from pipesched.schedules.transforms import recompute
from tests.schedules.hand_schedules import mixed_backwards, replicated, v_shaped


def edited(schedule: Schedule, rank: int, edit: Callable[[list[Op]], object]) -> Schedule:
    rows = [list(row) for row in schedule.ops]
    edit(rows[rank])
    return make_schedule(schedule.name, schedule.num_stages, schedule.num_microbatches, rows)


def lists_of(*rows: str) -> Schedule:
    """Return the schedule whose lists are these ops as files write them, with a blank between two."""
    ops = [[parse_op_with_peer(word) for word in row.split()] for row in rows]
    parts = [part for row in ops for op in row for part in computes(op)]
    num_stages, num_microbatches = (1 + max(getattr(part, name) for part in parts) for name in ("stage", "microbatch"))
    return make_schedule("x", num_stages, num_microbatches, ops)


def without_steps(schedule: Schedule) -> Schedule:
    """Leave out the Steps: gradients stay where they are at the end."""
    return replace(schedule, lists=tuple(tuple(op for op in row if not isinstance(op, Step)) for row in schedule.ops))


def place_of(schedule: Schedule, rank: int, text: str) -> int:
    return [str(op) for op in schedule.ops[rank]].index(text)


def swapped(first: str, second: str) -> Callable[[list[Op]], None]:
    def swap(row: list[Op]) -> None:
        texts = [str(op) for op in row]
        a, b = texts.index(first), texts.index(second)
        row[a], row[b] = row[b], row[a]

    return swap


def faults_of(schedule: Schedule, kind: str) -> list[tuple[int | None, int | None, str]]:
    return [(finding.rank, finding.index, finding.text) for finding in find_faults(schedule) if finding.kind == kind]


@functools.cache
def small_schedules() -> tuple[Schedule, ...]:
    """Return lowered schedules of the whole catalogue, as small as they go, and some made by hand."""
    made = [v_shaped(), replicated(), mixed_backwards(), recompute(one_f_one_b(2, 2))]
    for entry in CATALOGUE.values():
        for p, m in ((2, 1), (2, 2), (2, 3), (2, 4), (3, 3), (3, 4), (4, 4)):
            for chunks in ({"num_chunks": 2},) if entry.traits.takes_chunks else ({},):
                try:
                    made.append(entry.build(p, m, **chunks))
                except ScheduleError:
                    continue
    return tuple(map(lower, made))


@functools.cache
def mutant(seed: int) -> tuple[Schedule, Schedule]:
    """Return a small lowered schedule, and the same with one or two ops dropped, duplicated, swapped or moved."""
    chance = random.Random(seed)
    schedule = chance.choice(small_schedules())
    rows = [list(row) for row in schedule.ops]
    for _ in range(chance.choice([1, 1, 2])):
        row = chance.choice([row for row in rows if row])
        place, other = chance.randrange(len(row)), chance.randrange(len(row))
        match chance.choice(["drop", "duplicate", "swap", "move", "neighbours", "emigrate"]):
            case "drop":
                row.pop(place)
            case "duplicate":
                row.insert(other, row[place])
            case "swap":
                row[place], row[other] = row[other], row[place]
            case "move":
                row.insert(other, row.pop(place))
            case "neighbours":
                row[place - 1], row[place] = row[place], row[place - 1]
            case "emigrate":
                target = chance.choice(rows)
                op = row.pop(place)
                target.insert(chance.randint(0, len(target)), op)
    return schedule, make_schedule("mutant", schedule.num_stages, schedule.num_microbatches, rows)


def reduced_early(schedule: Schedule) -> Schedule:
    """Post each Reduce right after the last backward of its stage before it, so that it goes beside what follows."""
    rows: list[list[Op]] = []
    for row in schedule.ops:
        early: list[Op] = []
        for op in row:
            at = len(early)
            if isinstance(op, Reduce):
                while at and not any(
                    part.stage == op.stage and part.phase.value in "BW" for part in computes(early[at - 1])
                ):
                    at -= 1
            early.insert(at, op)
        rows.append(early)
    return make_schedule(schedule.name, schedule.num_stages, schedule.num_microbatches, rows)
