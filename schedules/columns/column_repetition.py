"""Repeat the columns of a batch."""

from __future__ import annotations

from pipesched.schedules.columns import machine_code
from pipesched.schedules.columns.machine_code import Int32s
from pipesched.schedules.columns.op_cells import OVERLAPPED, REDUCE, SEND_F, STEP
from pipesched.schedules.columns.op_columns import Cells, OpColumns


def repeated_columns(columns: OpColumns, times: int, num_microbatches: int, num_stages: int) -> OpColumns:
    """Return the columns of a batch that runs `times` times, as `pipesched.schedules.repeat` lists its ops."""
    num_ranks, num_cells = columns.num_ranks, times * columns.num_cells
    full = machine_code.int32s
    begins, codes, stages, microbatches, *rest = columns.cells
    others, lookaheads = (column if len(column) else full(columns.num_cells) for column in rest)
    cells = Cells(begins, codes, stages, microbatches, others, lookaheads)
    longer = Cells(full(num_ranks + 1), machine_code.int8s(num_cells), *(full(num_cells) for _ in range(4)))
    machine_code.run_loop(write_repeated, cells, times, num_microbatches, full(num_stages), longer, num_steps=num_cells)
    return OpColumns(*longer if columns.lookaheads is not None else longer[:-1])


def write_repeated(cells: Cells, times: int, num_microbatches: int, steps: Int32s, longer: Cells) -> None:
    """Write the cells of each rank `times` times, as `moved` moves their ops.

    Args:
        cells: The lists of a batch, with all columns.
        times: Number of batches.
        num_microbatches: Micro-batches of a batch.
        steps: Buffer with a number for each stage.
        longer: The repeated lists; written.
    """
    begins, codes, stages, microbatches, others, lookaheads = cells
    longer_begins, longer_codes, longer_stages, longer_microbatches, longer_others, longer_lookaheads = longer
    at = 0
    for rank in range(len(begins) - 1):
        longer_begins[rank] = at
        for stage in range(len(steps)):
            steps[stage] = 0
        for i in range(begins[rank], begins[rank + 1]):
            steps[stages[i]] += codes[i] == STEP
        for batch in range(times):
            for i in range(begins[rank], begins[rank + 1]):
                longer_codes[at], longer_stages[at], longer_lookaheads[at] = codes[i], stages[i], lookaheads[i]
                longer_microbatches[at], longer_others[at] = microbatches[i], others[i]
                code = codes[i] % OVERLAPPED
                if code < REDUCE:
                    longer_microbatches[at] += batch * num_microbatches
                if code < SEND_F:
                    longer_others[at] += batch * steps[stages[i]]
                at += 1
    longer_begins[len(begins) - 1] = at
