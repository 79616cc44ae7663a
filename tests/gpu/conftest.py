"""The device of the tests: a GPU, or a CPU as its double where PIPESCHED_GPU_TESTS=cpu."""

import importlib
import math
import os
from pathlib import Path

import pytest
import torch

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before the first product: cuBLAS is deterministic then
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def device():
    if os.environ.get("PIPESCHED_GPU_TESTS") == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("no GPU: PIPESCHED_GPU_TESTS=cpu runs the same on a CPU")
    return torch.device("cuda", 0)


@pytest.fixture
def row(monkeypatch):
    """Return a function that imports a row of benchmarks/gpu.py."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return lambda name: importlib.import_module(f"gpu_rows.{name}")


@pytest.fixture
def card(device, row):
    return row("card").Card(device.type, math.inf)
