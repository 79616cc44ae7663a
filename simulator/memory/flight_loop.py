"""The changes of a rank's micro-batches in flight, and their sum: loops over numbers, for lists and compiled arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

from pipesched.schedules.columns import Cells, Float64s, Int32s, Int64s, op_cells

F, B, I, W, R, SEND_F = op_cells.F, op_cells.B, op_cells.I, op_cells.W, op_cells.R, op_cells.SEND_F  # noqa: E741
STEP, RESHARD, OVERLAPPED = op_cells.STEP, op_cells.RESHARD, op_cells.OVERLAPPED


class ShareByStage(NamedTuple):
    """The count of a micro-batch on each stage.

    Attributes:
        inputs: Count of a stage's input.
        saved: Count from F, or from R, to the end of B or I.
        saved_for_weight: Count from there to the end of W.
    """

    inputs: Any
    saved: Any
    saved_for_weight: Any


class Changes(NamedTuple):
    """The changes of a rank, to be written.

    Attributes:
        times_s: When each comes [s].
        orders: Its place among simultaneous changes.
        counts: Change of the count.
    """

    times_s: Float64s
    orders: Int64s
    counts: Any


def find_changes(  # noqa: C901 -- one loop: calls would cost plain Python more than the work
    rank: int, cells: Cells, starts_s: Float64s, ends_s: Float64s, num_microbatches: int, shares: ShareByStage,
    seen: Int32s, changes: Changes,
) -> int:  # fmt: skip
    """Find the changes of a rank's micro-batches in flight, at the instants of `memory.instants`.

    Args:
        rank: The rank.
        cells: The lists of all ranks.
        starts_s: When the op of each cell began [s].
        ends_s: When it was over [s].
        num_microbatches: m.
        shares: Counts of the stages.
        seen: Of each micro-batch of each stage, to be written: 4 times the rank and 1, and whether it has F, R and I.
        changes: The changes, to be written.

    Returns:
        Number of changes.
    """
    begins, codes, stages, microbatches, versions, lookaheads = cells
    inputs, saved, saved_for_weight = shares
    times_s, orders, counts = changes
    begin, end, stamp = begins[rank], begins[rank + 1], rank + 1
    for i in range(begin, end):
        code = codes[i] % OVERLAPPED
        if code in (F, R):
            own = stages[i] * num_microbatches + microbatches[i]
            if seen[own] < 4 * stamp:
                seen[own] = 4 * stamp
            if code == F and seen[own] % 2 == 0:
                seen[own] += 1
            elif code == R and seen[own] % 4 < 2:
                seen[own] += 2
    num_changes = 0
    now_s, order = -1e308, 0  # before all
    for i in range(begin, end):
        code = codes[i]
        if SEND_F <= code < OVERLAPPED and code != STEP:
            if code > RESHARD:
                raise ValueError("op code: got an unknown code; add it to `find_changes`")
            continue
        if i == begin or codes[i - 1] < OVERLAPPED:
            start_s, end_s = starts_s[i], ends_s[i]
            start_order = order if start_s == now_s else 0
            end_order = start_order + 1 if end_s == start_s else 0
            is_ahead = False
            for part in range(i, i + (2 if code >= OVERLAPPED else 1)):
                if len(lookaheads) and lookaheads[part] > 0 and versions[part] > 0:
                    is_ahead = True
            now_s, order = end_s, end_order + (1 if is_ahead else 0)
        code = code % OVERLAPPED
        if code == STEP:
            continue
        stage = stages[i]
        own = stage * num_microbatches + microbatches[i]
        if seen[own] < 4 * stamp or seen[own] % 2 == 0:
            continue  # its forward is elsewhere
        is_rebuilt = seen[own] % 4 >= 2
        if code == F:
            times_s[num_changes], orders[num_changes] = start_s, start_order
            counts[num_changes] = inputs[stage] if is_rebuilt else saved[stage]
        elif code == R:
            times_s[num_changes], orders[num_changes] = start_s, start_order
            counts[num_changes] = saved[stage] - inputs[stage]
        else:
            times_s[num_changes], orders[num_changes] = end_s, end_order
            if code == B:
                counts[num_changes] = -saved[stage]
            elif code == I:
                counts[num_changes] = saved_for_weight[stage] - saved[stage]
            else:
                counts[num_changes] = -saved_for_weight[stage]
        num_changes += 1
    return num_changes


def add_changes(times_s: Any, orders: Any, counts: Any, sample_times_s: Any, held: Any) -> int:
    """Add up changes: the count after all changes of one time is a sample, a higher count within them another.

    Args:
        times_s: Time of each change [s], ascending.
        orders: Ascending among simultaneous changes.
        counts: Change of the count.
        sample_times_s: Time of each sample [s], to be written; as long as the changes.
        held: Count at each sample, to be written.

    Returns:
        Number of samples.
    """
    num_samples, now, at, count = 0, 0, 0, len(times_s)
    while at < count:
        time_s, most, is_first = times_s[at], 0, True
        while at < count and times_s[at] == time_s:
            order = orders[at]
            while at < count and times_s[at] == time_s and orders[at] == order:
                now += counts[at]
                at += 1
            if is_first or now > most:
                most, is_first = now, False
        if most > now:
            sample_times_s[num_samples], held[num_samples] = time_s, most
            num_samples += 1
        sample_times_s[num_samples], held[num_samples] = time_s, now
        num_samples += 1
    return num_samples
