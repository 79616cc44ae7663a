import os
import platform
import resource
import sys
from pathlib import Path

import pytest
import torch

from pipesched.profiles.measuring import computing
from tests.processes import run

TENSOR_BYTES = 48 * 2**20


def faults_of_two_tensors() -> int:
    """Return how many pages the system had to hand out for two tensors that live one after the other."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(2):
        torch.ones(TENSOR_BYTES // 4)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told how to allocate")
def test_a_tensors_memory_is_used_again_while_computing_and_goes_back_after_it():
    with computing(1):
        for _ in range(20):  # until the pieces that are left over are large enough
            faults_of_two_tensors()
        kept = faults_of_two_tensors()
    given_back = faults_of_two_tensors()
    assert kept * 10 < given_back


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told how to allocate")
def test_what_the_environment_says_of_memory_stays():
    """In a process of its own: what others have left on the heap decides where a tensor comes to lie."""
    told = os.environ | {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}
    lines = "from pipesched.profiles.measuring import computing", "from tests.profiles.measuring import test_computing"
    loop = (
        "with computing(1):\n    faults = [test_computing.faults_of_two_tensors() for _ in range(5)]\nprint(faults[-1])"
    )
    done = run([sys.executable, "-c", "\n".join((*lines, loop))], cwd=Path(__file__).parents[3], env=told)
    assert int(done.stdout) > 10, done.stderr


def test_threads_are_as_before_after_it():
    before = torch.get_num_threads()
    with computing(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
