import pytest
import torch

from pipesched.executor.averaging.reference_memory import Averaged, Reference, averaged, memory_bytes, stage_tensors

STAGES = [Averaged(0, (0, 2), (("float32", 3), ("bfloat16", 40))), Averaged(5, (1, 3, 4), (("float64", 9),))]


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
    reference = Reference(torch.zeros(memory_bytes(STAGES), dtype=torch.uint8), STAGES)
    shared = reference.shared[5]
    for iteration in range(2):
        for rank, value in ((3, 1.0), (1, 2.0), (4, 6.0)):
            assert reference.versions[5] == iteration
            assert float(shared.reference[0][0]) == pytest.approx(3 * iteration)
            shared.slots[rank][0].fill_(value)
            assert reference.give(5, rank) == (rank == 4)
    assert shared.reference[0].tolist() == pytest.approx([6.0] * 9)
    assert reference.versions == {5: 2}


def test_a_stage_without_parameters_has_a_version_all_the_same():
    stages = [averaged(0, (0, 1), [])]
    reference = Reference(torch.zeros(memory_bytes(stages), dtype=torch.uint8), stages)
    assert [reference.give(0, rank) for rank in (0, 1)] == [False, True]


def test_parameters_say_what_they_need():
    assert averaged(1, [0, 1], [torch.zeros(2, 3), torch.zeros(4, dtype=torch.float64)]).tensors == (
        ("float32", 6),
        ("float64", 4),
    )
