from functools import cache

import pytest

from pipesched.simulator.tuner import Evaluator, Space, best_plain, ranked, search_leading, search_settings
from tests.simulator.tuner.problems import problem

SPACE = Space(3, (2, 4, 8), (1, 2, 3), (0, 2), ("avgpipe", "zb_h1"), recomputes=(None, "early"))


@cache
def everything_within(memory_bytes):
    return search_settings(problem(memory_bytes=memory_bytes), SPACE.settings())


def kind(outcome):
    return outcome.setting.training if outcome.fits else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("evaluator", "memory_bytes"),
    [(Evaluator.SIMULATE, None), (Evaluator.SIMULATE, 9_000), (Evaluator.MAX_NUM, 9_000), (Evaluator.MAX_SIZE, None)],
)
def test_those_that_lead_are_the_first_of_all_settings_and_the_others_take_and_hold_no_less_than_they_are_said_to(
    evaluator, memory_bytes
):
    asked, settings = problem(memory_bytes=memory_bytes), SPACE.settings()
    everything = everything_within(memory_bytes)
    outcomes, evaluated = search_leading(asked, settings, evaluator, 4)
    for known, least in zip(everything, outcomes, strict=True):
        assert (known.setting, known.reason) == (least.setting, least.reason)
        if known.setting in evaluated or known.seconds is None:
            assert (least.seconds, least.held_bytes) == (known.seconds, known.held_bytes)
        else:
            assert least.seconds <= known.seconds
            assert least.held_bytes == known.held_bytes if known.reason else least.held_bytes <= known.held_bytes
    assert best_plain(outcomes) == best_plain(everything)
    for wanted in {*map(kind, everything)}:
        first = [[o for o in ranked(of, evaluator) if kind(o) == wanted][:4] for of in (outcomes, everything)]
        assert first[0] == first[1]
    assert ranked(outcomes, evaluator)[0] == ranked(everything, evaluator)[0]


def test_most_settings_that_drift_are_known_by_their_least_seconds_alone():
    settings = SPACE.settings()
    _, evaluated = search_leading(problem(), settings, Evaluator.SIMULATE, 1)
    assert len(evaluated) < len(settings) / 2
