"""What each rank holds from cell to cell, as a loop over numbers.

    cell           F0    F1    B0          gaps: what is held in front of a cell, where its rank has to wait
    starts     +  30    30     .           starts: what changes where it begins, as is each of the next
    ends       +   .    10   -30           ends: what changes where it is over

Inside an op its bytes are held even if it takes no time; in front of it only if the rank waits. What is held from when
to when is said in `simulator.memory.lifetimes`.
"""

from __future__ import annotations

from typing import Any

from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Message, Payload
from pipesched.simulator.sweep.list_walk import GONE_AT, MADE, MESSAGE, RECV_AT, B, F, I, R, W


def hold(  # noqa: C901 -- one loop: calls would cost plain Python more than the work
    begins: Any, codes: Any, stages: Any, microbatches: Any, num_stages: int, num_microbatches: int, homes: Any,
    masks: Any, messages: Any, waits: Any, is_compressed: bool, first_peak: int, peaks: Any, always: Any, weights: Any,
    outputs: Any, sent: Any, saved: Any, saved_for_weight: Any, working: Any, are_saved: Any, opened: Any, starts: Any,
    ends: Any, before: Any, gaps: Any, inside: Any,
) -> None:  # fmt: skip
    """Find the most that each rank holds inside its ops, and what it holds more in front of some, if it waits there.

    Args:
        begins: As `walk` takes it, as are the next five.
        codes: n codes.
        stages: n stages.
        microbatches: n micro-batches.
        num_stages: How many stages there are.
        num_microbatches: m.
        homes: As `walk` leaves it, as are the next four.
        masks: The phases of each micro-batch of each stage.
        messages: Numbers of messages.
        waits: Of each cell whether its rank waits in front of it, in the case that was walked.
        is_compressed: Whether something else than the output is sent.
        first_peak: Where the first rank's is among `peaks`.
        peaks: The most that each rank holds in that case, to be written.
        always: Bytes of each stage that are held always.
        weights: Bytes of its weights.
        outputs: Bytes of its output.
        sent: Bytes of its output on its way, and of the gradient of it.
        saved: Bytes that F leaves.
        saved_for_weight: Bytes that I leaves to W.
        working: Bytes that B and I work in.
        are_saved: Whether the output is among what F leaves.
        opened: Of each stage whether it has gradients; to be written, as is all that follows.
        starts: Of each cell what changes at its start.
        ends: Of each what changes at its end.
        before: Of each, and of the end of each rank as a cell more, what is allocated in front of it.
        gaps: Of each what is held in front of it, where that is more than anything inside the rank's ops; else 0.
        inside: Of each rank the most that it holds inside its ops, and when all is over.
    """
    num_ranks, gradients = len(begins) - 1, num_stages * num_microbatches
    for i in range(begins[num_ranks]):
        starts[i], ends[i] = 0, 0
    for i in range(begins[num_ranks] + num_ranks):
        before[i] = 0
    for stage in range(num_stages):
        opened[stage] = 0
    for i in range(begins[num_ranks]):
        code, stage = codes[i], stages[i]
        own = stage * num_microbatches + microbatches[i]
        start, end = 0, 0  # what changes at its start, and at its end
        if code <= I:
            received, freed = -1, 0  # its message, and the stage whose output that has the size of
            if code == F and stage:
                received, origin = own - num_microbatches, stage - 1
            elif code != F and stage + 1 < num_stages:
                received, origin = gradients + own + num_microbatches, stage
            if received >= 0:
                recv_at = messages[received * MESSAGE + RECV_AT]
                if recv_at >= 0:
                    before[recv_at] += sent[origin]
                    freed = sent[origin]
                elif code != F or not are_saved[origin] or masks[received] & 1 << R:
                    ends[messages[received * MESSAGE + MADE]] += outputs[origin]
                    freed = outputs[origin]
            message, origin = (own, stage) if code == F else (gradients + own, stage - 1)
            is_held = is_compressed or code != F or not are_saved[stage] or masks[own] & 1 << R
            if messages[message * MESSAGE + RECV_AT] >= 0 and is_held:
                end += sent[origin]
                gone_at = messages[message * MESSAGE + GONE_AT]
                if gone_at >= 0:
                    starts[gone_at] -= sent[origin]
            if code == F:
                is_again = masks[own] & 1 << R
                start += ((outputs[stage - 1] if stage else 0) if is_again else saved[stage]) - freed
            else:
                end += (saved_for_weight[stage] if code == I else 0) - saved[stage] - freed
        elif code == W:
            end -= saved_for_weight[stage]
        elif code == R:
            start += saved[stage] - (outputs[stage - 1] if stage else 0)
        if code in (B, W):
            if opened[stage] == 0:
                end += weights[stage]
                opened[stage] = 1
        elif code > R and opened[stage]:
            end -= weights[stage]
            opened[stage] = 0
        starts[i] += start
        ends[i] += end
    for rank in range(num_ranks):
        held, peak = 0, 0
        for stage in range(num_stages):
            if homes[stage * num_microbatches] == rank:
                held += always[stage]
        for i in range(begins[rank], begins[rank + 1]):
            held += before[i + rank]
            gaps[i] = held
            held += starts[i]
            within = held + working[stages[i]] if codes[i] in (B, I) else held
            peak = within if within > peak else peak
            held += ends[i]
        held += before[begins[rank + 1] + rank]
        inside[rank] = held if held > peak else peak
        peak = inside[rank]
        for i in range(begins[rank], begins[rank + 1]):
            if gaps[i] <= inside[rank]:
                gaps[i] = 0
            elif waits[i] and gaps[i] > peak:
                peak = gaps[i]
        peaks[first_peak + rank] = peak


def bytes_of_stages(costs: StageCosts, num_stages: int, *, in_arrays: bool) -> tuple[Any, ...]:
    """Return what `hold` asks of the costs of the first stages, from `always` to `are_saved`, in lists or in arrays."""
    stages = costs.stages[:num_stages]
    if costs.compression is None and len(set(map(id, stages))) == 1:
        stages = stages[:1]  # says it of all
    rows = [
        (
            cost.weight_bytes + cost.optimizer_bytes,
            cost.weight_bytes,
            cost.output_bytes,
            sent_bytes,
            cost.saved_bytes,
            cost.saved_bytes if cost.saved_for_weight_bytes is None else cost.saved_for_weight_bytes,
            cost.working_bytes,
            int(cost.output_is_saved),
        )
        for cost, sent_bytes in zip(stages, message_bytes(costs, len(stages)), strict=True)
    ]
    columns = [[row[part] for row in rows] * (num_stages // max(1, len(rows))) for part in range(8)]
    if in_arrays:
        import numpy as np

        return tuple(np.array(columns, np.int64))
    return tuple(columns)


def message_bytes(costs: StageCosts, count: int) -> list[int]:
    """Return the bytes of the output of the first stages on its way."""
    if costs.compression is None:
        return [cost.output_bytes for cost in costs.stages[:count]]
    return [costs.message_bytes(Message(Payload.ACTIVATION, stage, 0)) for stage in range(count)]
