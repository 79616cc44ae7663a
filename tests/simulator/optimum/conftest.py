"""A planner that tries little."""

import pytest


@pytest.fixture
def quick_planner(monkeypatch):
    """Let the planner try little: its lists have to fit all the same, and start a search all the same."""
    for name, number in {"_MOST_TRIES": 60, "_MOST_MOVES": 500, "_LONGER": 1}.items():
        monkeypatch.setattr(f"pipesched.simulator.optimum.list_planner.{name}", number)
