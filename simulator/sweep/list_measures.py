"""Measure lists one after another, each under one case: a loop over numbers around `walk`, `hold` and `sum_up`.

All lists have the same stages, ranks and costs; the room to work in is that of the longest, used again and again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pipesched.simulator import differ
from pipesched.simulator.fast import sum_up
from pipesched.simulator.sweep.held_totals import hold
from pipesched.simulator.sweep.list_walk import DONE, MESSAGE, NUM_KINDS, PAIR, begin_walk, walk


class ListRoom(NamedTuple):
    """Room for what is found of a list, and what is left of the last one; numbers of what are in brackets.

    Attributes:
        begun: What `begin_walk` writes [S m, S m, NUM_KINDS S].
        lasts_s: Durations [NUM_KINDS S + 4 S].
        walked: What `walk` writes, from `counts` to `kept_s`.
        asked: What it writes of each cell if that is asked for, else of length 0.
        steps: What it writes of each step, likewise.
        held: What `hold` writes, from `opened` to `inside`.
    """

    begun: Any
    lasts_s: Any
    walked: Any
    asked: Any
    steps: Any
    held: Any

    @property
    def counts(self) -> Any:
        """The numbers of steps and of channels."""
        return self.walked[0]


def list_room(
    room: Any, num_cells: int, num_ranks: int, num_stages: int, num_microbatches: int, num_rows: int, *,
    has_bytes: bool, has_cells: bool, has_steps: bool,
) -> ListRoom:  # fmt: skip
    """Return room for lists of at most so many cells and micro-batches.

    Args:
        room: Makes room for some numbers of a kind of NumPy's.
        num_cells: n.
        num_ranks: R.
        num_stages: S.
        num_microbatches: m.
        num_rows: How many messages may be on their way at once.
        has_bytes: Whether it is asked what is held.
        has_cells: Whether it is asked when cells begin and are over.
        has_steps: Whether steps are.
    """
    num_states, num_pairs = num_stages * num_microbatches, num_ranks * num_ranks
    num_channels, num_steps = min(2 * num_stages, num_pairs), (num_cells + 4 * num_states) * has_steps
    sizes = [
        2, 2 * num_states * MESSAGE, num_pairs * PAIR, num_ranks, num_ranks, num_ranks, num_pairs,
        num_ranks * num_rows * has_bytes, num_rows, *[num_channels] * 4, 2 * num_stages,
    ]  # fmt: skip
    rows = 1 + 2 * num_ranks + num_rows + 2 * num_channels, num_ranks + num_channels
    held = (num_cells, num_cells, num_cells + num_ranks, num_cells, num_ranks) if has_bytes else (0,) * 5
    return ListRoom(
        tuple(room(size, "int32") for size in (num_states, num_states, NUM_KINDS * num_stages)),
        room((NUM_KINDS + 4) * num_stages, "float64"),
        (*(room(size, "int32") for size in sizes), *(room(size, "float64") for size in rows)),
        (room(num_cells * has_bytes, "int8"), *(room(num_cells * has_cells, "float64") for _ in range(2))),
        tuple(room(num_steps, "int32") for _ in range(7)),
        (room(num_stages, "int32"), *(room(size, "int64") for size in held)),
    )


def measure_lists(
    offsets: Any, begins_of: Any, codes_of: Any, stages_of: Any, microbatches_of: Any, counts_of: Any, num_stages: int,
    num_rows: int, is_repeated: bool, same: float, costs: Any, links: Any, stage_bytes: Any, is_compressed: bool,
    begun: Any, lasts_s: Any, walked: Any, asked: Any, steps: Any, held: Any, answers: Any, peaks: Any,
    makespans_s: Any, busy_s: Any, periods_s: Any,
) -> None:  # fmt: skip
    """Find what each of k lists amounts to.

    Args:
        offsets: k + 1 numbers: where the cells of each list begin, and the end.
        begins_of: R + 1 indices of each list, one list behind the other, as are the next.
        codes_of: Codes.
        stages_of: Stages.
        microbatches_of: Micro-batches.
        counts_of: Of each list how many micro-batches it has.
        num_stages: S.
        num_rows: How many messages may be on their way at once.
        is_repeated: Whether ops may come behind a Step of their stage.
        same: By how much of a period times may differ that are the same.
        costs: What `find_lasts` takes of costs and devices.
        links: What it takes of links.
        stage_bytes: What `hold` takes of costs, from `always` to `are_saved`; of length 0 if no bytes are asked for.
        is_compressed: Whether something else than the output is sent.
        begun: Room as `ListRoom` has it, as are the next five.
        lasts_s: Durations [s].
        walked: What `walk` writes.
        asked: What it writes of cells.
        steps: What it writes of steps.
        held: What `hold` writes.
        answers: k numbers, to be written, as is all that follows: what `walk` says.
        peaks: R numbers of each list: the most that each rank holds [bytes].
        makespans_s: From the first work to the end of the last [s].
        busy_s: How long the devices compute, all of them together; NaN where the costs do not say it [s].
        periods_s: How long after it the next batch is the same; -1 where the batch does not show it [s].
    """
    num_ranks, has_bytes = len(begins_of) // len(counts_of) - 1, len(stage_bytes[0]) > 0
    for number in range(len(counts_of)):
        first, end, count, rank = offsets[number], offsets[number + 1], counts_of[number], number * (num_ranks + 1)
        lists = (
            begins_of[rank : rank + num_ranks + 1], codes_of[first:end], stages_of[first:end],
            microbatches_of[first:end], num_stages, count,
        )  # fmt: skip
        homes, masks, num_cells = begun
        answers[number] = begin_walk(*lists, is_repeated, homes, masks, num_cells)
        if answers[number] != DONE:
            continue
        busy_s[number] = find_lasts(num_stages, count, homes, num_cells, lasts_s, *costs, *links)
        answers[number] = walk(*lists, num_rows, has_bytes, lasts_s, homes, masks, *walked, *asked, *steps)
        if answers[number] != DONE:
            continue
        counts, messages, now, senders, receivers, left, last_ways, rows_s, kept_s = (
            walked[0], walked[1], walked[5], walked[9], walked[10], walked[11], walked[12], walked[14], walked[15],
        )  # fmt: skip
        sum_up(
            num_ranks, counts[1], 1, 1, number, now, senders, receivers, left, last_ways, lasts_s, rows_s, kept_s, same,
            makespans_s, periods_s,
        )  # fmt: skip
        if has_bytes:
            where = number * num_ranks, peaks
            hold(*lists, homes, masks, messages, asked[0], is_compressed, *where, *stage_bytes, *held)


def find_lasts(
    num_stages: int, num_microbatches: int, homes: Any, num_cells: Any, lasts_s: Any, seconds: Any, speeds: Any,
    sizes: Any, latencies_s: Any, bandwidths: Any,
) -> float:  # fmt: skip
    """Write how long all works and messages of a case last; return how long all works do together [s].

    Args:
        num_stages: S.
        num_microbatches: m.
        homes: As `begin_walk` leaves it, as is the next.
        num_cells: How many cells there are of each kind.
        lasts_s: To be written, as `walk` takes it [s].
        seconds: Of each kind how long it takes on a device of speed 1; NaN where the costs do not say it [s].
        speeds: Of each rank the speed of its device.
        sizes: Of activations and gradients of each stage the size [bytes].
        latencies_s: Of all links, or of each pair of ranks [s].
        bandwidths: Likewise [bytes/s].
    """
    busy_s, num_ranks, num_works = 0.0, len(speeds), NUM_KINDS * num_stages
    for number in range(num_works):
        if num_cells[number]:
            lasts_s[number] = seconds[number] / speeds[homes[number % num_stages * num_microbatches]]
            busy_s += num_cells[number] * lasts_s[number]
    for way in range(2 * num_stages):
        stage = way % num_stages
        receiver = stage + 1 if way < num_stages else stage - 1
        if 0 <= receiver < num_stages:
            pair = homes[stage * num_microbatches] * num_ranks + homes[receiver * num_microbatches]
            link = pair if len(bandwidths) > 1 else 0
            lasts_s[num_works + 2 * way] = sizes[way] / bandwidths[link]
            lasts_s[num_works + 2 * way + 1] = latencies_s[link]
    return busy_s


LIST_PARTS = (differ, begin_walk, find_lasts, walk, sum_up, hold)
"""What `measure_lists` calls, for numba."""
