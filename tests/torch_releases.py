"""What tests ask of PyTorch's own pipeline runtime, which older releases lack."""

import pytest
import torch

runtime_of_2_13 = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
    reason="PyTorch's runtime sends to its own rank before 2.13, which gloo cannot, and defers no receive",
)
