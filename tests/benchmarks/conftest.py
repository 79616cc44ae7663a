"""Modules of the benchmarks, which find each other as a script in their folder does."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def rows(monkeypatch, request):
    """Return a function that imports a module of the folder, or of the package `ROWS` that a test file names."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return lambda name: importlib.import_module(f"{getattr(request.module, 'ROWS', '')}{name}")
