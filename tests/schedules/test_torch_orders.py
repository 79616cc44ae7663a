"""PyTorch as the oracle: our op orders are its own."""

import random
from types import SimpleNamespace

import pytest

from schedules.gpipe import gpipe
from schedules.interleaved import interleaved
from schedules.one_f_one_b import one_f_one_b
from schedules.op import Compute
from schedules.schedule import Schedule, ScheduleError

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


def executed(kind: type, p: int, m: int, rank: int) -> list[str]:
    """Return what rank `rank` computes in one of PyTorch's steps; its constructor is passed by, with its rules."""
    schedule = object.__new__(kind)
    stage = RecordingStage(rank, p)
    schedule._stage, schedule._num_stages, schedule._n_microbatches = stage, p, m
    schedule._loss_fn, schedule._internal_losses, schedule.scale_grads = None, [], True
    schedule._initialize_stage = lambda *_args: None
    schedule._check_inputs = lambda *_args: ([()] * m, [{}] * m)
    schedule._step_microbatches()
    return stage.done


def interleaved_in_torch(p: int, m: int, v: int) -> list[list[str]]:
    stages = [
        SimpleNamespace(
            stage_index=chunk * p,
            num_stages=p * v,
            group_size=p,
            group_rank=0,
            is_first=chunk == 0,
            is_last=chunk * p == p * v - 1,
            submod=None,
        )
        for chunk in range(v)
    ]
    order = pipelining.ScheduleInterleaved1F1B(stages, m, loss_fn=lambda *_args: 0.0).pipeline_order
    return [[str(action) for action in order[rank] if action is not None] for rank in range(p)]


def ours(schedule: Schedule) -> list[list[str]]:
    return [[str(op) for op in row if isinstance(op, Compute)] for row in schedule.ops]


def shapes(seed: int) -> list[tuple[int, int]]:
    chance = random.Random(seed)
    return [(chance.randint(1, 8), chance.randint(1, 24)) for _ in range(NUM_SHAPES)]


@pytest.mark.parametrize(("kind", "build"), [("ScheduleGPipe", gpipe), ("Schedule1F1B", one_f_one_b)])
def test_we_order_as_pytorch_executes(kind, build):
    """1F1B's constructor refuses m < p; what it would execute then is the same too."""
    for p, m in shapes(seed=1):
        theirs = [executed(getattr(pipelining, kind), p, m, rank) for rank in range(p)]
        assert ours(build(p, m)) == theirs, f"p = {p}, m = {m}"


def test_we_interleave_as_pytorch_lists_and_refuse_what_it_refuses():
    chance = random.Random(2)
    refused = uneven = 0
    for p, m in shapes(seed=2):
        v = chance.randint(1, 4)
        try:
            theirs = interleaved_in_torch(p, m, v)
        except ValueError:  # it says: a multiple of the number of rounds
            refused += 1
            with pytest.raises(ScheduleError):
                interleaved(p, m, v)
        else:
            uneven += m % p > 0
            assert ours(interleaved(p, m, v)) == theirs, f"p = {p}, m = {m}, v = {v}"
    assert refused > 10
    assert uneven > 10


def listed_in_torch(kind: str, p: int, m: int) -> list[list[str]]:
    schedule = object.__new__(getattr(pipelining, kind))
    schedule._num_stages, schedule._n_microbatches = p, m
    order = schedule._get_pipeline_order()
    rows = [[str(action) for action in order[rank] if action is not None] for rank in range(p)]
    return [[text for text in row if "REDUCE" not in text] for row in rows]


def test_pytorch_lists_gpipe_as_we_do():
    for p, m in shapes(seed=3):
        assert listed_in_torch("ScheduleGPipe", p, m) == ours(gpipe(p, m))


def test_pytorchs_listing_of_1f1b_numbers_the_last_ranks_forwards_one_too_high():
    """A defect of the listing (2.13), not of what is executed: when it is gone, compare the listing as well."""
    for p, m in [(1, 3), (2, 2), (4, 8)]:
        theirs, mine = listed_in_torch("Schedule1F1B", p, m), ours(one_f_one_b(p, m))
        assert theirs[:-1] == mine[:-1]
        last = p - 1
        assert [text for text in theirs[last] if "F" in text] == [f"{last}F{i + 1}" for i in range(m)]
        assert [text for text in theirs[last] if "B" in text] == [f"{last}B{i}" for i in range(m)]
