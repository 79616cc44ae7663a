"""PyTorch's schedules, built without a model or a process group: the oracle of our op orders."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from pipesched.schedules import Schedule
from pipesched.schedules.ops import computes

pipelining = pytest.importorskip("torch.distributed.pipelining.schedules")

NUM_SHAPES = 100


class RecordingStage:
    """What a schedule of one stage per rank asks of its stage: nothing travels, every computation is written down."""

    def __init__(self, index: int, num_stages: int) -> None:
        self.stage_index, self.num_stages = index, num_stages
        self.is_first, self.is_last = index == 0, index == num_stages - 1
        self.done: list[str] = []

    def get_fwd_recv_ops(self, microbatch):
        return []

    get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = get_fwd_recv_ops

    def forward_one_chunk(self, microbatch, *_args, **_kwargs):
        self.done.append(f"{self.stage_index}F{microbatch}")

    def backward_one_chunk(self, microbatch, **_kwargs):
        self.done.append(f"{self.stage_index}B{microbatch}")

    def perform_reduce_grad(self, _scale):
        pass


def executed(kind: str, p: int, m: int) -> list[list[str]]:
    """Return what each rank computes in one step of a schedule with one stage per rank.

    The constructor is passed by, and with it its rules on the counts.
    """
    stages = [RecordingStage(rank, p) for rank in range(p)]
    for stage in stages:
        schedule = object.__new__(getattr(pipelining, kind))
        schedule._stage, schedule._num_stages, schedule._n_microbatches = stage, p, m
        schedule._loss_fn, schedule._internal_losses, schedule.scale_grads = None, [], True
        schedule._initialize_stage = lambda *_args: None
        schedule._check_inputs = lambda *_args: ([()] * m, [{}] * m)
        schedule._step_microbatches()
    return [stage.done for stage in stages]


def listed(kind: str, p: int, m: int) -> list[list[str]]:
    """Return the lists that a schedule with one stage per rank shows of itself."""
    schedule = object.__new__(getattr(pipelining, kind))
    schedule._num_stages, schedule._n_microbatches = p, m
    return [[text for text in row if "REDUCE" not in text] for row in _texts(schedule._get_pipeline_order(), p)]


def loop(p: int, v: int) -> list[int]:
    """Return the stages of rank 0 where stage = chunk * p + rank."""
    return [chunk * p for chunk in range(v)]


def vee(p: int) -> list[int]:
    """Return the stages of rank 0 where a rank holds stages k and 2 p - 1 - k."""
    return [0, 2 * p - 1]


def built(kind: str, p: int, m: int, stages_of_rank_0: list[int]) -> list[list[str]]:
    """Return the compute-only lists of a schedule with several stages per rank; its constructor makes those of all.

    Raises:
        ValueError: PyTorch refuses the counts.
    """
    return _texts(constructed(kind, p, m, stages_of_rank_0).pipeline_order, p)


def constructed(kind: str, p: int, m: int, stages_of_rank_0: list[int]) -> Any:
    """Return PyTorch's schedule itself, on stand-ins for the stages of rank 0."""
    num_stages = p * len(stages_of_rank_0)
    stages = [
        SimpleNamespace(
            stage_index=index,
            num_stages=num_stages,
            group_size=p,
            group_rank=0,
            is_first=index == 0,
            is_last=index == num_stages - 1,
            submod=None,
        )
        for index in stages_of_rank_0
    ]
    return getattr(pipelining, kind)(stages, m, loss_fn=lambda *_args: 0.0)


def words_of(schedule: Schedule) -> list[list[str]]:
    """Return our lists in the same words: computations, and two of them overlapped, without Reduce and Step."""
    return [[str(op) for op in row if computes(op)] for row in schedule.ops]


def shapes(seed: int) -> list[tuple[int, int]]:
    """Return 100 random pairs (p, m), p up to 8 and m up to 24."""
    chance = random.Random(seed)
    return [(chance.randint(1, 8), chance.randint(1, 24)) for _ in range(NUM_SHAPES)]


def _texts(order: dict[int, list[Any]], p: int) -> list[list[str]]:
    return [[str(action) for action in order[rank] if action is not None] for rank in range(p)]
