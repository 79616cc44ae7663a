"""Go through the steps of lists or of a program for many cases at once, as loops over numbers.

case                    0     1     2          a block of cases, whose rows stay in the nearest cache
F on rank 0           1 s   1 s   1 s          each row is the larger of two others, and a duration later
message on its link   0 s   3 s   6 s
...
"""

from __future__ import annotations

from typing import Any

from pipesched.simulator import differ


def measure_cases(  # noqa: C901 -- loops over numbers
    num_steps: int, num_channels: int, num_cases: int, dests: Any, firsts: Any, seconds: Any, takes: Any, cells: Any,
    keeps: Any, owners: Any, gaps: Any, inside: Any, now: Any, senders: Any, receivers: Any, left: Any, last_ways: Any,
    works_s: Any, sizes: Any, latencies_s: Any, bandwidths: Any, same: float, lasts_s: Any, rows_s: Any,
    kept_s: Any, most: Any, makespans_s: Any, periods_s: Any, peaks: Any,
) -> None:  # fmt: skip
    """Find what lists amount to in all cases, block by block, as machine code alone.

    Args:
        num_steps: As `walk` counts them, as is the next.
        num_channels: How many pairs of ranks there are of which one sends the other messages.
        num_cases: k.
        dests: As `walk` leaves it, as are the next six.
        firsts: First rows.
        seconds: Second rows.
        takes: Numbers of durations.
        cells: Cells, or -1.
        keeps: What is asked for, or -1.
        owners: Ranks.
        gaps: As `hold` leaves it; nothing where no bytes are asked for, as is `inside`.
        inside: Of each rank the most that it holds inside its ops [bytes].
        now: As `walk` leaves it, as are the next four.
        senders: Of each channel the rank that sends.
        receivers: The rank that receives.
        left: The row of when it is free.
        last_ways: The number of its last message's duration, behind which is the latency.
        works_s: The durations of all that are no messages [s].
        sizes: Of activations and gradients of each stage the size [bytes].
        latencies_s: k numbers, of all links [s].
        bandwidths: k numbers [bytes/s].
        same: By how much of a period times may differ that are the same.
        lasts_s: Room for the durations of a block; as many columns as a block has cases, as have the next three [s].
        rows_s: Room for rows [s].
        kept_s: Room for what is asked for [s].
        most: Room for peaks [bytes].
        makespans_s: k numbers, to be written, as are the next [s].
        periods_s: The period; -1 where the batch does not show it [s].
        peaks: Rows of k numbers: the most that each rank holds; nothing where no bytes are asked for [bytes].
    """
    num_works, size = len(works_s), rows_s.shape[1]
    for begin in range(0, num_cases, size):
        count = min(size, num_cases - begin)
        for number in range(num_works):
            for case in range(count):
                lasts_s[number, case] = works_s[number]
        for way in range(len(sizes)):
            number = num_works + 2 * way
            for case in range(count):
                lasts_s[number, case] = sizes[way] / bandwidths[begin + case]
                lasts_s[number + 1, case] = latencies_s[begin + case]
        for case in range(count):
            rows_s[0, case] = 0.0
        for rank in range(len(inside)):
            for case in range(count):
                most[rank, case] = inside[rank]
        go_through_together(
            num_steps, count, dests, firsts, seconds, takes, cells, keeps, owners, gaps, lasts_s, rows_s, kept_s, most
        )
        sum_up(
            len(now), num_channels, size, count, begin, now, senders, receivers, left, last_ways, lasts_s.ravel(),
            rows_s.ravel(), kept_s.ravel(), same, makespans_s, periods_s,
        )  # fmt: skip
        for rank in range(len(inside)):
            for case in range(count):
                peaks[rank, begin + case] = most[rank, case]


def go_through(num_steps: int, firsts: Any, seconds: Any, takes: Any, lasts_s: Any, rows_s: Any) -> None:
    """Find the times of all steps in one case: of each a row, behind the beginning.

    Args:
        num_steps: How many there are.
        firsts: First rows.
        seconds: Second rows.
        takes: Numbers of durations.
        lasts_s: Durations [s].
        rows_s: Times, the first 0; all others to be written [s].
    """
    for step in range(num_steps):
        rows_s[step + 1] = max(rows_s[firsts[step]], rows_s[seconds[step]]) + lasts_s[takes[step]]


def go_through_together(
    num_steps: int, num_cases: int, dests: Any, firsts: Any, seconds: Any, takes: Any, cells: Any, keeps: Any,
    owners: Any, gaps: Any, lasts_s: Any, rows_s: Any, kept_s: Any, peaks: Any,
) -> None:  # fmt: skip
    """Find the same in several cases, as machine code alone; all rows are of so many numbers, in one array.

    Args:
        num_steps: As `go_through` takes it, as is all that is not said here.
        num_cases: How many cases there are.
        dests: Rows that steps give.
        firsts: First rows.
        seconds: Second rows.
        takes: Numbers of durations.
        cells: Cells, or -1.
        keeps: What is asked for, or -1.
        owners: The rank of each step.
        gaps: What is held in front of cells.
        lasts_s: Rows of durations [s].
        rows_s: Rows of times [s].
        kept_s: Rows for what is asked for [s].
        peaks: Rows of each rank's most inside its ops [bytes].
    """
    has_gaps = len(gaps) > 0
    for step in range(num_steps):
        row, lasts = rows_s[dests[step]], lasts_s[takes[step]]
        first, second = rows_s[firsts[step]], rows_s[seconds[step]]
        for case in range(num_cases):
            start, other = first[case], second[case]
            row[case] = (start if start > other else other) + lasts[case]
        if keeps[step] >= 0:
            asked = kept_s[keeps[step]]
            for case in range(num_cases):
                start, other = first[case], second[case]
                asked[case] = start if start > other else other
        cell = cells[step]
        if cell >= 0 and has_gaps and gaps[cell]:
            most = peaks[owners[step]]
            for case in range(num_cases):
                if gaps[cell] > most[case] and differ(first[case], second[case]):
                    most[case] = gaps[cell]


def sum_up(
    num_ranks: int, num_channels: int, size: int, num_cases: int, first_case: int, now: Any,
    senders: Any, receivers: Any, left: Any, last_ways: Any, lasts_s: Any, rows_s: Any, kept_s: Any, same: float,
    makespans_s: Any, periods_s: Any,
) -> None:  # fmt: skip
    """Find the makespan of each case, and how long after the batch the next one is the same.

    The rule is that of `simulator.fast.shown_period_s`, where nothing is shared.

    Args:
        num_ranks: R.
        num_channels: As `walk` counts them.
        size: Numbers of a row.
        num_cases: How many of them are wanted.
        first_case: Which of all cases the first is.
        now: As `walk` leaves it, as are the next four.
        senders: Of each channel the rank that sends.
        receivers: The rank that receives.
        left: The row of when it is free.
        last_ways: The number of its last message's duration, behind which is the latency.
        lasts_s: As `go_through` takes it, as are the next two [s].
        rows_s: Rows [s].
        kept_s: When ranks and channels begin [s].
        same: By how much of a period times may differ that are the same.
        makespans_s: k numbers, to be written, as are the next [s].
        periods_s: The period; -1 where the batch does not show it [s].
    """
    channels = num_ranks * size
    for case in range(num_cases):
        first_s, last_s = kept_s[case], rows_s[now[0] * size + case]
        for rank in range(1, num_ranks):
            first_s = min(first_s, kept_s[rank * size + case])
            last_s = max(last_s, rows_s[now[rank] * size + case])
        makespans_s[first_case + case] = last_s - first_s
        for channel in range(num_channels):  # a rank begins with its first message, if that comes first
            start_s = kept_s[channels + channel * size + case]
            for rank in (senders[channel], receivers[channel]):
                kept_s[rank * size + case] = min(kept_s[rank * size + case], start_s)
                first_s = min(first_s, start_s)
        is_first, longest_s, earliest_s, latest_s = True, 0.0, 0.0, 0.0
        for rank in range(num_ranks):
            begin_s, end_s = kept_s[rank * size + case], rows_s[now[rank] * size + case]
            longest_s = max(longest_s, end_s - begin_s)
            if begin_s == first_s:
                earliest_s = end_s if is_first else min(earliest_s, end_s)
                latest_s = end_s if is_first else max(latest_s, end_s)
                is_first = False
        for channel in range(num_channels):
            there_s = rows_s[left[channel] * size + case] + lasts_s[(last_ways[channel] + 1) * size + case]
            longest_s = max(longest_s, there_s - kept_s[channels + channel * size + case])
        period_s = latest_s - first_s
        is_same = max(longest_s, period_s) - period_s + latest_s - earliest_s <= same * period_s
        periods_s[first_case + case] = period_s if is_same else -1.0


CASES_PARTS = (differ, go_through_together, sum_up)
"""What `measure_cases` calls, and `go_through_together`, for numba."""
