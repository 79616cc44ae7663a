"""A time grid: a schedule as it is drawn, every op in a slot of its own; only the order of the slots is kept."""

from __future__ import annotations


def cross(slots: list[str], letters: str, stage: int, num_stages: int, start: int, num_microbatches: int) -> None:
    """Put F and B of `stage` into slots, for micro-batches that enter in every other slot and cross a stage in each.

    A micro-batch goes through all stages and back at once: B of the last stage is in the slot after its F.

    Args:
        slots: The letter of one rank in each slot.
        letters: The letters of F and B.
        stage: The stage.
        num_stages: All stages.
        start: When the first micro-batch enters.
        num_microbatches: Number of consecutive micro-batches.
    """
    for letter, first in zip(letters, (start + stage, start + 2 * num_stages - 1 - stage), strict=True):
        slots[first : first + 2 * num_microbatches : 2] = letter * num_microbatches
