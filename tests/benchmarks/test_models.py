"""Models of others: their gradients under every schedule, beside the plain module."""

import importlib.util

import pytest


@pytest.fixture
def models(rows, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return rows("models")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
@pytest.mark.parametrize(("model", "schedule"), [("GPT-2", "zbv"), ("T5", "interleaved"), ("LSTM", "chimera")])
def test_gradients_are_the_plain_modules(models, model, schedule):
    lists = models.schedule_of(schedule, 2)
    oracle = models.Oracle.of(models.cases(blocks=4)[model], lists.num_microbatches)
    assert oracle.largest_error(lists) <= models.LIMIT
