"""The meter of a rank that shares process and allocator with others, against a ledger of the owner of each block."""

from random import Random

import pytest
import torch

from pipesched.executor.core import HostClock, Recorder
from pipesched.executor.core.memory_meter import CudaAllocator, Heap, Meter, make_meter

NUM_RANKS, NUM_OPS = 3, 12


class FakeAllocator:
    """The allocator of a GPU, with a peak that anybody may reset."""

    def __init__(self):
        self.now = self.peak = 5_000  # weights, and earlier allocations

    def read_bytes(self):
        return self.now, self.peak

    def restart(self):
        self.peak = self.now

    def note(self):
        pass

    def change(self, num_bytes):
        self.now += num_bytes
        self.peak = max(self.peak, self.now)


class Ledger:
    """The bytes of each rank, counted by hand, as the oracle."""

    def __init__(self):
        self.blocks = [[] for _ in range(NUM_RANKS)]
        self.in_op = [[0] for _ in range(NUM_RANKS)]  # the sums during the present op
        self.ops = [[] for _ in range(NUM_RANKS)]

    def change(self, rank, change):
        change(self.blocks[rank])
        self.in_op[rank].append(sum(self.blocks[rank]))

    def end_op(self, rank):
        self.ops[rank].append((self.in_op[rank][-1], max(self.in_op[rank])))
        self.in_op[rank] = self.in_op[rank][-1:]


def act(rank, random, ledger, allocator):
    """Allocate, or free; some blocks are temporaries of the op."""
    blocks = ledger.blocks[rank]
    kind = random.choice(["allocate", "allocate", "free", "passing"])
    if kind == "allocate" or not blocks:
        size = random.randrange(1, 1000)
        allocator.change(size)
        ledger.change(rank, lambda own: own.append(size))
    elif kind == "free":
        size = blocks[random.randrange(len(blocks))]
        allocator.change(-size)
        ledger.change(rank, lambda own: own.remove(size))
    else:  # a temporary of the op
        size = random.randrange(1, 3000)
        allocator.change(size)
        ledger.change(rank, lambda own: own.append(size))
        allocator.change(-size)
        ledger.change(rank, lambda own: own.pop())


@pytest.mark.parametrize("seed", range(60))
def test_bytes_after_and_inside_every_op_are_those_of_the_rank_whoever_had_turns_meanwhile(seed):
    random, allocator, ledger = Random(seed), FakeAllocator(), Ledger()
    meters = [Meter(allocator) for _ in range(NUM_RANKS)]
    measured = [[] for _ in range(NUM_RANKS)]
    for meter in meters:
        with meter.turn():
            meter.begin_op()
    while min(map(len, measured)) < NUM_OPS:
        rank = random.randrange(NUM_RANKS)
        with meters[rank].turn():
            for _ in range(random.randrange(6)):
                act(rank, random, ledger, allocator)
                if random.random() < 0.3:
                    measured[rank].append(meters[rank].end_op())
                    ledger.end_op(rank)
        assert [meter.held_bytes() for meter in meters] == [sum(blocks) for blocks in ledger.blocks]
    assert measured == ledger.ops


@pytest.mark.parametrize("seed", range(5))
def test_a_rank_alone_needs_no_turns(seed):
    random, allocator, ledger = Random(seed), FakeAllocator(), Ledger()
    recorder = Recorder(HostClock(), Meter(allocator))
    recorder.begin(0)
    for _ in range(NUM_OPS):
        for _ in range(random.randrange(6)):
            size = random.randrange(1, 1000)
            allocator.change(size)
            ledger.change(0, lambda own: own.append(size))  # noqa: B023 -- called at once
            if random.random() < 0.5:
                allocator.change(-size)
                ledger.change(0, lambda own: own.pop())
        recorder.add(0, 0, 0)
        ledger.end_op(0)
    recorder.end(sum(ledger.blocks[0]))
    assert list(zip(recorder.held_bytes(), recorder.most_bytes(), strict=True)) == ledger.ops[0]


def test_the_allocator_of_a_gpu_is_asked_for_its_own_counts_and_its_peak_is_reset(monkeypatch):
    asked = []
    counts = {"allocated_bytes": {"all": {"current": 30, "peak": 80}, "large_pool": {"current": 1, "peak": 2}}}
    monkeypatch.setattr(torch.cuda, "init", lambda: asked.append("init"))
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: asked.append(device.index) or counts)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: asked.append(f"reset {device.index}"))
    allocator = CudaAllocator(torch.device("cuda", 2))
    assert allocator.read_bytes() == (30, 80)
    allocator.restart()
    assert asked == ["init", 2, "reset 2"]


def test_the_peak_of_a_heap_is_the_most_that_was_noted():
    if make_meter(torch.device("cpu")) is None:
        pytest.skip("this allocator cannot be asked")
    heap = Heap()
    before, _ = heap.read_bytes()
    block = torch.empty(1_000_000, dtype=torch.uint8)
    heap.note()
    del block
    now, peak = heap.read_bytes()
    assert (peak - before) // 100_000 == 10
    assert now < peak - 900_000
    heap.restart()
    now, peak = heap.read_bytes()
    assert now == peak
