"""PipeDream's weights against the recurrence of arXiv:1806.03377, section 3.3."""

from collections import defaultdict

import pytest
import torch

from pipesched.schedules.builders import build
from pipesched.schedules.weights import live_versions
from tests.executor.pipelines import MLP, Calls, Local, assert_equal, recurrence, whole_model

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.05),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.05),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("num_ranks", range(1, 7))
def test_weights_after_forty_micro_batches_are_those_of_the_recurrence(num_ranks, optimizer):
    run = Local(build("pipedream", num_ranks, 40), optimizer=optimizer).run()
    expected = recurrence(MLP, num_ranks, 40, optimizer=OPTIMIZERS[optimizer])
    assert_equal(run.parameters, expected)


def test_the_recurrence_holds_for_attention_too():
    gpt = "gpt:layers=2,width=16,heads=2,context=8,dropout=0"
    run = Local(build("pipedream", 4, 8), gpt).run()
    assert_equal(run.parameters, recurrence(gpt, 4, 8, optimizer=OPTIMIZERS["sgd"]))


@pytest.mark.parametrize("num_microbatches", range(1, 6))
def test_fewer_micro_batches_than_ranks_follow_the_recurrence(num_microbatches):
    run = Local(build("pipedream", 4, num_microbatches)).run()
    expected = recurrence(MLP, 4, num_microbatches, optimizer=OPTIMIZERS["sgd"])
    assert_equal(run.parameters, expected)


def test_one_rank_is_ordinary_training():
    run = Local(build("pipedream", 1, 20)).run()
    module, inputs, targets, loss = whole_model(MLP, 40)
    optimizer = torch.optim.SGD(module.parameters(), 0.05)
    for i in range(20):
        optimizer.zero_grad()
        loss(module(inputs[2 * i : 2 * i + 2]), targets[2 * i : 2 * i + 2]).backward()
        optimizer.step()
    assert_equal(run.parameters, module.parameters())


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_no_more_copies_live_than_the_schedule_says_and_none_at_the_end(num_ranks):
    run = Local(build("pipedream", num_ranks, 12))
    most = defaultdict(int)

    def listen(rank, index):
        most[rank] = max(most[rank], len(run.stage(rank).weights.live_versions))

    run.heard = Calls(listen)
    run.run()
    assert {(rank, rank): count for rank, count in most.items()} == live_versions(run.schedule)
    assert [run.stage(k).weights.live_versions for k in range(num_ranks)] == [(12,)] * num_ranks
