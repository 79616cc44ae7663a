import dataclasses

import pytest

from schedules.gpipe import gpipe
from schedules.interleaved import interleaved
from schedules.one_f_one_b import one_f_one_b
from schedules.op import Compute, Overlap, Phase, Step
from schedules.pipedream import pipedream
from schedules.schedule import backward, forward, make_schedule
from schedules.versions import Lifetime, in_flight, is_consistent, lifetimes, live_versions, reads
from tests.schedules.builder_rules import most_in_flight
from tests.schedules.hand_schedules import mixed_backwards, replicated


def one_rank(*ops, num_microbatches: int = 2):
    return make_schedule("x", 1, num_microbatches, [list(ops)])


def test_a_reading_knows_how_many_steps_came_before_it():
    schedule = one_rank(forward(0, 0), backward(0, 0), Step(0), forward(0, 1), backward(0, 1, 1))
    assert [(str(read.op), read.current, read.staleness) for read in reads(schedule)] == [
        ("0F0", 0, 0),
        ("0B0", 0, 0),
        ("0F1", 1, 1),
        ("0B1@1", 1, 0),
    ]


def test_steps_of_one_stage_do_not_age_another():
    schedule = make_schedule("x", 2, 1, [[forward(0, 0), Step(0), forward(1, 0)]])
    assert [read.current for read in reads(schedule)] == [0, 0]


def test_both_parts_of_an_overlap_are_readings():
    schedule = one_rank(forward(0, 0), Overlap(forward(0, 1), backward(0, 0)), backward(0, 1))
    assert [str(read.op) for read in reads(schedule)] == ["0F0", "0F1", "0B0", "0B1"]


@pytest.mark.parametrize(
    ("backwards", "expected"),
    [
        ([backward(0, 0)], True),
        ([backward(0, 0, 1)], False),
        ([Compute(Phase.BACKWARD, 0, 0, lookahead=1)], False),
        ([Compute(Phase.BACKWARD_INPUT, 0, 0), Compute(Phase.BACKWARD_WEIGHT, 0, 0)], True),
        ([Compute(Phase.BACKWARD_INPUT, 0, 0), Compute(Phase.BACKWARD_WEIGHT, 0, 0, 1)], False),
        ([Compute(Phase.RECOMPUTE, 0, 0, 1), backward(0, 0)], False),
    ],
)
def test_consistent_means_that_all_phases_of_a_microbatch_read_the_same(backwards, expected):
    assert is_consistent(one_rank(forward(0, 0), Step(0), *backwards)) is expected


@pytest.mark.parametrize("schedule", [gpipe(3, 4), one_f_one_b(3, 4), interleaved(2, 4, 2), replicated()], ids=str)
def test_synchronous_schedules_are_consistent_never_stale_and_hold_one_version(schedule):
    assert is_consistent(schedule)
    assert {read.staleness for read in reads(schedule)} == {0}
    assert set(live_versions(schedule).values()) == {1}


def test_lifetimes_say_where_a_version_is_made_replaced_and_last_read():
    # 0 F0  1 F1  2 B0  3 step  4 F2@1  5 B1  6 step  7 B2@1  8 step
    schedule = one_rank(
        *(forward(0, 0), forward(0, 1), backward(0, 0), Step(0)),
        *(forward(0, 2, 1), backward(0, 1), Step(0), backward(0, 2, 1), Step(0)),
        num_microbatches=3,
    )
    assert lifetimes(schedule, 0) == (
        Lifetime(0, 0, 0, made=-1, replaced=3, last_read=5),
        Lifetime(0, 0, 1, made=3, replaced=6, last_read=7),
        Lifetime(0, 0, 2, made=6, replaced=8, last_read=-1),
        Lifetime(0, 0, 3, made=8, replaced=9, last_read=-1),
    )
    assert [life.is_stashed for life in lifetimes(schedule, 0)] == [True, True, False, False]
    assert live_versions(schedule) == {(0, 0): 2}


def test_a_version_read_just_before_the_next_step_is_gone_when_that_step_is_done():
    # In the second list version 0 outlives the Step that makes version 2: then there are three.
    early = one_rank(forward(0, 0), Step(0), forward(0, 1, 1), backward(0, 0), Step(0), backward(0, 1, 1))
    late = one_rank(forward(0, 0), Step(0), forward(0, 1, 1), Step(0), backward(0, 0), backward(0, 1, 1))
    assert live_versions(early) == {(0, 0): 2}
    assert live_versions(late) == {(0, 0): 3}


def test_current_weights_for_forward_and_backward_alike_need_one_version():
    """Vanilla 1F1B, the newest weights always: inconsistent, stale by nothing, one copy."""
    rows = [
        [dataclasses.replace(op, version=0) if isinstance(op, Compute) else op for op in row]
        for row in pipedream(3, 6).ops
    ]
    for row in rows:
        steps = 0
        for place, op in enumerate(row):
            steps += isinstance(op, Step)
            if isinstance(op, Compute):
                row[place] = dataclasses.replace(op, version=steps)
    schedule = make_schedule("vanilla", 3, 6, rows)
    assert set(live_versions(schedule).values()) == {1}
    assert {read.staleness for read in reads(schedule)} == {0}
    assert not is_consistent(schedule)


def test_each_stage_of_a_rank_is_counted_by_itself():
    rows = [[forward(0, 0), forward(1, 0), Step(1), Step(1), backward(1, 0), backward(0, 0), Step(0)]]
    assert live_versions(make_schedule("x", 2, 1, rows)) == {(0, 0): 1, (0, 1): 2}


def test_replicas_hold_their_own_versions():
    assert live_versions(replicated()) == {(0, 0): 1, (1, 1): 1, (2, 0): 1, (3, 1): 1}


@pytest.mark.parametrize("schedule", [gpipe(3, 5), one_f_one_b(4, 3), interleaved(2, 6, 3), pipedream(4, 9)], ids=str)
def test_in_flight_counts_forwards_ahead_of_their_backwards(schedule):
    assert in_flight(schedule) == tuple(most_in_flight(schedule))


def test_a_split_backward_ends_with_its_weights():
    split = [Compute(Phase.BACKWARD_INPUT, 0, 0), forward(0, 1), Compute(Phase.BACKWARD_WEIGHT, 0, 0)]
    rest = [Compute(Phase.BACKWARD_INPUT, 0, 1), Compute(Phase.BACKWARD_WEIGHT, 0, 1)]
    assert in_flight(one_rank(forward(0, 0), *split, *rest)) == (2,)


def test_a_stage_that_splits_some_of_its_backwards_ends_each_with_what_it_has():
    assert in_flight(mixed_backwards()) == (1,)


def test_an_empty_list_holds_nothing():
    empty = make_schedule("x", 1, 1, [[]])
    assert in_flight(empty) == (0,)
    assert list(reads(empty)) == []
    assert live_versions(empty) == {}
