"""The table of messages agrees with `needs` and `gives`, as lists and as arrays."""

import pytest

from pipesched.schedules.columns import message_table, op_cells
from pipesched.schedules.ops import Message, Payload, gives, needs


def messages_of(rows, num_stages):
    """Return the messages of micro-batch 0 in rows, without the missing ones."""
    return {Message([*Payload][row // num_stages], row % num_stages, 0) for row in rows if row >= 0}


@pytest.mark.parametrize("num_stages", [1, 2, 5])
def test_the_table_has_the_messages_of_needs_and_gives(num_stages):
    table = message_table(num_stages)
    for code in range(op_cells.SEND_F):
        for stage in range(num_stages):
            part, key = op_cells.op_of_cell(code, stage, 0, 0, 0), code * num_stages + stage
            own, other = messages_of([table.own[key]], num_stages), messages_of([table.other[key]], num_stages)
            assert own | other == {*needs(part, num_stages)}
            assert {message.stage for message in own} <= {stage}
            assert stage not in {message.stage for message in other}
            assert messages_of([table.made[key]], num_stages) == {gives(part)} - {None}


def test_a_message_is_for_a_stage_of_the_pipeline():
    assert message_table(3).receivers.tolist() == [1, 2, -1, -1, 0, 1]
