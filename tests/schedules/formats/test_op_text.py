import re

import pytest
from hypothesis import given

from pipesched.schedules import ScheduleError
from pipesched.schedules.formats.op_text import NO_PEER, op_text, parse_op, parse_op_with_peer
from pipesched.schedules.ops import (
    Average,
    Compute,
    Message,
    Overlap,
    Payload,
    Phase,
    Recv,
    Reduce,
    Reshard,
    Send,
    Step,
    Unshard,
)
from tests.schedules.builder_rules import refused_file
from tests.schedules.formats.random_ops import ops

F, B = Phase.FORWARD, Phase.BACKWARD


@pytest.mark.parametrize(
    ("text", "op"),
    [
        ("2F0", Compute(F, 2, 0)),
        ("2B0", Compute(B, 2, 0)),
        ("2I0", Compute(Phase.BACKWARD_INPUT, 2, 0)),
        ("2W0", Compute(Phase.BACKWARD_WEIGHT, 2, 0)),
        ("2R10", Compute(Phase.RECOMPUTE, 2, 10)),
        ("0F5@2", Compute(F, 0, 5, 2)),
        ("0F5@2+3", Compute(F, 0, 5, 2, 3)),
        ("0F5@0+3", Compute(F, 0, 5, 0, 3)),
        ("(0F3;3B1)OVERLAP_F_B", Overlap(Compute(F, 0, 3), Compute(B, 3, 1))),
        ("1SEND_F3>2", Send(Message(Payload.ACTIVATION, 1, 3), 2)),
        ("2RECV_F3<1", Recv(Message(Payload.ACTIVATION, 1, 3), 1)),
        ("2SEND_B3>1", Send(Message(Payload.GRADIENT, 2, 3), 1)),
        ("1RECV_B3<2", Recv(Message(Payload.GRADIENT, 2, 3), 2)),
        ("0UNSHARD", Unshard(0)),
        ("0RESHARD", Reshard(0)),
        ("0REDUCE_GRAD", Reduce(0)),
        ("0STEP", Step(0)),
        ("12AVERAGE", Average(12)),
    ],
)
def test_every_kind_of_op_reads_and_writes_as_the_table_says(text, op):
    """`str` has PyTorch's text, without the peer, and ours only where PyTorch has none."""
    assert parse_op(text) == op
    assert op_text(op) == text
    assert str(op) == re.sub("[<>].*", "", text)


def test_a_message_without_a_peer_reads_as_one_whose_peer_is_not_said():
    assert parse_op("1SEND_F3") == Send(Message(Payload.ACTIVATION, 1, 3), NO_PEER)
    assert parse_op("1RECV_B3") == Recv(Message(Payload.GRADIENT, 2, 3), NO_PEER)


def test_a_message_without_a_peer_is_refused_where_the_peer_must_be_said():
    with pytest.raises(ScheduleError, match="got '1SEND_F3', expected the rank of the peer at the end; try 1SEND_F3>0"):
        parse_op_with_peer("1SEND_F3")


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "F", "2F", "F0", "2f0", "2F0junk", "junk2F0", " 2F0", "2F0 ", "2F0\n", "2F-1", "-2F0", "+2F0", "2 F0",
        "2F0@", "2F0@1+", "2F0+1", "2F0@-1", "1234567890F0", "0F1234567890", "\u0662F0", "2F\u0660", "2X0", "0SEND_F",
        "0SEND_X1",
        "0SEND_F1<1", "1RECV_F1>0", "0SEND_F1>", "0UNSHARD0", "0unshard", "UNSHARD", "0STEP1", "()OVERLAP_F_B",
        "(0F0)OVERLAP_F_B", "(0F0;)OVERLAP_F_B", "(0F0;1B0;2B0)OVERLAP_F_B", "(0F0;1B0)", "(0F0;1B0)OVERLAP",
        "(0F0;1SEND_F0)OVERLAP_F_B", "((0F0;1B0)OVERLAP_F_B;1B0)OVERLAP_F_B", "(0F0; 1B0)OVERLAP_F_B", "0RECV_F1",
        "0SEND_B1", "2F0\x00", "2F0\u2028", "F" * 100_000, "(" * 100_000,
    ],
)  # fmt: skip
def test_all_else_is_refused(text):
    with refused_file("got "):
        parse_op(text)


@given(ops(num_stages=12, num_microbatches=1000, num_ranks=12))
def test_any_op_reads_back_from_its_text(op):
    assert parse_op(op_text(op)) == op
    assert parse_op_with_peer(op_text(op)) == op
