"""WPipe's rows: the search for the fastest setting beside closed forms and an exhaustive search; Table 1."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def rows(monkeypatch):
    """Return a function that imports a module of the rows."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return lambda name: importlib.import_module(f"paper_rows.wpipe.{name}")


@pytest.fixture
def bert(rows):
    """Return the profile of 24 layers for any micro-batch."""
    models = rows("models")
    return lambda size: models.bert(24)


def test_every_choice_is_a_batch_with_enough_micro_batches(rows):
    for choice in rows("search").choices("wpipe", 64, 512):
        assert choice.samples == 512
        assert choice.depth * choice.width == 64
        assert choice.microbatches >= choice.depth


@pytest.mark.parametrize("scheme", ["wpipe", "pipedream_2bw", "gpipe", "pipedream"])
def test_the_search_finds_the_best_of_all_choices(rows, bert, scheme):
    search = rows("search")
    tried, memory_bytes = [*search.choices(scheme, 8, 32)], 4e9
    fitting = []
    for choice in tried:
        seconds, peak_bytes = search.Pipeline(choice, bert).simulated()
        if peak_bytes <= memory_bytes:
            fitting.append(choice.samples / seconds)
    best = search.fastest(tried, bert, memory_bytes)
    assert best.throughput == pytest.approx(max(fitting), rel=2e-3)
    assert search.fastest(tried, bert, 1e6) is None


@pytest.mark.parametrize("scheme", ["wpipe", "pipedream_2bw", "gpipe", "pipedream"])
def test_the_bounds_are_never_above_the_simulation(rows, bert, scheme):
    search = rows("search")
    for choice in search.choices(scheme, 8, 32):
        pipeline = search.Pipeline(choice, bert)
        seconds, peak_bytes = pipeline.simulated()
        assert pipeline.least_s <= seconds * (1 + 1e-9), choice
        assert pipeline.least_bytes <= peak_bytes, choice


def test_sums_cross_the_network_where_pipelines_stay_in_a_node(rows, bert):
    """Eight copies of 8 stages: 2 * 7 / 8 of eight stages' bytes over one interface, or of one stage's over NVLink."""
    search = rows("search")
    for spans_nodes, seconds in ((False, 8 / 3.125e9), (True, 1 / 300e9)):
        choice = search.Choice("pipedream_2bw", 8, 8, 1, 8, False, spans_nodes)
        alone = search.Choice("pipedream_2bw", 8, 1, 1, 8, False, False)
        own, plain = (search.Pipeline(of, bert).costs.stages[3] for of in (choice, alone))
        assert own.step_s - plain.step_s == pytest.approx(2 * 7 / 8 * own.weight_bytes * seconds, rel=1e-9)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("scheme", ["gpipe", "pipedream", "pipedream_2bw", "wpipe"])
def test_table_1_holds_for_as_many_micro_batches_as_workers(rows, scheme, n):
    schedules = rows("schedules")
    assert schedules.counted(scheme, n, n).numbers == pytest.approx(schedules.published(scheme, n, n).numbers)


def test_small_micro_batches_of_bert_are_inefficient(rows):
    """Samples per second of a block at a micro-batch of 1 are at most half of the samples per second at 8."""
    profile = rows("models").bert(24)
    single, eight = (profile.cost_of_layers(1, 2, size).both_s / size for size in (1, 8))
    assert single > 2 * eight


@pytest.mark.parametrize("name", ["Fig. 2", "Fig. 5", "Fig. 9", "Fig. 15", "Table 1"])
def test_a_figure_agrees(rows, name):
    rows("search")
    figures = {figure.name: figure for figure in importlib.import_module("paper_rows.wpipe").PAPER.figures}
    assert figures[name].repeat().verdict == "agrees"
