import pickle

import numpy as np
import pytest

from pipesched.schedules import Schedule, make_schedule
from pipesched.schedules.builders.catalogue import build
from pipesched.schedules.columns import OpColumns, OpRow, op_cells, shows_messages
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Average, Reduce, Reshard, Step, Unshard

LISTS = [
    lower(build("dualpipe_v", 2, 4)),
    build("zbv", 2, 4),
    build("spectrain", 2, 4),
    lower(build("data_parallel", 2, 4)),
    make_schedule("words", 1, 1, [[Unshard(0), Reduce(0), Average(0), Step(0), Reshard(0)], []]),
]


@pytest.mark.parametrize("schedule", LISTS, ids=lambda schedule: schedule.name)
def test_columns_hold_the_very_ops_that_they_are_read_from(schedule: Schedule):
    columns = OpColumns.of(schedule.ops)
    assert tuple(row.ops for row in columns.rows()) == schedule.ops
    assert [len(row) for row in columns.rows()] == list(map(len, schedule.ops))
    assert columns.has_messages == shows_messages(schedule.ops)


@pytest.mark.parametrize("schedule", LISTS, ids=lambda schedule: schedule.name)
def test_columns_of_lists_and_of_wider_numbers_make_the_same_ops(schedule: Schedule):
    own = OpColumns.of(schedule.ops)
    columns = (own.begins, own.codes, own.stages, own.microbatches, own.others, own.lookaheads)
    lists = OpColumns(*(numbers if numbers is None else numbers.tolist() for numbers in columns))
    wider = OpColumns(*(numbers if numbers is None else numbers.astype(np.int64) for numbers in columns))
    for same in (lists, wider):
        assert tuple(row.ops for row in same.rows()) == schedule.ops
        assert [len(row) for row in same.rows()] == list(map(len, schedule.ops))
        assert same.has_messages == own.has_messages
        assert (same.codes.dtype, same.stages.dtype) == (np.int8, np.int32)


def test_a_schedule_made_of_columns_is_the_schedule_made_of_ops():
    schedule = build("1f1b", 3, 4)
    columns = OpColumns.of(schedule.ops)
    same = make_schedule("1f1b", 3, 4, columns)
    of_tuples = make_schedule("1f1b", 3, 4, [list(row) for row in schedule.ops])
    assert same == of_tuples
    assert of_tuples == same
    assert hash(same) == hash(of_tuples)
    assert repr(same) == repr(of_tuples)
    assert same.columns is columns
    assert not same.is_lowered
    assert pickle.loads(pickle.dumps(same)) == same


def test_ops_of_a_row_are_made_once_when_they_are_read():
    row = OpRow(OpColumns([0, 2], [op_cells.F, op_cells.STEP], [0, 0], [0, 0]), 0)
    assert row[1] is row.ops[1]
    assert row[1:] == (Step(0),)
