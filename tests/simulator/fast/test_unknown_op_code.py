"""A loop over columns refuses an op code that it does not know, so that a new op word fails loudly in every loop."""

from dataclasses import replace

import pytest

from pipesched.profiles.clusters import flat
from pipesched.profiles.costs import StageCosts, uniform
from pipesched.schedules import Schedule, Timeline
from pipesched.schedules.builders import build
from pipesched.schedules.columns import OpColumns, SpanColumns, op_cells
from pipesched.schedules.lowering import lower
from pipesched.simulator import NetworkOptions
from pipesched.simulator.analysis import usage
from pipesched.simulator.fast import compile_lists, held_on_devices, simulate_arrays
from pipesched.simulator.memory import in_flight

UNKNOWN = op_cells.RESHARD + 1


def with_unknown_op(schedule: Schedule) -> Schedule:
    """Return a schedule whose first Step has an unknown code."""
    begins, codes, *columns = map(list, schedule.columns.cells)
    codes[codes.index(op_cells.STEP)] = UNKNOWN
    others, lookaheads = (column or None for column in columns[2:])
    return replace(schedule, lists=OpColumns(begins, codes, *columns[:2], others, lookaheads).rows())


def test_lowering_refuses_an_unknown_code():
    with pytest.raises(ValueError, match=r"op code: .* add it to `work_through`"):
        lower(with_unknown_op(build("1f1b", 2, 4)))


def test_compilation_refuses_an_unknown_code():
    with pytest.raises(ValueError, match=r"op code: .* add it to `write_instructions`"):
        compile_lists(with_unknown_op(lower(build("1f1b", 2, 4))), NetworkOptions(), has_hand_over=False)


def test_memory_refuses_an_unknown_code():
    lowered = lower(build("1f1b", 2, 4))
    program = compile_lists(lowered, NetworkOptions(), has_hand_over=False)
    with pytest.raises(ValueError, match=r"op code: .* add it to `find_lifetimes`"):
        held_on_devices(replace(program, schedule=with_unknown_op(lowered)), uniform(2, 1.0))


def timeline_with_unknown_op(schedule: Schedule, costs: StageCosts) -> Timeline:
    """Return the Timeline of a schedule whose first Step has an unknown code."""
    timeline = simulate_arrays(schedule, costs, flat(2))
    ops = with_unknown_op(lower(schedule)).columns
    spans = timeline.columns
    return replace(timeline, spans=SpanColumns(ops, spans.posted_s, spans.starts_s, spans.ends_s))


def test_idle_time_refuses_an_unknown_code():
    unknown = timeline_with_unknown_op(build("1f1b", 2, 4), uniform(2, 1.0, 2.0))
    with pytest.raises(ValueError, match=r"op code: .* add it to `find_transfers`"):
        usage(unknown)


def test_micro_batches_in_flight_refuse_an_unknown_code():
    schedule, costs = build("1f1b", 2, 4), uniform(2, 1.0, 2.0)
    unknown = timeline_with_unknown_op(schedule, costs)
    with pytest.raises(ValueError, match=r"op code: .* add it to `find_lifetimes`"):
        in_flight(unknown, costs, schedule)
