"""Estimates beside published measurements: as far off as the page on them says."""

import statistics

import pytest

from tests.benchmarks.conftest import BENCHMARKS


@pytest.fixture
def analytic(rows):
    return rows("analytic")


def test_the_published_seconds_of_gpt_3_follow_from_its_operations(analytic):
    """arXiv:2104.04473, section 5.1: 300 billion tokens on 1024 GPUs at 140 TFLOP/s take 34 days.

    That leaves out what attention and vocabulary add, s/6h and V/16lh: 3 %.
    """
    shape = analytic.gpt(96, 12288, 96, 2048)
    iterations = 300e9 / (1536 * 2048)
    days = iterations * analytic.published_flops(shape, 1536) / (1024 * 140e12) / 86400
    assert days / (1 + 2048 / (6 * 12288) + 51200 / (16 * 96 * 12288)) == pytest.approx(34, abs=0.5)


def test_every_stage_has_its_blocks_and_the_outer_two_a_layer_more(analytic):
    assert analytic.blocks_per_stage(4, 1) == [6]
    assert analytic.blocks_per_stage(8, 4) == [3, 2, 2, 3]


def test_estimated_passes_are_near_the_measured_ones(analytic):
    """W of two models is a third too long: its products add to gradients, which the paper's runs may not do."""
    page = (BENCHMARKS / "results" / "analytic.md").read_text()
    for rows_of in (analytic.passes, analytic.layers):
        rows = list(rows_of())
        assert all(f"| {row.what} | " in page and f" | {row.error:+.1%} |" in page for row in rows)
        assert all(-0.15 < row.error < 0.35 for row in rows)
        assert abs(statistics.median(row.error for row in rows)) < 0.1
