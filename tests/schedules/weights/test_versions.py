from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import ScheduleError, make_schedule
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.builders.pipedream import generated_pipedream
from pipesched.schedules.ops import Compute, Overlap, Phase, Step, backward, computes, forward
from pipesched.schedules.weights import staleness
from pipesched.schedules.weights.versions import Agreement, live_versions, looks_ahead, stashing_steps, target, uses
from tests.properties import examples
from tests.schedules.builder_rules import refused
from tests.schedules.hand_schedules import mixed_backwards, replicated

ASYNCHRONOUS = [name for name, entry in CATALOGUE.items() if entry.traits.is_asynchronous]


def one_rank(*ops, num_microbatches: int = 2):
    return make_schedule("x", 1, num_microbatches, [list(ops)])


def all_uses(schedule):
    return [use for row in schedule.ops for use in uses(row, in_order=False)]


def brute_force(row):
    """What is held when each Compute runs: the newest version, and the older ones that it or a later op reads."""
    held_versions = []
    for place, op in enumerate(row):
        for part in computes(op):
            steps = sum(isinstance(other, Step) and other.stage == part.stage for other in row[:place])
            later = [other for after in row[place:] for other in computes(after) if other.stage == part.stage]
            held_versions.append(
                (part, tuple(sorted({steps} | {other.version for other in later if other.version < steps})))
            )
    return held_versions


@st.composite
def random_lists(draw, in_order=True):
    """One rank's list of one or two stages; in order, the versions never go down within a phase."""
    stages = range(draw(st.integers(1, 2)))
    row = [op for k in stages for op in (forward(k, 0), backward(k, 0))]
    steps = dict.fromkeys(stages, 0)
    count = {(k, letter): 1 for k in stages for letter in "FB"}
    latest = dict.fromkeys(count, 0)
    for letter, k in draw(st.lists(st.tuples(st.sampled_from("FBS"), st.sampled_from(stages)), max_size=40)):
        if letter == "S":
            row.append(Step(k))
            steps[k] += 1
        elif letter == "F" or count[k, "B"] < count[k, "F"]:
            latest[k, letter] = draw(st.integers(latest[k, letter] if in_order else 0, steps[k]))
            row.append((forward if letter == "F" else backward)(k, count[k, letter], latest[k, letter]))
            count[k, letter] += 1
    return tuple(row)


@examples(50)
@given(random_lists())
def test_what_is_held_is_the_newest_version_and_every_older_one_that_is_still_read(row):
    assert [(use.op, use.held) for use in uses(row, in_order=True)] == brute_force(row)


@examples(50)
@given(random_lists(in_order=False))
def test_versions_may_go_back_in_a_list_that_is_known_to_its_end(row):
    assert [(use.op, use.held) for use in uses(row, in_order=False)] == brute_force(row)


@pytest.mark.parametrize("name", CATALOGUE)
def test_what_is_held_is_the_same_whether_the_list_is_known_to_its_end_or_not(name):
    for p, m in ((1, 4), (3, 12)):
        try:
            schedule = build(name, p, m)
        except ScheduleError:
            continue  # not on so few ranks
        for row in schedule.ops:
            stage_uses = list(uses(row, in_order=True))
            assert stage_uses == list(uses(row, in_order=False))
            assert [(use.op, use.held) for use in stage_uses] == brute_force(row)


def test_a_use_knows_the_steps_before_it_and_those_before_its_gradient():
    row = one_rank(forward(0, 0), forward(0, 1), backward(0, 0), Step(0), forward(0, 2, 1), backward(0, 1), Step(0))
    rows = [(str(use.op), use.current, use.update, use.staleness) for use in all_uses(row)]
    assert rows == [
        ("0F0", 0, 0, 0),
        ("0F1", 0, 1, 1),
        ("0B0", 0, 0, 0),
        ("0F2@1", 1, None, None),
        ("0B1", 1, 1, 1),
    ]


def test_both_parts_of_an_overlap_hold_what_the_second_reads():
    schedule = one_rank(forward(0, 0), Step(0), Overlap(forward(0, 1, 1), backward(0, 0)))
    assert [use.held for use in all_uses(schedule)] == [(0,), (0, 1), (0, 1)]


def test_a_gradient_that_is_split_is_applied_after_its_weights_part():
    split = [Compute(Phase.BACKWARD_INPUT, 0, 0), Step(0), Compute(Phase.BACKWARD_WEIGHT, 0, 0)]
    assert [use.update for use in all_uses(one_rank(forward(0, 0), *split))] == [1, 1, 1]


@pytest.mark.parametrize(
    ("backwards", "expected"),
    [
        ([backward(0, 0)], Agreement.SAME),
        ([backward(0, 0, 1)], Agreement.DIFFERENT),
        ([Compute(Phase.BACKWARD, 0, 0, 1, lookahead=1)], Agreement.DIFFERENT),
        ([Compute(Phase.BACKWARD, 0, 0, lookahead=1)], Agreement.SAME),  # nothing to predict from before a Step
        ([Compute(Phase.BACKWARD_INPUT, 0, 0), Compute(Phase.BACKWARD_WEIGHT, 0, 0)], Agreement.SAME),
        ([Compute(Phase.BACKWARD_INPUT, 0, 0), Compute(Phase.BACKWARD_WEIGHT, 0, 0, 1)], Agreement.DIFFERENT),
        ([Compute(Phase.RECOMPUTE, 0, 0, 1), backward(0, 0)], Agreement.DIFFERENT),
    ],
)
def test_all_phases_of_a_microbatch_are_compared(backwards, expected):
    schedule = one_rank(forward(0, 0), Step(0), *backwards)
    assert {use.agreement for use in all_uses(schedule)} == {expected}


def test_predictions_of_one_version_agree_but_are_not_the_same():
    ahead = Compute(Phase.FORWARD, 0, 0, version=1, lookahead=2)
    for second, expected in (
        (backward(0, 0, 3), Agreement.PREDICTED),
        (Compute(Phase.BACKWARD, 0, 0, 2, 1), Agreement.PREDICTED),
        (Compute(Phase.BACKWARD, 0, 0, 2, 2), Agreement.DIFFERENT),
        (Compute(Phase.BACKWARD, 0, 0, 1, 2), Agreement.SAME),
    ):
        schedule = one_rank(Step(0), ahead, Step(0), Step(0), second)
        assert {use.agreement for use in all_uses(schedule)} == {expected}


def test_look_ahead_shortens_the_lag_once_there_is_something_to_predict_from():
    early, later = Compute(Phase.FORWARD, 0, 0, 0, 2), Compute(Phase.FORWARD, 0, 1, 1, 2)
    assert (looks_ahead(early), target(early)) == (False, 0)
    assert (looks_ahead(later), target(later)) == (True, 3)
    schedule = one_rank(early, Step(0), later, Step(0), backward(0, 0, 2), backward(0, 1, 2))
    assert [(use.staleness, use.lag) for use in all_uses(schedule)] == [(2, 2), (1, -1), (0, 0), (0, 0)]


def test_replicas_hold_their_own_versions():
    assert live_versions(replicated()) == {(0, 0): 1, (1, 1): 1, (2, 0): 1, (3, 1): 1}


def test_a_split_backward_ends_with_its_weights():
    split = [Compute(Phase.BACKWARD_INPUT, 0, 0), forward(0, 1), Compute(Phase.BACKWARD_WEIGHT, 0, 0)]
    rest = [Compute(Phase.BACKWARD_INPUT, 0, 1), Compute(Phase.BACKWARD_WEIGHT, 0, 1)]
    assert staleness(one_rank(forward(0, 0), *split, *rest)).in_flight == (2,)


def test_a_stage_that_splits_some_of_its_backwards_ends_each_with_what_it_has():
    assert staleness(mixed_backwards()).in_flight == (1,)


def test_an_empty_list_holds_nothing():
    empty = make_schedule("x", 1, 1, [[]])
    assert all_uses(empty) == []
    assert live_versions(empty) == {}


def test_a_version_that_is_not_there_is_refused_with_the_op():
    for row, in_order, text in (
        ([forward(0, 0, 1)], False, "0F0@1 after 0 steps of stage 0: version 1 is not made yet"),
        (
            [forward(0, 0), Step(0), forward(0, 1, 1), forward(0, 2)],
            True,
            "0F2 after 1 steps of stage 0: version 0 is freed",
        ),
    ):
        with refused(text, "check the schedule"):
            list(uses(row, in_order=in_order))


def test_a_list_without_an_end_is_read_no_further_than_needed():
    read = []

    def endless():
        for op in generated_pipedream(4, 10**9).lists[0]:
            read.append(op)
            yield op

    first_uses = list(islice(uses(endless(), in_order=True), 1000))
    assert len(first_uses) == 1000
    assert [use.op for use in first_uses] == [op for op in read if isinstance(op, Compute)][:1000]
    assert len(read) < 1000 * 3 / 2 + 20


@given(random_lists(in_order=False))
def test_a_step_stashes_what_a_later_op_reads(row):
    steps = [place for place, op in enumerate(row) if isinstance(op, Step)]
    expected = {
        place
        for place in steps
        for after in row[place + 1 :]
        for part in computes(after)
        if part.stage == row[place].stage and part.version == row[:place].count(row[place])
    }
    assert stashing_steps(row) == expected
