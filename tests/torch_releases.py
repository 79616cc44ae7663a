"""A mark for the tests that need the pipeline runtime of PyTorch 2.13."""

import pytest
import torch

runtime_of_2_13 = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
    reason="before 2.13 PyTorch's runtime sends messages to its own rank, which gloo refuses, and defers no receive",
)
