"""Seconds that are given op by op, against times that are worked out by hand."""

import pytest

from pipesched.profiles.costs import uniform
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Recv, Reduce
from pipesched.simulator import SimulationError
from pipesched.simulator.engine import OpSeconds, simulate_lists

LISTS = lower(build("gpipe", num_ranks=2, num_microbatches=1))


def given_by_kind(**kinds: OpSeconds) -> list[list[OpSeconds]]:
    return [[kinds.get(type(op).__name__, OpSeconds()) for op in row] for row in LISTS.ops]


def test_works_take_what_is_given_whatever_costs_say():
    timeline = simulate_lists(LISTS, uniform(2, 5.0, 7.0), given=given_by_kind(Compute=OpSeconds(work_s=0.5)))
    assert timeline.makespan_s == 2.0  # F0 F0 B0 B0


def test_what_is_not_given_is_as_the_costs_say():
    assert simulate_lists(LISTS, uniform(2, 1.0, 2.0), given=given_by_kind()) == simulate_lists(
        LISTS, uniform(2, 1.0, 2.0)
    )


def test_a_rank_spends_its_own_time_around_its_works_and_posts_and_waits_for_a_late_message():
    # Rank 0: F0 1 s, 0.01 after it, 0.2 before the Send is posted, which is 0.5 late; rank 1: 0.1 before F0 and 1 s of
    # it, 0.01, 0.1 before B0 and 2 s of it, 0.01, 0.2, and 0.5 late; rank 0: 0.1 and 2 s of B0, 0.01 until the Step.
    # The first work begins at 0.1 s, which the makespan leaves out; what follows the posts is waited out.
    given = given_by_kind(
        Compute=OpSeconds(before_s=0.1, after_s=0.01),
        Send=OpSeconds(before_s=0.2, after_s=0.03),
        Recv=OpSeconds(late_s=0.5),
    )
    timeline = simulate_lists(LISTS, uniform(2, 1.0, 2.0), given=given)
    assert timeline.makespan_s == pytest.approx(1 + 0.21 + 0.5 + 0.1 + 1 + 0.11 + 2 + 0.21 + 0.5 + 0.1 + 2.01)
    arrived = next(span for span in timeline.spans if isinstance(span.op, Recv) and span.rank == 1)
    assert arrived.end_s - arrived.start_s == pytest.approx(0.5)


def test_a_step_waits_for_a_reduction_that_is_late():
    schedule = build("chimera", num_ranks=2, num_microbatches=2)
    lists = lower(schedule)
    given = [[OpSeconds(late_s=3.0) if isinstance(op, Reduce) else OpSeconds() for op in row] for row in lists.ops]
    costs = uniform(lists.num_stages, 1.0, 2.0)
    on_time, late = simulate_lists(lists, costs), simulate_lists(lists, costs, given=given)
    assert late.makespan_s == pytest.approx(on_time.makespan_s + 3.0)


def test_seconds_of_other_lists_are_refused():
    with pytest.raises(SimulationError, match="ops on the ranks"):
        simulate_lists(LISTS, uniform(2, 1.0, 2.0), given=[[OpSeconds()], []])
