"""A loop over columns refuses an op code that it does not know, so that a new op word fails loudly in every loop."""

from dataclasses import replace

import pytest

from pipesched.profiles.clusters import flat
from pipesched.profiles.costs import uniform
from pipesched.schedules import Schedule
from pipesched.schedules.builders import build
from pipesched.schedules.columns import OpColumns, SpanColumns, op_cells
from pipesched.schedules.lowering import lower
from pipesched.simulator import NetworkOptions
from pipesched.simulator.analysis import usage
from pipesched.simulator.fast import compile_lists, held_on_devices, simulate_arrays
from pipesched.simulator.memory import in_flight

SCHEDULE, COSTS = build("1f1b", 2, 4), uniform(2, 1.0, 2.0)
LOWERED = lower(SCHEDULE)


def with_unknown_op(schedule: Schedule) -> Schedule:
    """Return a schedule whose first Step has an unknown code."""
    begins, codes, *columns = map(list, schedule.columns.cells)
    codes[codes.index(op_cells.STEP)] = op_cells.RESHARD + 1
    others, lookaheads = (column or None for column in columns[2:])
    return replace(schedule, lists=OpColumns(begins, codes, *columns[:2], others, lookaheads).rows())


def compiled(lists):
    return compile_lists(lists, NetworkOptions(), has_hand_over=False)


def held():
    program = replace(compiled(LOWERED), schedule=with_unknown_op(LOWERED))
    return held_on_devices(program, COSTS)


def timeline_with_unknown_op():
    timeline = simulate_arrays(SCHEDULE, COSTS, flat(2))
    ops, spans = with_unknown_op(LOWERED).columns, timeline.columns
    return replace(timeline, spans=SpanColumns(ops, spans.posted_s, spans.starts_s, spans.ends_s))


@pytest.mark.parametrize(
    ("run", "loop"),
    [
        (lambda: lower(with_unknown_op(SCHEDULE)), "work_through"),
        (lambda: compiled(with_unknown_op(LOWERED)), "write_instructions"),
        (held, "find_lifetimes"),
        (lambda: usage(timeline_with_unknown_op()), "find_transfers"),
        (lambda: in_flight(timeline_with_unknown_op(), COSTS, SCHEDULE), "find_lifetimes"),
    ],
    ids=["lowering", "compilation", "memory", "idle time", "micro-batches in flight"],
)
def test_a_loop_refuses_an_unknown_code(run, loop):
    with pytest.raises(ValueError, match=f"op code: .* add it to `{loop}`"):
        run()
