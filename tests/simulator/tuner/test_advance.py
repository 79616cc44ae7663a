from functools import partial

from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.simulator.tuner import Problem, evaluate_setting, smallest_advance, tuned
from tests.profiles.hand_profiles import layer, measurement, profile


def figure_7(transfer_s, memory_bytes=None):
    """K = 2, micro-batches of one sample, F and B of 1 s on each device."""
    model = profile(*(layer(measurement(1, 1.0, 1.0), step_s=0.0) for _ in range(2)))
    return Problem(model, 8, Cluster((Device(memory_bytes=memory_bytes),) * 2, Link(transfer_s)))


def outcome_of(problem):
    return smallest_advance(partial(evaluate_setting, problem), tuned("avgpipe", 2, 8, 1, 0))


def test_figure_7_needs_one():
    outcome = outcome_of(figure_7(1.0))
    assert (outcome.setting.advance, outcome.seconds) == (1, 20.0)


def test_without_anything_to_wait_for_1f1b_is_as_fast():
    assert outcome_of(figure_7(0.0)).setting.advance == 0


def test_the_slower_the_link_the_further_until_all_forwards_are_first():
    needed = [outcome_of(figure_7(transfer_s)).setting.advance for transfer_s in (0.0, 1.0, 2.0, 3.0, 20.0)]
    assert needed == sorted(needed)
    assert needed[-1] > 2


def test_memory_may_not_suffice_for_it():
    enough = outcome_of(figure_7(1.0)).held_bytes
    assert outcome_of(figure_7(1.0, enough)).setting.advance == 1
    assert outcome_of(figure_7(1.0, enough - 1)) is None


def test_where_the_profile_knows_nothing_neither_does_it():
    assert smallest_advance(partial(evaluate_setting, figure_7(1.0)), tuned("avgpipe", 2, 4, 1, 0)) is None
