"""What Timelines made by hand say of the seconds of ops, posts and messages."""

from dataclasses import replace

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import samples_of, spread_of
from pipesched.schedules import HandOver, ScheduleError, Span, Timeline
from pipesched.schedules.builders import build
from pipesched.schedules.ops import Message, Overlap, Payload, Recv, Send, Step, backward, forward
from tests.hand_timelines import play


def measured(*rows, devices=None, hand_overs=()):
    """Return a Timeline whose rows are lists of (op, posted, start, end)."""
    spans = tuple(Span(rank, *row) for rank, ops in enumerate(rows) for row in ops)
    return Timeline("hand", "measured", spans, devices or tuple(range(len(rows))), hand_overs=hand_overs)


def alone(*seconds):
    """Return one rank's forwards of these seconds, 1 s apart."""
    starts = [sum(seconds[:index]) + index for index in range(len(seconds))]
    return [
        (forward(0, index), start, start, start + took)
        for index, (start, took) in enumerate(zip(starts, seconds, strict=True))
    ]


@pytest.mark.parametrize(
    ("seconds", "mean", "median", "tenth"),
    [([3.0], 3.0, 3.0, 3.0), ([1.0, 2.0, 9.0], 4.0, 2.0, 1.2), ([4.0, 1.0, 3.0, 2.0], 2.5, 2.5, 1.3)],
)
def test_a_spread_has_mean_and_median_and_the_deciles_in_order(seconds, mean, median, tenth):
    spread = spread_of(seconds)

    assert spread.count == len(seconds)
    assert (spread.mean_s, spread.median_s) == (mean, median)
    assert spread.deciles_s[1] == pytest.approx(tenth)
    assert (spread.deciles_s[0], spread.deciles_s[10]) == (min(seconds), max(seconds))
    assert list(spread.deciles_s) == sorted(spread.deciles_s)


@pytest.mark.parametrize(("warmup", "left"), [(0, (9.0, 1.0, 3.0)), (1, (1.0, 3.0)), (2, (3.0,)), (7, (3.0,))])
def test_the_first_ops_of_a_kind_are_left_out_as_long_as_one_is_left(warmup, left):
    samples = samples_of([measured(alone(9.0, 1.0, 3.0))], ["hand"], warmup)

    assert samples.work == {(0, "F"): left}


def test_each_kind_of_each_stage_is_told_apart_over_several_runs():
    first, second = (play(build("gpipe", 2, 2), source="measured"), play(build("zb_h1", 2, 2), source="measured"))

    work = samples_of([first, second], ["first", "second"], 0).work

    assert {kind for stage, kind in work if stage == 1} == {"F", "B", "I", "W", "Step"}
    assert work[0, "F"] == (1.0,) * 4
    assert work[1, "B"] == (2.0,) * 2
    assert work[1, "W"] == (1.0,) * 2


def test_replicas_of_a_stage_are_counted_together():
    row = [(forward(0, 0), 0.0, 0.0, 1.0)], [(forward(0, 1), 0.0, 0.0, 3.0)]

    assert samples_of([measured(*row)], ["hand"], 1).work[0, "F"] == (1.0, 3.0)


def test_an_op_beside_another_rank_of_its_device_does_not_count():
    rows = (
        [(forward(0, 0), 0.0, 0.0, 4.0), (forward(0, 1), 4.0, 4.0, 5.0)],
        [(forward(1, 0), 1.0, 1.0, 2.0), (forward(1, 1), 6.0, 6.0, 8.0)],
    )

    assert samples_of([measured(*rows, devices=(0, 0))], ["hand"], 0).work == {(0, "F"): (1.0,), (1, "F"): (2.0,)}
    assert samples_of([measured(*rows)], ["hand"], 0).work == {(0, "F"): (4.0, 1.0), (1, "F"): (1.0, 2.0)}


MESSAGES = tuple(Message(Payload.ACTIVATION, 0, microbatch) for microbatch in range(2))
HANDED_OVER = measured(
    [
        (forward(0, 0), 0.0, 0.25, 1.0),
        (Send(MESSAGES[0], 1), 1.125, 1.125, 5.0),
        (forward(0, 1), 1.625, 1.625, 2.0),
        (Send(MESSAGES[1], 1), 2.125, 2.125, 6.0),
        (Step(0), 2.625, 2.625, 3.0),
    ],
    [
        (Recv(MESSAGES[0], 0), 0.0, 1.125, 5.0),
        (Recv(MESSAGES[1], 0), 0.5, 1.125, 5.0),
        (forward(1, 0), 1.0, 3.625, 4.0),  # waited 2 s for what had been posted
        (forward(1, 1), 5.0, 5.25, 6.0),  # what was there took 0.25 s
    ],
    hand_overs=(
        HandOver(0, forward(0, 0), 1.0, 1.125),
        HandOver(0, Send(MESSAGES[0], 1), 1.125, 1.625),
        HandOver(0, Send(MESSAGES[1], 1), 2.125, 2.5),
        HandOver(1, Recv(MESSAGES[0], 0), 0.0, 0.75),
    ),
)


def test_what_a_rank_spends_beside_its_ops_is_hand_over():
    hand_over = samples_of([HANDED_OVER], ["hand"], 0).hand_over

    assert hand_over == {"Op": (0.125,), "Recv": (0.75,), "Send": (0.5, 0.375), "Take": (0.25,)}


def test_a_message_that_was_waited_for_travels_from_its_post_to_its_use():
    assert samples_of([HANDED_OVER], ["hand"], 0).messages == (2.0,)


def test_hand_over_that_is_not_told_lies_between_the_ops():
    samples = samples_of([replace(HANDED_OVER, hand_overs=())], ["hand"], 0)

    assert samples.hand_over == {"Op": (0.125, 0.125, 1.0), "Recv": (0.5, 0.5), "Send": (0.5, 0.5), "Take": (0.25,)}
    assert samples.messages == (2.0,)


def test_where_nothing_waits_nothing_is_known_between_ops():
    waited = (HandOver(0, forward(0, 0), 1.0, 2.0),)

    for hand_overs in ((), waited):
        assert samples_of([measured(alone(1.0, 1.0), hand_overs=hand_overs)], ["hand"], 0).hand_over == {}


def test_a_prediction_is_refused():
    with pytest.raises(
        ProfileError, match=r"^mine\.json: got a Timeline that was predicted, expected a measured Timeline"
    ):
        samples_of([play(build("gpipe", 2, 2))], ["mine.json"])


def test_runs_of_other_stages_are_refused():
    timelines = [play(build("gpipe", ranks, 2), source="measured") for ranks in (2, 3)]

    with pytest.raises(ProfileError, match=r"^b: got 3 stages, expected 2 as in a; "):
        samples_of(timelines, ["a", "b"])


def test_a_stage_whose_forwards_are_in_overlaps_alone_is_refused():
    overlap = [(forward(0, 0), 0.0, 0.0, 1.0), (Overlap(forward(1, 0), backward(0, 0)), 1.0, 1.0, 4.0)]

    with pytest.raises(
        ProfileError, match=r"^hand: got no forward of stage 1 alone on its device, .*; give a run of another"
    ):
        samples_of([measured(overlap)], ["hand"])


def test_a_run_without_computations_is_refused():
    with pytest.raises(ScheduleError, match="got a Timeline without computations"):
        samples_of([measured([(Step(0), 0.0, 0.0, 1.0)])], ["hand"])
