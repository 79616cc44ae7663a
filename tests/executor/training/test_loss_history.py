"""Scores of steps are kept as numbers, also those of a part of a run."""

import math
import tracemalloc

import pytest
import torch

from pipesched.executor.training import LossHistory, RunDiverged, ScoreReader, Scores, ScoreTable, Trained
from pipesched.executor.training.scores import HostCopy
from pipesched.workflows.training import TrainingResult

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
        assert TrainingResult("1f1b", "mlp", count, trained).summary().training_loss == 1.9 * count - 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50 * count // 10


class Late(HostCopy):
    """Scores that arrive when the test lets them, or when they are waited for."""

    def __init__(self, tensor):
        self.tensor, self.is_there = tensor, False

    def has_arrived(self):
        return self.is_there

    def numbers(self):
        self.is_there = True
        return self.tensor.tolist()


def late_history(per_step):
    """Return a history, its reader of late scores, the reported (step, scores), and the copies under way."""
    told, copies = [], []

    def copy(tensor):
        copies.append(Late(tensor))
        return copies[-1]

    history = LossHistory(per_step, lambda *it: told.append(it))
    return history, ScoreReader(history.add, copy), told, copies


def listen(reader, microbatch, loss):
    """Report a micro-batch of four samples, one of which is right."""
    output, target = torch.eye(4), torch.tensor([0, 2, 3, 1])
    reader.listen(microbatch, output, target, torch.tensor(loss))


def test_scores_are_told_in_order_when_they_have_arrived():
    history, reader, told, copies = late_history(2)
    for microbatch, loss in enumerate([1.0, 3.0, 5.0]):
        listen(reader, microbatch, loss)
    assert told == []
    copies[1].is_there = copies[2].is_there = True
    listen(reader, 3, 7.0)
    assert told == []  # the first has not arrived
    copies[0].is_there = True
    listen(reader, 4, 9.0)
    assert told == [(0, Scores(2.0, 0.25))]
    reader.finish()
    assert told == [(0, Scores(2.0, 0.25)), (1, Scores(6.0, 0.25))]
    listen(reader, 5, 9.0)
    reader.finish()
    assert list(history.end().steps) == [Scores(2.0, 0.25), Scores(6.0, 0.25), Scores(9.0, 0.25)]


@pytest.mark.parametrize("bad", [math.nan, 11.0])
def test_a_run_whose_losses_are_late_diverges_at_the_step_that_shows_it(bad):
    history, reader, told, _ = late_history(1)
    for microbatch, loss in enumerate([1.0, 2.0, bad, 3.0, 4.0]):
        listen(reader, microbatch, loss)
    with pytest.raises(RunDiverged):
        reader.finish()
    trained = history.end()
    assert (trained.diverged.step, len(trained.steps)) == (2, 3)
    assert [step for step, _ in told] == [0, 1, 2]


def test_scores_on_the_cpu_are_told_at_once():
    told = []
    reader = ScoreReader(LossHistory(1, lambda *it: told.append(it)).add)
    for microbatch in range(3):
        listen(reader, microbatch, 0.5)
        assert told[-1] == (microbatch, Scores(0.5, 0.25))


def test_targets_that_are_no_classes_have_no_accuracy():
    told = []
    reader = ScoreReader(LossHistory(1, lambda *it: told.append(it)).add)
    reader.listen(0, torch.ones(2, 3), torch.ones(2, 3), torch.tensor(0.1))
    assert told == [(0, Scores(torch.tensor(0.1).item(), None))]
