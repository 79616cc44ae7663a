"""Arrays several times over: equal pipelines on the same devices, each of which repeats its lists.

one        rank 0  F0 B0 END                transfers 0 .. T - 1 of channels 0 .. C - 1
2 x 2      rank 0  F0 B0 F0 B0 END          transfers (k N + n) T + t of channels n C + c, k being the iteration
           rank 1  F0 B0 F0 B0 END          rank n R + r is rank r of pipeline n, on the same device
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from pipesched.simulator.fast.loop_arrays import Instructions, LoopArrays, Transfers, in_arrays


def side_by_side(arrays: LoopArrays, num_pipelines: int, iterations: int) -> LoopArrays:
    """Return the arrays of N pipelines that do their lists K times.

    Args:
        arrays: Arrays of one of the pipelines, without reductions; devices and wires are shared by all.
        num_pipelines: N.
        iterations: K.
    """
    assert not len(arrays.reductions.members), "nobody says who reduces with whom"
    num_sent = len(arrays.transfers.following)
    return LoopArrays(
        _instructions(arrays.instructions, num_sent, num_pipelines, iterations),
        _transfers(arrays.transfers, num_pipelines, iterations),
        arrays.reductions,
        arrays.rules,
    )


def _instructions(alone: Instructions, num_sent: int, num_pipelines: int, iterations: int) -> Instructions:
    places: list[Any] = []
    turns: list[Any] = []
    lengths: list[int] = []
    for begin, end in pairwise(alone.begins.tolist()):
        places += [np.tile(np.arange(begin, end - 1), iterations), [end - 1]]
        turns += [np.repeat(np.arange(iterations), end - 1 - begin), [0]]
        lengths.append((end - 1 - begin) * iterations + 1)
    place, turn = np.concatenate(places), np.concatenate(turns)

    def several(column: Any) -> Any:
        return np.tile(column[place], num_pipelines)

    targets = np.asarray(alone.targets, np.int64)[place] + num_sent * num_pipelines * turn
    longer = alone._replace(
        begins=np.array([*accumulate(lengths * num_pipelines, initial=0)]),
        kinds=several(alone.kinds),
        targets=(targets + num_sent * np.arange(num_pipelines)[:, None]).ravel(),
        takes=several(alone.takes),
        sharers=np.tile(alone.sharers, num_pipelines),
    )
    return in_arrays(type(alone), *longer)


def _transfers(alone: Transfers, num_pipelines: int, iterations: int) -> Transfers:
    times, num_sent, num_channels = num_pipelines * iterations, len(alone.following), len(alone.wires)
    channels, following = np.asarray(alone.channels, np.int64), np.asarray(alone.following, np.int64)
    is_last, (_, firsts) = following < 0, np.unique(channels, return_index=True)
    nexts = np.where(is_last, num_pipelines * num_sent + firsts[channels], following)
    all_following = nexts + num_sent * np.arange(times)[:, None]
    all_following[-num_pipelines:, is_last] = -1
    several_channels = (channels + num_channels * np.arange(num_pipelines)[:, None]).ravel()
    columns: dict[str, Any] = {
        "channels": np.tile(several_channels, iterations),
        "following": all_following.ravel(),
        "loads": np.tile(alone.loads, times),
    }
    longer = alone._replace(
        wires=np.tile(alone.wires, num_pipelines),
        slowed_begins=np.append(0, np.cumsum(np.tile(np.diff(alone.slowed_begins), num_pipelines))),
        slowed=np.tile(alone.slowed, num_pipelines),
        **columns,
    )
    return in_arrays(type(alone), *longer)
