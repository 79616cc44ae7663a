"""The dependency rule as a table of numbers for loops over columns, generated from `needs` and `gives`.

message    row * m + micro-batch     rows 0 to S - 1: activation of each stage; rows S to 2 S - 1: its gradient
key        code * S + stage          code of a computation, as in `op_cells`

S = 2       0F   1F   0B   1B   0I   1I   0W   1W   0R   1R   0LATE_R   1LATE_R
own         -1   -1    0    1    0    1    2    3    0    1         0         1
other       -1    0    3   -1    3   -1   -1   -1   -1   -1         3        -1
made         0    1    2    3    2    3   -1   -1   -1   -1        -1        -1
receivers    1   -1   -1    0                                    of the rows 0 to 3
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pipesched.schedules.columns.machine_code import Int32s
from pipesched.schedules.columns.op_cells import SEND_F, op_of_cell
from pipesched.schedules.ops import Message, Payload, computes, gives, needs, needs_from_others


class MessageTable(NamedTuple):
    """The messages that the computations of one micro-batch need and make; -1 stands for no message or stage.

    Attributes:
        own: Row of the needed message of the computation's own stage, by key.
        other: Row of the needed message of another stage, by key.
        made: Row of the message that the computation makes, by key.
        receivers: Stage that receives a message, by row.
    """

    own: Int32s
    other: Int32s
    made: Int32s
    receivers: Int32s


@lru_cache(maxsize=64)
def message_table(num_stages: int) -> MessageTable:
    """Return the table of a pipeline; callers share the table and must not change it.

    Args:
        num_stages: S, at least 1.
    """
    ops = (op_of_cell(code, stage, 0, 0, 0) for code in range(SEND_F) for stage in range(num_stages))
    parts = [part for op in ops for part in computes(op)]

    def row(message: Message | None) -> int:
        return -1 if message is None else message.stage + num_stages * (message.payload is Payload.GRADIENT)

    others = [next(iter(needs_from_others(part, num_stages)), None) for part in parts]
    owns = [
        next((it for it in needs(part, num_stages) if it != other), None)
        for part, other in zip(parts, others, strict=True)
    ]
    messages = [Message(payload, stage, 0) for payload in Payload for stage in range(num_stages)]
    columns = (
        [*map(row, owns)],
        [*map(row, others)],
        [row(gives(part)) for part in parts],
        [message.receiver if 0 <= message.receiver < num_stages else -1 for message in messages],
    )
    return MessageTable(*(np.array(column, np.int32) for column in columns))
