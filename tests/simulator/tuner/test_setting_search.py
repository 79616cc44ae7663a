from dataclasses import replace
from itertools import chain

import pytest

from pipesched.profiles import ProfileError
from pipesched.schedules.lowering import lower
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.tuner import Accounting, Evaluator, Space, predict_setting, search_settings, tuned
from pipesched.simulator.tuner.setting_evaluation import evaluate_setting, measure, pace_of_setting
from tests.simulator.tuner.problems import problem

SCHEDULES = ("avgpipe", "zb_h1", "interleaved", "chimera")
SPACE = Space(3, (1, 2, 4, 8), (1, 2, 3), (0, 2), SCHEDULES, recomputes=(None, "early"))


def test_pipelines_that_slow_each_other_drift_apart_and_fill_each_others_bubbles():
    asked, several, single = problem(), tuned("avgpipe", 3, 2, 3, 0), tuned("avgpipe", 3, 2, 1, 0)
    costs = asked.costs(several)
    alone_s = simulate_lists(asked.lists(several), costs, asked.cluster).makespan_s
    together_s = simulate_lists(lower(several.build()), costs, asked.cluster).makespan_s
    best_s = max(cost.utilisation * (2 * (cost.forward_s + cost.backward_s)) for cost in costs.stages)
    drifting, alone = (evaluate_setting(asked, setting) for setting in (several, single))
    drifting_s, single_s = drifting.seconds, alone.seconds
    assert pace_of_setting(asked, drifting).s_per_microbatch == drifting_s / 2
    assert best_s < drifting_s < 0.95 * together_s / 3
    assert 1.01 * alone_s < together_s < 3 * single_s


def test_what_does_not_fit_is_rejected_with_device_and_op_and_still_has_its_numbers():
    free = evaluate_setting(problem(), tuned("avgpipe", 3, 2, 3, 0))
    tight = evaluate_setting(problem(memory_bytes=free.held_bytes - 1), tuned("avgpipe", 3, 2, 3, 0))
    assert (tight.seconds, tight.held_bytes) == (free.seconds, free.held_bytes)
    assert f"over memory: device 1 holds {free.held_bytes} bytes of {free.held_bytes - 1}" in tight.reason
    assert evaluate_setting(problem(memory_bytes=free.held_bytes), tuned("avgpipe", 3, 2, 3, 0)).fits


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        (tuned("chimera", 3, 4), "chimera"),
        (tuned("avgpipe", 3, 3, 1, 0), "8 samples in 3 micro-batches, expected micro-batches of equal size"),
        (tuned("interleaved", 3, 4, num_chunks=3), "got 9 stages for 6 layers"),
    ],
)
def test_what_cannot_be_is_rejected_with_the_reason(setting, why):
    outcome = evaluate_setting(problem(), setting)
    assert not outcome.fits
    assert outcome.seconds is None
    assert why in outcome.reason
    assert "\n" not in outcome.reason


def test_a_microbatch_that_the_profile_does_not_cover_is_rejected():
    assert "expected 1 to 8" in evaluate_setting(problem(batch_size=16), tuned("avgpipe", 3, 1, 1, 0)).reason


@pytest.mark.slow
def test_in_several_processes_the_same_is_found_in_the_same_order():
    asked, settings = problem(), SPACE.settings()[::4]
    here = search_settings(asked, settings)
    assert [outcome.setting for outcome in here] == list(settings)
    told = []
    assert search_settings(asked, settings, workers=2, tick=told.append) == here
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_another_runner_can_take_over():
    settings = SPACE.settings()[:5]
    outcomes = search_settings(
        problem(), settings, runner=lambda judge, take: map(judge, chain.from_iterable(map(reversed, iter(take, ()))))
    )
    assert outcomes == search_settings(problem(), settings)


@pytest.mark.parametrize("accounting", Accounting)
def test_the_equations_start_from_the_most_microbatches_in_one_pipeline(accounting):
    asked, setting = problem(), tuned("avgpipe", 3, 4, 3, 2)
    outcomes = {
        o.setting: o for o in search_settings(asked, SPACE.settings(), Evaluator.AVGPIPE, accounting=accounting)
    }
    expected = predict_setting(measure(asked, tuned("avgpipe", 3, 8, 1, 2)), 4, 3, accounting)
    assert (outcomes[setting].seconds, outcomes[setting].held_bytes) == (expected.seconds, round(expected.held_bytes))
    assert "do not cover zb_h1" in outcomes[tuned("zb_h1", 3, 4)].reason


def test_the_equations_keep_the_limit_too():
    free = search_settings(problem(), [tuned("avgpipe", 3, 4, 2, 0)], Evaluator.AVGPIPE)[0]
    tight = search_settings(
        problem(memory_bytes=free.held_bytes - 1), [tuned("avgpipe", 3, 4, 2, 0)], Evaluator.AVGPIPE
    )[0]
    assert (free.fits, tight.fits) == (True, False)
    assert tight.reason.startswith("over memory: device 0 holds")


def test_the_equations_skip_what_the_profile_does_not_cover():
    asked = problem(batch_size=16)
    single, eight = search_settings(
        asked, [tuned("avgpipe", 3, 1, 1, 0), tuned("avgpipe", 3, 8, 1, 0)], Evaluator.AVGPIPE
    )
    assert "expected 1 to 8" in single.reason
    assert eight.fits
    with pytest.raises(ProfileError, match="expected 1 to 8"):
        search_settings(asked, [tuned("avgpipe", 3, 1, 1, 0)], Evaluator.AVGPIPE)


def test_without_links_to_wait_for_advance_gains_nothing():
    asked = problem(link=None)
    free = replace(asked, cluster=replace(asked.cluster, intra=type(asked.cluster.intra)()))
    assert len({evaluate_setting(free, tuned("avgpipe", 3, 8, 1, advance)).seconds for advance in range(4)}) == 1
