"""The frame of the rows that say how far predictions hold."""

import pytest


@pytest.fixture
def bench(rows, monkeypatch):
    module = rows("fidelity_rows.bench")
    monkeypatch.setattr(module, "yardstick_s", lambda num_busy: 0.001)
    return module


def test_a_run_that_fails_is_told_and_the_others_go_on(bench, capsys):
    def fail():
        raise ValueError("rank 1 died")

    runs = bench.Bench()
    assert [runs.run("first", fail), runs.run("second", lambda: 7)] == [None, 7]
    assert list(runs.lines())[-1] == "\n**Failed.** first: ValueError: rank 1 died"


def test_no_round_begins_that_would_end_too_late(bench, monkeypatch):
    moments = iter([0.0, 0.0, 200.0, 400.0])  # the first is the beginning; a third round would end at 600
    monkeypatch.setattr(bench.time, "monotonic", lambda: next(moments))
    assert list(bench.Bench().rounds(8)) == [0, 1]


def test_the_least_disturbed_quarter_is_that_of_the_shortest_steps(bench):
    errors = [(0.2, -0.3), (0.1, 0.01), (0.4, -0.5), (0.3, -0.4), (0.11, 0.03), (0.6, -0.7), (0.5, -0.6), (0.7, -0.8)]
    assert bench.undisturbed(errors) == pytest.approx(0.02)
    assert bench.middle(errors) == pytest.approx(-0.45)
    assert bench.cell(errors) == "-45.0% (+2.0%)"
