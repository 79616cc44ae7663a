"""Timelines from files, where a picture or a trace would else be simulated."""

import pytest


@pytest.fixture
def written(pipesched):
    """Write a predicted Timeline into t.json."""
    assert pipesched("simulate -f mine.csv --stage-costs stages.csv --timeline t.json --out s.json").code == 0
    return pipesched


@pytest.mark.parametrize("command", ["gantt", "trace"])
@pytest.mark.parametrize("option", ["--protocol eager", "--jitter 0.1", "--seed 3", "--slow device=0,factor=2"])
def test_options_of_a_simulation_are_refused_where_nothing_is_simulated(written, command, option):
    answer = written(f"{command} t.json {option}")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert answer.err.startswith("pipesched: t.json: got options of a simulation too")
