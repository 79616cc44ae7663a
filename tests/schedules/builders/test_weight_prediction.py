import pytest
from hypothesis import given

from pipesched.schedules import PredictionRule
from pipesched.schedules.builders import CATALOGUE
from pipesched.schedules.builders.pipedream import pipedream
from pipesched.schedules.builders.weight_prediction import pipeoptim, spectrain, xpipe
from pipesched.schedules.weights import live_versions
from tests.properties import examples
from tests.schedules.asynchronous_rules import newest, reads_of
from tests.schedules.builder_rules import MICROBATCHES, RANKS, letters

builders = pytest.mark.parametrize("builder", [spectrain, xpipe, pipeoptim])


@builders
@examples(25)
@given(p=RANKS, m=MICROBATCHES)
def test_it_runs_in_pipedreams_order_and_holds_no_old_version(builder, p, m):
    schedule = builder(p, m)
    assert [letters(row) for row in schedule.ops] == [letters(row) for row in pipedream(p, m).ops]
    assert set(live_versions(schedule).values()) == {1}


@examples(25)
@given(RANKS, MICROBATCHES)
def test_pipeoptim_looks_ahead_of_the_newest_weights_for_the_version_that_the_backward_finds(p, m):
    expected = newest(p, m)
    for k in range(p):
        for i in range(m):
            at_forward, at_backward = expected["F", k, i][0], expected["B", k, i][0]
            if at_forward > 0:
                expected["F", k, i] = (at_forward, at_backward - at_forward)
            else:  # still warming up: as far as in the steady state
                expected["F", k, i] = (0, p - 1 - k)
    assert reads_of(pipeoptim(p, m)) == expected


@pytest.mark.parametrize("builder", [spectrain, xpipe])
@examples(25)
@given(p=RANKS, m=MICROBATCHES)
def test_spectrain_and_xpipe_aim_at_the_moment_when_the_microbatch_is_back_at_the_first_stage(builder, p, m):
    """Worked out on a clock that gives F and B one tick each: a stage steps every second tick."""
    expected = newest(p, m)
    for k in range(p):
        ticks_from_b_to_the_end = k  # one backward on each of the k stages before
        ahead_of_b = ticks_from_b_to_the_end // 2
        ticks_from_f_to_b = 2 * (p - 1 - k)
        ahead_of_f = ahead_of_b + ticks_from_f_to_b // 2
        for i in range(m):
            expected["F", k, i] = (expected["F", k, i][0], ahead_of_f)
            expected["B", k, i] = (expected["B", k, i][0], ahead_of_b)
    assert reads_of(builder(p, m)) == expected


def test_the_fifth_minibatch_on_four_stages_is_that_of_pipeoptims_figure_2():
    """PipeOptim, Fig. 2 and section III: predicted from W2, W3, W4, W5 by 3, 2, 1, 0 steps; all backwards read W5."""
    reads = reads_of(pipeoptim(4, 10))
    assert [(reads["F", k, 4][0] + 1, reads["F", k, 4][1]) for k in range(4)] == [(2, 3), (3, 2), (4, 1), (5, 0)]
    assert [(reads["B", k, 4][0] + 1, reads["B", k, 4][1]) for k in range(4)] == [(5, 0)] * 4


def test_the_published_code_of_pipeoptim_looks_one_step_further_on_every_stage():
    """s = D - rank in optimizer.py, where the paper's Eq. 4 has D - rank - 1."""
    reads, papers = reads_of(pipeoptim(4, 10, extra=1)), reads_of(pipeoptim(4, 10))
    assert [reads["F", k, 4][1] for k in range(4)] == [4, 3, 2, 1]
    assert all(reads["F", k, i][0] == papers["F", k, i][0] for k in range(4) for i in range(10))
    assert all(reads["B", k, i] == papers["B", k, i] for k in range(4) for i in range(10))


def test_an_entry_has_a_rule_exactly_if_its_ops_look_ahead():
    for entry in CATALOGUE.values():
        looks_ahead = any(ahead for _, ahead in reads_of(entry.build(4, 8)).values())
        assert (entry.traits.prediction is not None) == looks_ahead
    rules = {name: CATALOGUE[name].traits.prediction for name in ("spectrain", "xpipe", "pipeoptim")}
    assert rules == {
        "spectrain": PredictionRule.MOMENTUM,
        "xpipe": PredictionRule.ADAM,
        "pipeoptim": PredictionRule.OPTIMIZER,
    }
