"""A batch's columns, several times in succession."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from pipesched.schedules.columns import machine_code
from pipesched.schedules.columns.op_cells import OVERLAPPED, REDUCE, SEND_F, STEP
from pipesched.schedules.columns.op_columns import OpColumns


def repeated_columns(columns: OpColumns, times: int, num_microbatches: int, num_stages: int) -> OpColumns:
    """Return the columns of a batch that runs `times` times, as `pipesched.schedules.repeat` lists its ops."""
    num_ranks, num_cells = columns.num_ranks, times * columns.num_cells
    begins, codes, stages, microbatches, others, lookaheads = columns.cells
    full = machine_code.int32s
    others, lookaheads = (column if len(column) else full(columns.num_cells) for column in (others, lookaheads))
    longer: list[npt.NDArray[Any]] = [
        full(num_ranks + 1),
        machine_code.int8s(num_cells),
        *(full(num_cells) for _ in range(4)),
    ]
    machine_code.run_loop(
        write_repeated, begins, codes, stages, microbatches, others, lookaheads, times, num_microbatches,
        full(num_stages), *longer, num_steps=num_cells,
    )  # fmt: skip
    if columns.lookaheads is None:
        longer.pop()
    return OpColumns(*longer)


def write_repeated(
    begins: Any, codes: Any, stages: Any, microbatches: Any, others: Any, lookaheads: Any, times: int,
    num_microbatches: int, steps: Any, longer_begins: Any, longer_codes: Any, longer_stages: Any,
    longer_microbatches: Any, longer_others: Any, longer_lookaheads: Any,
) -> None:  # fmt: skip
    """Write the cells of each rank `times` times, as `moved` moves their ops.

    Args:
        begins: R + 1 indices, and then columns of n cells, as `OpColumns` has them.
        codes: n codes.
        stages: n stages.
        microbatches: n micro-batches.
        others: n peers and versions.
        lookaheads: n look-aheads.
        times: Number of batches.
        num_microbatches: Micro-batches of a batch.
        steps: Room for a number of each stage.
        longer_begins: R + 1 indices to be written.
        longer_codes: Column of ``times * n`` cells to be written.
        longer_stages: Column of ``times * n`` cells to be written.
        longer_microbatches: Column of ``times * n`` cells to be written.
        longer_others: Column of ``times * n`` cells to be written.
        longer_lookaheads: Column of ``times * n`` cells to be written.
    """
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
