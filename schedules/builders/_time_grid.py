"""A time grid: a schedule as it is drawn, every op in a cell of its own; only the order of the cells is kept."""

from __future__ import annotations

from collections.abc import Mapping

from pipesched.schedules import Compute, backward, forward


def crossing(stage: int, num_stages: int, microbatch: int, start: int) -> dict[int, Compute]:
    """Return F and B of `stage`, by slot, for a micro-batch that enters at `start` and crosses a stage in every slot.

    It goes through all stages and back at once: B of the last stage is in the slot after its F.
    """
    return {
        start + stage: forward(stage, microbatch),
        start + 2 * num_stages - 1 - stage: backward(stage, microbatch),
    }


def in_order(slots: Mapping[int, Compute]) -> list[Compute]:
    """Return the ops of one rank in the order of their slots."""
    return [slots[slot] for slot in sorted(slots)]
