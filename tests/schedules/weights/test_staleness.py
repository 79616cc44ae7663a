"""What the lists amount to, and the tables of the papers read off them."""

import sys

import pytest

from pipesched.schedules import make_schedule, repeat
from pipesched.schedules.builders import CATALOGUE, build, build_generated
from pipesched.schedules.ops import Phase, backward, forward
from pipesched.schedules.weights import Agreement, Reading, first_uses, rank_uses, staleness
from pipesched.simulator.theory import wpipe_table
from tests.schedules.builder_rules import refused

D = 5


def steady(name):
    """The uses of stages in the steady state: after every stage's warm-up, whatever the schedule."""
    generated = build_generated(name, D, 8 * D)
    uses = (use for rank in range(generated.num_ranks) for use in rank_uses(generated, rank))
    return [use for use in uses if use.op.microbatch >= 3 * D]


def solved(name):
    """Whether inconsistency and staleness are solved: "yes", "nearly" by prediction, or "no"."""
    uses = steady(name)
    kinds = {use.agreement for use in uses}
    behind, lag = max(use.staleness for use in uses), max(use.lag for use in uses)
    consistent = "no" if Agreement.DIFFERENT in kinds else "nearly" if Agreement.PREDICTED in kinds else "yes"
    return consistent, "no" if lag > 0 else "nearly" if behind > 0 else "yes"


@pytest.mark.parametrize(
    ("name", "inconsistency", "stale", "copies"),
    [
        ("pipedream", "yes", "no", [5, 4, 3, 2, 1]),
        ("pipedream_2bw", "yes", "no", [2, 2, 2, 2, 2]),
        ("spectrain", "nearly", "nearly", None),
        ("xpipe", "nearly", "nearly", None),
        ("pipeoptim", "nearly", "nearly", [2, 2, 2, 2, 1]),
    ],
)
def test_table_ii_of_pipeoptim_comes_out_of_the_lists(name, inconsistency, stale, copies):
    """arXiv:2312.00839, Table II, with weights in memory in units of a stage's: [M, D M], 2 M, 2 M, 2 M, [M, 2 M].

    A predicted copy counts; SpecTrain and XPipe make one on every stage.
    """
    assert solved(name) == (inconsistency, stale)
    live_copies = [stage.live_copies for stage in staleness(build(name, D, 8 * D)).stages]
    assert live_copies == ([2] * D if copies is None else copies)


def test_vanilla_1f1b_and_stale_weights_solve_neither():
    assert solved("vanilla_1f1b") == solved("stale_weights") == ("no", "no")


@pytest.mark.parametrize("n", [2, 4, 8])
def test_table_1_of_wpipe_comes_out_of_the_lists(n):
    """ICLR 2022, Table 1 with M = N micro-batches."""
    for name in ("gpipe", "pipedream", "pipedream_2bw", "wpipe"):
        buffers, activations = wpipe_table(name, n)
        summary = staleness(build(name, n, n if name == "gpipe" else 4 * n))
        num_groups = len(summary.stages) // n
        groups = [summary.stages[group * n : (group + 1) * n] for group in range(num_groups)]
        kept = [[stage.live_versions for stage in group] for group in groups]
        share = 1 / len(summary.stages)
        assert sum(sum(group) for group in kept if max(group) > 1) * share == pytest.approx(buffers)
        assert sum(summary.in_flight) * share == pytest.approx(activations)


def test_the_summary_of_pipeoptim_says_what_prediction_leaves():
    stages = staleness(build("pipeoptim", 3, 20)).stages
    assert [stage.forward for stage in stages] == [Reading(2, 2, 0), Reading(1, 1, 0), Reading(0, 0, 0)]
    assert [stage.backward for stage in stages] == [Reading(0, 0, 0)] * 3
    assert [(stage.same, stage.predicted, stage.different) for stage in stages] == [(1, 17, 2), (1, 18, 1), (20, 0, 0)]
    assert [stage.num_microbatches for stage in stages] == [20] * 3
    assert [stage.ranks for stage in stages] == [(0,), (1,), (2,)]


def test_spectrain_looks_beyond_the_gradients_step_on_later_stages():
    stages = staleness(build("spectrain", 6, 30)).stages
    assert [stage.forward.lag for stage in stages] == [0, 0, -1, -1, -2, -2]
    assert [stage.backward.lag for stage in stages] == [0, 0, -1, -1, -2, -2]


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_schedule_and_its_lists_in_memory_amount_to_the_same(name):
    batch = build(name, 4, 8)
    in_memory, generated = staleness(batch), staleness(build_generated(name, 4, 8))
    assert generated == in_memory
    assert sum(stage.num_microbatches for stage in generated.stages) == 8 * batch.num_stages
    uses = [use for rank in range(batch.num_ranks) for use in rank_uses(batch, rank)]
    for stage in generated.stages:
        stage_uses = [use for use in uses if use.op.stage == stage.stage]
        assert stage.live_versions == max(len(use.held) for use in stage_uses)
        assert stage.live_copies == max(use.copies for use in stage_uses)
        assert stage.in_flight == max(use.in_flight for use in stage_uses)
        assert stage.forward.staleness == max(use.staleness for use in stage_uses if use.op.phase is Phase.FORWARD)
        assert stage.same == sum(use.agreement is Agreement.SAME for use in stage_uses if use.op.phase is Phase.FORWARD)


def test_a_repeated_batch_is_as_stale_as_one():
    for name in ("1f1b", "zb_h1"):
        summary, five = staleness(build(name, 4, 8)), staleness(repeat(build(name, 4, 8), 5))
        assert {stage.forward.staleness for stage in five.stages} == {0}
        assert [stage.live_versions for stage in five.stages] == [1] * 4
        assert five.in_flight == summary.in_flight


def test_the_reading_of_a_long_run_is_told_as_it_goes(monkeypatch):
    told = []
    monkeypatch.setattr(sys.modules[staleness.__module__], "_TELL_EVERY", 100)
    staleness(build_generated("pipedream", 2, 200), told.append)
    assert told[0] == 0
    assert told == sorted(told)
    assert len(told) > 4
    assert all(share <= 1 for share in told)


@pytest.mark.parametrize("name", ["pipedream", "wpipe", "1f1b_rr", "gpipe"])
def test_the_first_uses_are_found_without_reading_on(name):
    generated = build_generated(name, 4, 8 if name == "gpipe" else 10**9)
    forwards, backwards = first_uses(generated, 8)
    assert sorted(forwards) == sorted(backwards) == [(k, i) for k in range(generated.num_stages) for i in range(8)]
    assert {use.op.phase for use in forwards.values()} == {Phase.FORWARD}
    assert {use.op.phase for use in backwards.values()} == {Phase.BACKWARD}


@pytest.mark.parametrize("weights", [(1, 2), (1, 2, 3, 4), (0, 0, 0), (1, -1, 1), ()])
def test_weights_that_are_not_one_per_stage_are_refused(weights):
    with refused("weights: got", "expected 3 numbers", "try 1,1,1"):
        staleness(build("pipedream", 3, 6)).stale_share(weights)


def test_a_stage_that_nobody_computes_is_refused():
    with refused("stage 1: got no op"):
        staleness(make_schedule("holey", 2, 1, [[forward(0, 0), backward(0, 0)]]))
