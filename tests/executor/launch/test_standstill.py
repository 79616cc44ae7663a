"""Who is named when nobody moves: the rank at which all waits end, or a circle."""

import sys
import tempfile
import time

import pytest

from pipesched.executor import EVERYBODY, ITS_CHECKPOINT, NOBODY, PeerLost, waiting_for
from pipesched.executor.launch import RankState, lost_messages, standstill, standstill_table
from pipesched.executor.launch.standstill import Stillness, reported_standstill
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute, Message, Payload, Phase, Send, backward, forward
from pipesched.schedules.transforms import recompute


def state(rank, whom=NOBODY, waits_s=0.0, *, at_op_s=3.0, is_stopped=False, ending=None):
    return RankState(
        text=str(forward(rank, 5)), at_op_s=at_op_s, whom=whom, waits_s=waits_s, rank=rank, is_stopped=is_stopped,
        ending=ending,
    )  # fmt: skip


def told(*states):
    return str(standstill({state.rank: state for state in states}))


CHAIN = (state(0, 1, 2.5), state(1, 2, 2.75), state(2), state(3, 2, 2.0))


def test_the_rank_at_which_all_waits_end_is_named_first_and_then_who_waits_for_it():
    assert told(*CHAIN) == (
        "rank 2 failed at 2F5 (micro-batch 5): it has stood still for 3.0 s; "
        "rank 1 at 1F5 has waited 2.8 s for rank 2, rank 3 at 3F5 has waited 2.0 s for rank 2, "
        "rank 0 at 0F5 has waited 2.5 s for rank 1; if an op takes this long, try a longer timeout"
    )


@pytest.mark.parametrize("whom", [NOBODY, 1])
def test_a_rank_that_is_stopped_waits_for_nobody_whatever_it_says(whom):
    message = told(*CHAIN[:2], state(2, whom, 2.0, is_stopped=True), CHAIN[3])
    assert message.startswith("rank 2 failed at 2F5 (micro-batch 5): its process is stopped by a signal, and has stood")
    assert "rank 0 at 0F5 has waited 2.5 s for rank 1" in message
    assert "timeout" not in message


def test_a_rank_that_left_before_the_end_is_named_with_how():
    message = told(*CHAIN[:2], state(2, ending="the process ended with exit code 0"), CHAIN[3])
    assert message.startswith(
        "rank 2 failed at 2F5 (micro-batch 5): the process ended with exit code 0 before the end of its op list"
    )


def test_a_rank_whose_checkpoint_is_not_written_is_named_with_that():
    message = told(state(0, EVERYBODY, 300.0), state(1, ITS_CHECKPOINT, 301.0))
    assert message.startswith("rank 1 failed at 1F5 (micro-batch 5): its checkpoint has not been written in 301.0 s; ")


def test_ranks_may_write_a_checkpoint_for_as_long_as_they_may_take_to_start(monkeypatch):
    """And when it is written, what they do next may take the whole timeout."""
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    stillness = Stillness(2.0)

    def is_over_at(at_s, *whoms, is_stopped=False):
        now_s[0] = at_s
        return stillness.is_over([RankState(num_ops=5, whom=whom) for whom in whoms], lambda: is_stopped)

    assert not is_over_at(0.0, NOBODY, NOBODY)
    for at_s in (1.0, 100.0, 250.0):
        assert not is_over_at(at_s, EVERYBODY, ITS_CHECKPOINT)
    assert is_over_at(250.0, EVERYBODY, ITS_CHECKPOINT, is_stopped=True)
    assert not is_over_at(251.0, EVERYBODY, NOBODY)
    assert is_over_at(253.0, EVERYBODY, NOBODY)
    assert is_over_at(301.0, EVERYBODY, ITS_CHECKPOINT)


def test_a_circle_is_told_as_one():
    circle = (
        state(0, 1, 1.0),
        state(1, 2, 3.0)._replace(text=str(backward(1, 0))),
        state(2, 1, 2.5),
        state(3, EVERYBODY, 9.0),
    )
    assert told(*circle) == (
        "rank 1 failed at 1B0 (micro-batch 0): the ranks wait for each other in a circle: "
        "rank 1 at 1B0 has waited 3.0 s for rank 2, rank 2 at 2F5 has waited 2.5 s for rank 1"
    )


@pytest.mark.parametrize("at_op_s", [0.1, 9.0])
def test_where_all_others_have_come_the_one_that_has_not_is_named(at_op_s):
    message = told(state(0, EVERYBODY, 4.0), state(1, at_op_s=at_op_s), state(2, EVERYBODY, 3.0))
    assert message.startswith(f"rank 1 failed at 1F5 (micro-batch 5): it has stood still for {at_op_s} s")
    assert "rank 2 at 2F5 has waited 3.0 s for all others" in message


def test_of_many_that_wait_some_are_told():
    message = told(state(0), *(state(rank, rank - 1, 3.0) for rank in range(1, 64)))
    assert message.startswith("rank 0 failed")
    assert "rank 8 at 8F5" in message
    assert "rank 9 at" not in message
    assert "and 55 more; if" in message


def test_the_table_has_a_line_for_each_rank():
    head, *lines = standstill_table({state.rank: state for state in CHAIN}).splitlines()
    assert head.split() == ["rank", "op", "for", "waits", "for", "for", "process"]
    assert lines[0].split() == ["0", "0F5", "3.0", "s", "rank", "1", "2.5", "s", "runs"]
    assert lines[2].split() == ["2", "2F5", "3.0", "s", "-", "-", "runs"]


def test_where_a_message_was_sent_and_has_not_come_the_link_is_named(monkeypatch):
    ops = lower(build("gpipe", 2, 4)).ops
    places = [[str(op) for op in row].index(name) for row, name in zip(ops, ("0B3", "1F2"), strict=True)]
    waiting = {0: state(0, 1, 2.0), 1: state(1, 0, 2.5)}
    states = {
        rank: waiting[rank]._replace(place=place, text=str(ops[rank][place])) for rank, place in enumerate(places)
    }
    lost = lost_messages(states, ops.__getitem__)
    assert lost == {1: Message(Payload.ACTIVATION, 0, 2)}
    assert str(standstill(states, lost)) == (
        "rank 1 failed at 1F2 (micro-batch 2): it has waited 2.5 s for the activation 2 of stage 0, which rank 0 has "
        "sent: the link between them does not deliver in time; rank 0 at 0B3 has waited 2.0 s for rank 1"
    )
    place = ops[0].index(Send(lost[1], 1))
    not_sent = {**states, 0: states[0]._replace(place=place, text=str(ops[0][place]), whom=NOBODY)}
    assert lost_messages(not_sent, ops.__getitem__) == {}
    stopped = {**states, 0: states[0]._replace(is_stopped=True)}
    assert lost_messages(stopped, ops.__getitem__) == {}
    monkeypatch.setattr(sys.modules[lost_messages.__module__], "_LONGEST_LOOK_S", 0.0)
    assert lost_messages(states, ops.__getitem__) == {}, "to go through the lists takes too long"


def test_a_late_recompute_waits_for_a_gradient_that_its_backward_still_needs():
    ops = lower(recompute(build("gpipe", 2, 4), None, "late")).ops
    gradient = Message(Payload.GRADIENT, 1, 1)
    places = [ops[0].index(Compute(Phase.RECOMPUTE, 0, 1, is_late=True)), ops[1].index(Send(gradient, 0)) + 1]
    names = [str(row[place]) for row, place in zip(ops, places, strict=True)]
    waiting = {0: state(0, 1, 2.0)._replace(place=places[0], text=names[0])}
    states = waiting | {1: state(1)._replace(place=places[1], text=names[1])}
    assert lost_messages(states, ops.__getitem__) == {0: gradient}
    before = ops[1].index(Send(gradient, 0))
    assert lost_messages({**states, 1: states[1]._replace(place=before)}, ops.__getitem__) == {}


def test_what_gloo_says_is_told_without_where_in_gloo_and_its_advice():
    said = (
        "[/pytorch/gloo/tcp/pair.cc:553] Connection closed by peer [::1]:5. This is typically caused by a crash. GLHF!"
    )
    told = r"^waited for F5 of rank 0: Connection closed by peer \[::1\]:5$"
    with pytest.raises(PeerLost, match=told), waiting_for("F5 of rank 0"):
        raise RuntimeError(said)


def gone(error):
    assert "pipesched-standstill-" in str(error)
    raise RuntimeError("the store is gone")


def test_a_report_of_which_nobody_is_told_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    states = {0: RankState(rank=0, at_op_s=3.0, is_stopped=True)}
    with pytest.raises(RuntimeError, match="the store is gone"):
        reported_standstill(states, lambda rank: (), gone, is_on_cpus=True)
    assert not [*tmp_path.iterdir()]
