"""How schemes are judged beside the papers."""

import importlib
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def beside_the_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


def test_the_differences_of_table_iv_have_the_means_that_the_papers_text_says():
    """Section V-B: over PipeDream and 2BW 1.95 and 1.66 with SGDM, 1.0 and 0.86 with AdamW; 0.80 over GPipe."""
    published = importlib.import_module("published_results")
    means = {
        (ordering.second, optimizer): fmean(differences)
        for ordering in published.ORDERINGS
        if (ordering.first, ordering.source) == ("pipeoptim", "PipeOptim, Table IV")
        for optimizer, differences in ordering.differences.items()
    }
    assert means["pipedream", "momentum"] == pytest.approx(1.95, abs=0.005)
    assert means["pipedream_2bw", "momentum"] == pytest.approx(1.66, abs=0.005)
    assert means["pipedream", "adamw"] == pytest.approx(1.0, abs=0.005)
    assert means["pipedream_2bw", "adamw"] == pytest.approx(0.86, abs=0.005)
    assert means["un-pipelined", "adamw"] == pytest.approx(0.80, abs=0.005)


def test_a_paper_finds_a_scheme_ahead_only_if_it_is_with_all_of_its_models():
    ordering = importlib.import_module("published_results").Ordering
    cases = {(0.0, 0.2): 1, (-0.1, -3.0): -1, (5.0, -0.1): 0, (0.0, 0.0): 0, (): 0}
    assert {differences: ordering("a", "b", "", {"adam": differences}).sign("adam") for differences in cases} == cases


def test_more_accuracy_is_ahead_and_more_loss_behind_if_the_seeds_lie_closer_together():
    convergence = importlib.import_module("convergence")
    base = convergence.Score(maximum=0.9, final=0.8, loss=0.5, diverged_at=None)
    maximum, _, loss = convergence.MEASURES
    better = [replace(base, maximum=0.95), replace(base, maximum=0.97)]
    assert maximum.gain(better, [base, base]) == (pytest.approx(6.0), 1)
    assert maximum.gain([base, base], better) == (pytest.approx(-6.0), -1)
    apart = [replace(base, maximum=0.80), replace(base, maximum=0.96)]  # a mean of 88 %, 11.3 points apart
    assert maximum.gain(apart, [base, base]) == (pytest.approx(-2.0), 0)
    assert loss.gain([base, base], [replace(base, loss=0.7)] * 2) == (pytest.approx(0.2), 1)
