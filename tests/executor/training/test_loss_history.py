"""Scores of steps are kept as numbers, also those of a part of a run."""

import math
import tracemalloc

from pipesched.executor.training import Scores, ScoreTable, Trained
from pipesched.workflows.training import summarize_training

TABLE = ScoreTable((0.1, 0.5, 0.2, math.nan, 0.3, 0.25))


def test_a_slice_has_the_scores_that_one_of_a_list_has():
    scores = list(TABLE)
    assert scores == [Scores(0.1, 0.5), Scores(0.2, None), Scores(0.3, 0.25)]
    for part in (slice(1, None), slice(None, None, 2), slice(-1, None), slice(None, None, -1), slice(3, None)):
        assert list(TABLE[part]) == scores[part]


def test_the_mean_over_the_end_of_a_long_run_takes_few_bytes_a_step():
    count = 50_000
    trained = Trained(ScoreTable(range(2 * count)), None, None)
    tracemalloc.start()
    try:
        assert summarize_training("1f1b", None, trained, count, None).training_loss == 1.9 * count - 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50 * count // 10
