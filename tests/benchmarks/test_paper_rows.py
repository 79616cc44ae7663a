"""The rows of the papers: a row for each table and figure, and some figures."""

import re
from itertools import accumulate

import pytest

from pipesched.profiles.costs import StageCost

ROWS = "paper_rows."


@pytest.mark.parametrize(
    ("paper", "names"),
    [
        (
            "pipeoptim",
            [*(f"fig{n}" for n in range(1, 11)), *(f"table{n}" for n in ("I", "II", "III", "IV", "V", "VI"))],
        ),
        ("stale_weights", [*(f"fig{n}" for n in range(1, 10)), *(f"table{n}" for n in range(1, 10))]),
    ],
)
def test_each_table_and_figure_has_one_row(rows, paper, names):
    keys = [figure.key for figure in rows(paper).PAPER.figures]
    assert len(set(keys)) == len(keys)
    assert set(keys) == {*names, "Algorithm1"}


@pytest.mark.parametrize(("paper", "figures", "tables"), [("pipedream", 18, 3), ("wpipe", 15, 5), ("avgpipe", 19, 0)])
def test_each_table_and_figure_has_a_row_or_several(rows, paper, figures, tables):
    """Some rows have a part of a figure, as "Fig. 8e"."""
    rows("page")
    names = [figure.name for figure in rows(paper).PAPER.figures]
    expected = [*(f"Fig. {n}" for n in range(1, figures + 1)), *(f"Table {n}" for n in range(1, tables + 1))]
    assert [name for name in expected if not any(re.match(rf"{re.escape(name)}(?!\d)", row) for row in names)] == []


def test_a_sum_in_a_ring_takes_the_published_codes_seconds(rows):
    """Three replicas of 2 s with 6 GB at 2 GB/s: 2 (3 - 1) 6 / 2 as printed; 2 s and twice 2 (3 - 1) / 3 of 6 / 2."""
    seconds = rows("pipedream.speedups").replicated_s
    stage = StageCost(forward_s=1, backward_s=1, weight_bytes=6 * 10**9)
    assert seconds(stage, 3, 2e9, "paper") == pytest.approx(2 * 2 * 3 / 3)
    assert seconds(stage, 3, 2e9, "published") == pytest.approx((2 + 4 * 2 * 3 / 3) / 3)


def test_mini_batches_in_flight_are_those_of_the_lists(rows):
    evaluation = rows("pipedream.evaluation")
    for in_flight, peaks in ((1, [1, 1, 1, 1]), (2, [2, 2, 2, 1]), (4, [4, 3, 2, 1]), (7, [7, 6, 5, 1])):
        rows_of_ops = evaluation._lists(in_flight, 24).ops
        held = [[*accumulate(1 if "F" in str(op) else -1 for op in row)] for row in rows_of_ops]
        assert [max(counts) for counts in held] == peaks


@pytest.mark.parametrize(
    ("paper", "key"),
    [
        ("pipeoptim", "fig2"),
        ("stale_weights", "fig4"),
        *(("avgpipe", key) for key in ("fig7", "fig8")),
        *(("pipedream", key) for key in ("fig2", "fig3", "fig4", "fig8", "fig9")),
        *(("wpipe", key) for key in ("fig2", "fig5", "fig9", "fig15", "table1")),
    ],
)
def test_a_figure_agrees(rows, paper, key):
    (figure,) = (figure for figure in rows(paper).PAPER.figures if figure.key == key)
    assert figure.repeat().verdict == "agrees"


def test_the_papers_scheme_has_all_accelerators_at_work_after_filling(rows):
    cycles = rows("stale_weights.schedule_rows").paper_scheme(2, 9)
    assert cycles.makespan == 9 + 2 * 2
    assert cycles.busy[4] == 1.0
    assert cycles.staleness == (4, 2, 0)


def test_outputs_of_a_layer_count_once_and_without_gradients(rows):
    first, *_, last = rows("stale_weights.layer_sizes").layer_sizes("lenet5")
    assert first.parameters == 6 * 25 + 6
    assert first.output_bytes == 4 * 6 * (28 * 28 * 2 + 14 * 14)  # convolution, ReLU, pooling
    assert (last.parameters, last.output_bytes) == (84 * 10 + 10, 4 * 10)


def test_pairs_of_schemes_are_read_from_the_page_of_their_benchmark(rows, monkeypatch, tmp_path):
    accuracy = rows("pipeoptim.accuracy_rows")
    page = tmp_path / "convergence.md"
    page.write_text(
        "# How well every scheme learns: digits, four stages\n\n"
        "Pairs of the papers, by the best accuracy of a run:\n\n"
        "| first | second | where | momentum: paper | here | adam: paper | here |\n|---|---|---|---|---|---|---|\n"
        "| pipeoptim | pipedream | PipeOptim, Table IV | +5.24 | +1.2 [+1.0, +1.4] **ahead** "
        "| +0.25 | -0.1 [-0.3, +0.2] undecided |\n"
    )
    monkeypatch.setattr(accuracy, "_PAGE", page)
    accuracy.pairs.cache_clear()
    signs = [(pair.optimizer, pair.published, pair.sign) for pair in accuracy.pairs()]
    accuracy.pairs.cache_clear()
    assert signs == [("momentum", 1, 1), ("adam", 1, 0)]


def test_the_target_is_the_lowest_maximum_rounded_down_to_half_a_point(rows, monkeypatch):
    """Means of two seeds: 70, 97.5 %; 77, 96.2 %; 97, 98 %. The lowest maximum is 96.2 %."""
    overall = rows("pipeoptim.overall_rows")
    curves = {"GPipe": ((0.5, 0.98), (0.9, 0.97)), "XPipe": ((0.6, 0.963), (0.94, 0.961)), "2BW": ((0.97, 0.98),) * 2}
    monkeypatch.setattr(overall, "curves", lambda: curves)
    overall.reached.cache_clear()
    everything, second = overall.reached(), overall.reached(without=0)
    overall.reached.cache_clear()
    assert everything.target == pytest.approx(0.96)
    assert everything.epochs == {"GPipe": 2, "XPipe": 2, "2BW": 1}
    assert second.maxima["XPipe"] == pytest.approx(0.961)
