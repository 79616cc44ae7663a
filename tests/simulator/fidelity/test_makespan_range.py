"""The range of a makespan, where it is known in closed form, and against runs that were not used to fit it."""

import random
from dataclasses import replace

import pytest

from pipesched.profiles.clusters import flat
from pipesched.profiles.costs import Variation, uniform, variation_of
from pipesched.schedules.builders import build
from pipesched.simulator import USUAL_NETWORK, SimulationError
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fidelity import makespan_range
from tests.hand_runs import run_by_hand

SCHEDULE = build("1f1b", num_ranks=2, num_microbatches=4)
COSTS = uniform(2, 1.0, 2.0)
STILL = (1.0,) * 11


def range_of(variation, draws=200, schedule=SCHEDULE):
    return makespan_range(schedule, COSTS, flat(2), USUAL_NETWORK, variation, draws)


def test_what_does_not_vary_has_no_range():
    makespan_s = simulate_lists(SCHEDULE, COSTS).makespan_s
    spread = range_of(Variation(STILL, STILL), draws=3)
    assert (spread.low_s, spread.median_s, spread.high_s) == pytest.approx((makespan_s,) * 3)


def test_a_factor_that_all_works_share_spreads_the_makespan_as_widely():
    # factors evenly between 0.5 and 1.5: a tenth of the makespans lies below 0.6 of the usual one, a tenth above 1.4
    spread = range_of(Variation(tuple(0.5 + 0.1 * step for step in range(11)), STILL), draws=1000)
    makespan_s = simulate_lists(SCHEDULE, COSTS).makespan_s
    assert spread.low_s / makespan_s == pytest.approx(0.6, abs=0.03)
    assert spread.high_s / makespan_s == pytest.approx(1.4, abs=0.03)


def test_factors_of_single_works_average_out():
    shared = range_of(Variation(tuple(0.5 + 0.1 * step for step in range(11)), STILL))
    single = range_of(Variation(STILL, tuple(0.5 + 0.1 * step for step in range(11))))
    assert single.high_s - single.low_s < 0.6 * (shared.high_s - shared.low_s)


@pytest.mark.parametrize("seed", range(2))
def test_a_range_fitted_on_half_of_the_runs_holds_about_four_fifths_of_the_other_half(seed):
    # Runs of a plain loop whose works share a log-normal factor and have one each; profiles were made the same way.
    rng = random.Random(seed)

    def drawn():
        of_pass = rng.lognormvariate(0.0, 0.2)
        return lambda _: of_pass * rng.lognormvariate(0.0, 0.1)

    passes = [(factor := drawn()) and (factor(None), 2 * factor(None)) for _ in range(100)]
    spread = range_of(variation_of(passes))
    makespans_s = [run_by_hand(SCHEDULE, 0.0, 0.0, drawn()).makespan_s for _ in range(100)]
    held = sum(spread.low_s <= makespan_s <= spread.high_s for makespan_s in makespans_s)
    assert 70 <= held <= 90


def test_ranks_that_share_a_device_are_refused():
    shared = replace(SCHEDULE, rank_to_device=(0, 0))
    with pytest.raises(SimulationError, match="several ranks on device 0"):
        range_of(Variation(STILL, STILL), schedule=shared)
