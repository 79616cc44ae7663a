import pytest
import torch

from pipesched.executor import PeerLost
from pipesched.executor.core import SharedPool, shared_bytes
from pipesched.executor.core.reference_memory import (
    CELLS,
    Averaged,
    Reference,
    averaged,
    memory_bytes,
    stage_tensors,
)

STAGES = [Averaged(0, (0, 2), (("float32", 3), ("bfloat16", 40))), Averaged(5, (1, 3, 4), (("float64", 9),))]


def made(stages):
    return Reference(torch.zeros(memory_bytes(stages), dtype=torch.uint8), stages, [0] * CELLS * len(stages))


def test_nothing_overlaps_and_everything_is_aligned():
    memory = torch.zeros(memory_bytes(STAGES), dtype=torch.uint8)
    shared = stage_tensors(memory, STAGES)
    everything = [
        t for tensors in shared.values() for part in (tensors.reference, *tensors.slots.values()) for t in part
    ]
    for number, tensor in enumerate(everything, 1):
        tensor.fill_(number)
        assert (tensor.data_ptr() - memory.data_ptr()) % 64 == 0
    assert all((tensor == number).all() for number, tensor in enumerate(everything, 1))
    assert [t.dtype for t in shared[0].slots[2]] == [torch.float32, torch.bfloat16]
    assert list(shared[5].slots) == [1, 3, 4]


def test_the_mean_of_all_updates_is_added_when_the_last_is_there():
    reference = made(STAGES)
    shared = reference.shared[5]
    for iteration in range(2):
        for rank, value in ((3, 1.0), (1, 2.0), (4, 6.0)):
            assert reference.version(5) == iteration
            assert float(shared.reference[0][0]) == pytest.approx(3 * iteration)
            shared.slots[rank][0].fill_(value)
            assert reference.give(5) == (rank == 4)
    assert shared.reference[0].tolist() == pytest.approx([6.0] * 9)
    assert [reference.version(stage) for stage in (0, 5)] == [0, 2]


def test_a_stage_without_parameters_has_a_version_all_the_same():
    stages = [averaged(0, (0, 1), [])]
    reference = made(stages)
    assert [reference.give(0) for _ in range(2)] == [False, True]
    assert reference.version(0) == 1


def test_parameters_say_what_they_need():
    assert averaged(1, [0, 1], [torch.zeros(2, 3), torch.zeros(4, dtype=torch.float64)]).tensors == (
        ("float32", 6),
        ("float64", 4),
    )


@pytest.fixture
def pool(tmp_path):
    """The pools of the ranks 0 and 2 of the first stage, each with the file opened for itself."""
    (tmp_path / "memory").write_bytes(bytes(shared_bytes(STAGES)))
    pools = {rank: SharedPool(tmp_path / "memory", STAGES, 0.05) for rank in (0, 2)}
    yield pools
    for pool in pools.values():
        pool.close()


def test_the_last_of_the_ranks_that_share_a_file_adds_and_all_of_them_see_the_sum(pool):
    for rank, value in ((2, 1.0), (0, 3.0)):
        pool[rank].shared[0].slots[rank][0].fill_(value)
        pool[rank].give(0)
    for rank in pool:
        assert pool[rank].has(0, 1)
        assert pool[rank].shared[0].reference[0].tolist() == [2.0] * 3
        assert pool[rank].shared[5].reference[0].tolist() == [0.0] * 9


def test_a_rank_waits_no_longer_than_its_timeout_for_an_update_and_for_a_rank_that_adds(pool):
    pool[0].give(0)
    with pytest.raises(PeerLost, match=r"^waited 0.05 s for the updates of the other pipelines of stage 0$"):
        pool[0].has(0, 1)
    with pool[2]._alone(0), pytest.raises(PeerLost, match="waited"):
        pool[0].give(0)
    pool[2].give(0)
    assert pool[0].has(0, 1)
