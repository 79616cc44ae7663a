"""The curve of a GPU's kernels: the numbers that turn the shape of a kernel into seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from pipesched.profiles import STRICT
from pipesched.schedules.common import PositiveShare, Seconds, Share, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCurve:
    """The share of the data sheet that kernels reach, by shape. Shares of the peak multiply the GPU's `efficiency`.

    Attributes:
        launch_s: Time of every kernel besides its work.
        matmul: Share of the reachable peak in large products.
        wave_loss: Share of the idle multiprocessors of a last, incomplete wave of tiles that stay idle.
        pipeline_depth: Further columns of the inner dimension that a tile costs, to fill and drain its pipeline.
        small_tile: Share of the throughput that remains when a tile is half as large.
        exposed_memory: Share of the shorter of computation and memory traffic that the longer one does not hide.
        memory: Share of the memory bandwidth in products and in kernels that only move bytes.
        permute: Share of the memory bandwidth when tokens are permuted to their experts.
        cross_entropy: Share of the memory bandwidth in the loss.
        expert_s: Time of every expert of a grouped product besides its work.
        attention: Share of the reachable peak in the forward of attention over long sequences.
        attention_backward: Share of the reachable peak in its backward.
        attention_tail: Blocks of 128 rows that the last multiprocessor works longer than the average.
        flash_1: Share of the speed of the newest attention kernel that FlashAttention 1 reaches.
        flash_2: Share of that speed that FlashAttention 2 reaches.
        origin: Source of the numbers.
    """

    __pydantic_config__ = STRICT

    launch_s: Seconds
    matmul: PositiveShare
    wave_loss: Share
    pipeline_depth: Annotated[float, Ge(0), Le(1e6)]
    small_tile: PositiveShare
    exposed_memory: Share
    memory: PositiveShare
    permute: PositiveShare
    cross_entropy: PositiveShare
    expert_s: Seconds
    attention: PositiveShare
    attention_backward: PositiveShare
    attention_tail: Annotated[float, Ge(0), Le(1e3)]
    flash_1: PositiveShare = 0.5
    flash_2: PositiveShare = 1.0
    origin: Text = ""
