"""What settings of the same costs and machines amount to, in columns: by the steps of their lists, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipesched.profiles.clusters import Cluster, Link
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.simulator.search import over_memory_reason
from pipesched.simulator.sweep import NOTHING_S, Links, OutcomeBlock, RepeatedLists, SettingBlock, WalkedLists


@dataclass(frozen=True, slots=True)
class GroupColumns:
    """Settings of the same stages, costs and machines: of many lists each once, or of one for many links.

    Attributes:
        blocks: The settings, those of the same lists together.
        schedules: The lists of each block.
        costs: Costs of all.
        cluster: Machines of all, but for links that are varied.
    """

    blocks: Sequence[SettingBlock]
    schedules: Sequence[Schedule]
    costs: StageCosts
    cluster: Cluster

    def outcomes(self, *, is_steady: bool, num_threads: int) -> tuple[OutcomeBlock, list[int]] | None:
        """Return what the settings amount to of which steps say all, and the places of the others; None: they say none.

        Args:
            is_steady: Whether longer runs are looked at where a batch does not show its steady pace.
            num_threads: Threads that share out the links.
        """
        import numpy as np

        schedule, links = self.schedules[0], _links(self.blocks[0])
        numbers = self.blocks[0].numbers if len(self.blocks) == 1 else [block.numbers[0] for block in self.blocks]
        counts = [lists.num_microbatches for lists in self.schedules]
        columns = [lists.columns for lists in self.schedules]
        lists = WalkedLists(columns, schedule.num_stages, counts, num_cases=len(self.blocks[0].numbers))
        if self.cluster.nics or self.cluster.has_hand_over or not lists.can_add_up(self.costs):
            return None
        devices, has_bytes = schedule.rank_to_device, self.costs.has_bytes
        measured = lists.measures(
            self.costs, self.cluster, devices, links, with_bytes=has_bytes, num_threads=num_threads
        )
        makespans_s, busy_s, periods_s, microbatches = np.broadcast_arrays(
            measured.makespans_s, measured.busy_s, measured.periods_s, counts
        )
        with np.errstate(invalid="ignore"):  # where nothing is known there may be any number
            are_known = measured.are_known & np.isfinite(makespans_s) & (busy_s > NOTHING_S)
            is_shown, work_s = are_known & (periods_s > 0), busy_s / len(devices)
            steady_s = np.where(is_shown, periods_s / microbatches, np.nan)
            steady = np.where(is_shown, np.maximum(0.0, 1 - work_s / np.where(is_shown, periods_s, 1.0)), np.nan)
            bubbles = np.maximum(0.0, 1 - work_s / np.where(are_known, makespans_s, 1.0))
        if is_steady:
            self._look_further((are_known & ~is_shown).nonzero()[0].tolist(), links, steady_s, steady)
        limits = [self.cluster.devices[device].memory_bytes for device in devices]
        held, reasons = _held(measured.peaks, devices, limits, len(numbers))
        is_judged = has_bytes and any(limit is not None for limit in limits)
        all_of_them = makespans_s, bubbles, steady_s, steady, held, np.full(len(numbers), is_judged)
        block = OutcomeBlock(numbers, *all_of_them, reasons)
        return block.at(are_known.nonzero()[0].tolist()), (~are_known).nonzero()[0].tolist()

    def _look_further(self, places: Sequence[int], links: Links | None, steady_s: Any, steady: Any) -> None:
        """Find the pace of some settings by longer runs, where these settle."""
        longer: dict[int, RepeatedLists] = {}
        for place in places:
            number = place if len(self.schedules) > 1 else 0
            if number not in longer:
                longer = {number: RepeatedLists(self.schedules[number])}
            case = 0 if len(self.schedules) > 1 else place
            link = links and Links([links.latencies_s[case]], [links.bandwidths[case]])
            pace = longer[number].pace(self.costs, self.cluster, link)
            if pace is not None and pace.bubble_fraction is not None:
                steady_s[place], steady[place] = pace.s_per_microbatch, pace.bubble_fraction


def _links(block: SettingBlock) -> Links | None:
    """Return what all links have in each setting of a block; None where they are not varied."""
    if not block.links:
        return None
    usual, count = Link(), len(block.numbers)
    latencies_s = block.links.get("latency_s", [usual.latency_s] * count)
    return Links(latencies_s, block.links.get("bandwidth_bytes_per_s", [usual.bandwidth_bytes_per_s] * count))


def _held(peaks: Any, devices: Sequence[int], limits: Sequence[int | None], count: int) -> tuple[Any, dict[int, str]]:
    """Return the most that a device holds in each setting, and the reasons of those in which one has too little.

    Args:
        peaks: Of each setting a row: the most of each rank; nothing where costs say none [bytes].
        devices: The device of each rank.
        limits: What each of these has; None: as much as is asked for [bytes].
        count: How many settings there are.
    """
    import numpy as np

    rows, reasons = np.asarray(peaks), dict[int, str]()
    if not rows.size:
        return np.full(count, -1), {}
    for device, limit, of_device in sorted(zip(devices, limits, rows.T, strict=True), key=lambda item: item[0]):
        for place in () if limit is None else (of_device > limit).nonzero()[0].tolist():
            text = f"device {device} holds {int(of_device[place])} bytes of {limit}"
            reasons.setdefault(place, over_memory_reason(text) or "")
    return rows.max(axis=1), reasons
