"""The peak memory of each rank on a stream is the one that was predicted."""

import pytest

pytestmark = pytest.mark.gpu

MODEL, SIZE = "gpt:layers=8,width=128,heads=4,context=64", 8


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1"])
def test_the_peak_of_each_rank_is_within_three_percent_of_its_prediction(name, card, row):
    runs = row("model_runs")
    errors = runs.verified(card, runs.Case(MODEL, SIZE, name, 2, num_microbatches=4, own=True)).memory_errors
    assert len(errors) == 2
    assert all(abs(error) <= row("memory").LIMIT for _, error in errors.values()), errors
