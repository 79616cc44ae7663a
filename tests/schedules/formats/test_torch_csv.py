from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import Schedule, ScheduleError, make_schedule
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.pipedream import pipedream
from pipesched.schedules.formats import torch_csv
from pipesched.schedules.formats.torch_csv import read_csv, read_csv_text, write_csv, write_csv_comms
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
    backward,
    computes,
    forward,
)
from tests.schedules.builder_rules import refused, refused_file

COMPUTE = "0F0,0F1,,,0B0,,0B1\r\n,1F0,1B0,1F1,1B1\r\n"
COMMS = (
    "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\r\n"
    "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1I0,1SEND_B0,1F1,1B1,1SEND_B1,1W0,1REDUCE_GRAD,1RESHARD\r\n"
)
ACT0, GRAD0 = Message(Payload.ACTIVATION, 0, 0), Message(Payload.GRADIENT, 1, 0)


def refusal(text: str) -> str:
    with pytest.raises(ScheduleError) as caught:
        read_csv_text(text, "s.csv")
    message = str(caught.value)
    assert message.startswith("s.csv: ")
    assert len(message.splitlines()) == 1
    return message


def test_a_compute_only_file_reads_as_its_rows_and_a_step_for_each_stage():
    schedule = read_csv_text(COMPUTE, "dir/small.csv")
    f, b = forward, backward
    assert schedule == Schedule(
        "small",
        2,
        2,
        ((f(0, 0), f(0, 1), b(0, 0), b(0, 1), Step(0)), (f(1, 0), b(1, 0), f(1, 1), b(1, 1), Step(1))),
        (0, 1),
    )


def test_lf_quotes_and_blanks_around_a_cell_change_nothing():
    plain = read_csv_text(COMPUTE, "s.csv")
    assert read_csv_text(COMPUTE.replace("\r\n", "\n"), "s.csv") == plain
    assert read_csv_text(COMPUTE.replace("0F1", '"0F1"').replace("1B0", " 1B0 "), "s.csv") == plain


@pytest.mark.parametrize("text", [COMMS, COMPUTE.replace(",,,", ",").replace(",,", ",").replace("\n,", "\n")])
def test_a_file_without_idle_cells_writes_back_byte_for_byte(text):
    write = write_csv_comms if "SEND" in text else write_csv
    assert write(read_csv_text(text, "s.csv")) == text
    assert write(read_csv_text(text, "s.csv", steps=False)) == text


def test_the_compute_only_dialect_leaves_out_all_but_computations():
    assert write_csv(read_csv_text(COMMS, "s.csv")) == "0F0,0F1,0B0,0B1\r\n1F0,1I0,1F1,1B1,1W0\r\n"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (COMPUTE.replace("0F1", "0F1junk"), "row 1, cell 2", "0F1junk"),
        (COMPUTE.replace("0F1", "0F01"), "row 1, cell 2", "without leading zeros"),
        (COMPUTE.replace("0F1", "0F\u0661"), "row 1, cell 2", "0F\u0661"),
        (COMPUTE.replace("1F1", "1F0"), "row 2, cell 4", "1F0 again"),
        (COMPUTE.replace("1F1", "0F1"), "row 2, cell 4", "expected all of stage 0 on rank 0"),
        (COMPUTE.replace("1F1", ""), "row 2, stage 1, micro-batch 1", "no F"),
        (COMPUTE.replace("1B1", ""), "row 2, stage 1, micro-batch 1", "no backward"),
        (COMPUTE.replace("1B1", "1I1"), "row 2, stage 1, micro-batch 1", "I without W"),
        (COMPUTE.replace("1B1", "1W1"), "row 2, stage 1, micro-batch 1", "W without I"),
        (COMPUTE.replace("1B1", "1B1,1I1"), "row 2, stage 1, micro-batch 1", "B beside I or W"),
        (COMPUTE.replace("1B1", "1B1,1B7"), "row 2, stage 1, micro-batch 7", "a backward but no F"),
        (COMPUTE.replace("1F1", "1F9").replace("0F1", "0F9"), "micro-batches", "up to 9 without 1"),
        (COMPUTE.replace("1F", "2F").replace("1B", "2B"), "stages", "up to 2 without 1"),
        (COMPUTE + "\r\n", "row 3", "no computation"),
        (COMPUTE.replace("0F1", "0F1@1"), "row 1, cell 2", "a weight version"),
        (COMPUTE.replace("0F1", "0R1"), "row 1, cell 2", "a recompute"),
        (COMPUTE.replace("1B1", "1B1,1STEP"), "row 2, cell 6", "an optimizer step"),
        (COMPUTE.replace("1B1", "1B1,1AVERAGE"), "row 2, cell 6", "AVERAGE"),
        (COMMS.replace("0F1,", "0F1,,"), "row 1, cell 5", "got an empty cell"),
        (COMMS.replace("\r\n1UN", ",\r\n1UN"), "row 1, cell 12", "got an empty cell"),
        (COMMS.replace("0SEND_F0", "0SEND_F0>1"), "row 1, cell 3", "a peer"),
        (COMMS.replace("1SEND_B0", "1SEND_F0"), "row 2, cell 6", "between stages 0 to 1"),
        (COMMS.replace("0SEND_F0", "0SEND_B0"), "row 1, cell 3", "stage 0"),
        (COMMS.replace("0SEND_F0", "1SEND_B0"), "row 1, cell 3", "expected a stage that rank 0 computes"),
        (COMMS.replace("0SEND_F0", "0SEND_F5"), "row 1, cell 3", "expected micro-batches 0 to 1"),
        (COMMS.replace("0SEND_F1", "0SEND_F0"), "row 1, cell 5", "0SEND_F0 again"),
        (COMMS.replace("0RESHARD", "1RESHARD"), "row 1, cell 11", "expected a stage that rank 0 computes"),
        (COMMS.replace("0B1,0REDUCE_GRAD", "0REDUCE_GRAD,0B1"), "row 1, cell 9", "expected a place after 0B1"),
        (COMMS.replace("0REDUCE_GRAD", "0REDUCE_GRAD,0REDUCE_GRAD"), "row 1, cell 11", "0REDUCE_GRAD again"),
        ("0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0\n", "row 1, cell 2", "both of rank 0"),
        ('0F0,"0B0\n', "line 1", "got no CSV"),
        ("0F0,0B0" + " " * 200_000, "line 1", "got no CSV"),
        ("", "", "got an empty file"),
        ("\r\n \n", "", "got an empty file"),
        ("\ufeff0F0,0B0\n", "row 1, cell 1", "ufeff0F0"),
        ("0F0,0B0\x00\n", "row 1, cell 2", "0B0"),
        ("0F999999999,0B999999999\n", "micro-batches", "without 0"),
        ("(0F0;0F0)OVERLAP_F_B,0B0\n", "row 1, cell 1", "0F0 again"),
    ],
)
def test_a_fault_is_named_with_its_place(text, place, words):
    with refused_file("s.csv: ", f"{place}: got" if place else "s.csv: got", words):
        read_csv_text(text, "s.csv")


def test_faults_are_collected_and_three_of_them_shown():
    message = refusal("0F0,0f1,0b0,0b1,0x1,0y1\n")
    assert [f"cell {cell}: got" in message for cell in range(1, 7)] == [False, True, True, True, False, False]
    assert message.endswith("; and 2 more")


def test_more_cells_than_the_limit_are_refused_before_they_are_parsed(monkeypatch):
    monkeypatch.setattr(torch_csv, "MAX_CELLS", 3)
    assert "got more than 3 cells" in refusal("0F0,0F1,0B0,0B1\n")
    assert "got more than 3 cells" in refusal("0F0,0B0\n\n\n")


def test_a_file_is_named_by_its_stem_and_faults_by_its_path(tmp_path):
    path = tmp_path / "my order.csv"
    path.write_bytes(COMMS.encode())
    assert read_csv(path).name == "my order"
    path.write_bytes(b"0F0,0B\xff\n")
    with pytest.raises(ScheduleError, match=r"my order\.csv: line 1, byte 7: got 0xff, expected UTF-8"):
        read_csv(path)


ONE = [forward(0, 0), backward(0, 0)]


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (make_schedule("s", 1, 2, [ONE, [forward(0, 1), backward(0, 1)]]), "expected all of stage 0 on rank 0"),
        (make_schedule("s", 1, 1, [[forward(0, 0, 1), backward(0, 0, 1)]]), "a weight version"),
        (make_schedule("s", 1, 1, [[Compute(Phase.FORWARD, 0, 0, 0, 2), backward(0, 0)]]), "a weight version"),
        (make_schedule("s", 1, 1, [[forward(0, 0), Compute(Phase.RECOMPUTE, 0, 0), backward(0, 0)]]), "a recompute"),
        (make_schedule("s", 1, 1, [[*ONE, Average(0)]]), "AVERAGE"),
        (make_schedule("s", 1, 1, [[forward(0, 0), Step(0), backward(0, 0)]]), "rank 0, op 1: got 0STEP"),
        (make_schedule("s", 1, 1, [[*ONE, Step(0), Step(0)]]), "rank 0, op 2: got 0STEP"),
        (make_schedule("s", 1, 1, [[*ONE, Step(1)]]), "rank 0, op 2: got 1STEP"),
        (make_schedule("s", 1, 1, [ONE], (3,)), "no devices"),
        (make_schedule("s", 2, 1, [ONE]), "stages: got 1 stages up to 0 without 1"),
        (make_schedule("s", 1, 2, [ONE]), "micro-batches: got 1"),
        (make_schedule("s", 1, 1, [[*ONE, forward(1, 0), backward(1, 0)]]), "got 2 stages up to 1"),
        (make_schedule("s", 1, 1, [[forward(0, 0)]]), "no backward"),
        (make_schedule("s", 1, 2, [[forward(0, 1), forward(0, 0), backward(0, 0), backward(0, 1)]]),
         "rank 0, op 0: got 0F1, expected 0F0: PyTorch's runtime knows losses by their order"),
        (pipedream(2, 4), "; try our JSON (schedules.formats.to_json)"),
    ],
)  # fmt: skip
def test_what_the_csv_cannot_say_is_refused_with_the_reason(schedule, words):
    for write in (write_csv, write_csv_comms):
        with refused(words, start=f"schedule {schedule.name!r}: "):
            write(schedule)


def test_a_message_to_another_rank_than_its_stage_has_is_refused():
    schedule = read_csv_text(COMMS, "s.csv")
    row = [Send(op.message, 7) if isinstance(op, Send) else op for op in schedule.ops[0]]
    with pytest.raises(ScheduleError, match=r"rank 0, op 2: got 0SEND_F0, peer 7, expected peer 1"):
        write_csv_comms(replace(schedule, lists=(tuple(row), schedule.ops[1])))


def test_a_reduce_before_the_last_backward_is_refused():
    schedule = read_csv_text(COMMS, "s.csv")
    row = (Reduce(0), *(op for op in schedule.ops[0] if op != Reduce(0)))
    with pytest.raises(ScheduleError, match=r"rank 0, op 0: got 0REDUCE_GRAD, expected a place after 0B1"):
        write_csv_comms(replace(schedule, lists=(row, schedule.ops[1])))


def test_the_comms_dialect_of_a_schedule_that_says_no_communication_is_refused():
    with pytest.raises(ScheduleError, match="try lowering the schedule first"):
        write_csv_comms(gpipe(2, 2))
    assert write_csv_comms(gpipe(1, 1)).startswith("0F0,0B0")


def _put_forwards_in_order(row, stage):
    """PyTorch's runtime knows the losses of the last stage by their order."""
    forwards = [Compute(Phase.FORWARD, stage, microbatch) for microbatch in range(len(row))]
    places = [index for index, op in enumerate(row) if {*computes(op)} & {*forwards}]
    for index, op in zip(
        places, sorted((row[i] for i in places), key=lambda op: computes(op)[0].microbatch), strict=True
    ):
        row[index] = op


@st.composite
def _lists(draw):
    """Random complete lists, in no order that could run: each stage on one rank, B or I and W."""
    num_ranks, num_microbatches = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    num_stages = draw(st.integers(num_ranks, 3 * num_ranks))
    home = draw(st.permutations([stage % num_ranks for stage in range(num_stages)]))
    rows = [[] for _ in range(num_ranks)]
    for stage in range(num_stages):
        rows[home[stage]] += [Unshard(stage), Unshard(stage), Reshard(stage)]
        for microbatch in range(num_microbatches):
            ops = [Compute(Phase.FORWARD, stage, microbatch)]
            phases = draw(st.sampled_from(("B", "IW")))
            ops += [Compute(Phase(letter), stage, microbatch) for letter in phases]
            rows[home[stage]] += [Overlap(*ops[:2]), *ops[2:]] if draw(st.booleans()) else ops
            for payload in Payload:
                message = Message(payload, stage, microbatch)
                other = message.receiver
                if 0 <= other < num_stages and home[other] != home[stage]:
                    rows[home[stage]].append(Send(message, home[other]))
                    rows[home[other]].append(Recv(message, home[stage]))
    rows = [draw(st.permutations(row)) for row in rows]
    _put_forwards_in_order(rows[home[-1]], num_stages - 1)
    for word in (Reduce, Step):
        for stage in range(num_stages):
            rows[home[stage]].append(word(stage))
    return make_schedule("random", num_stages, num_microbatches, rows)


def test_many_stages_with_a_micro_batch_each_are_refused_without_going_through_all_pairs():
    message = refusal(",".join(f"{number}F{number}" for number in range(10_000)))
    assert "got 10000 stages * 10000 micro-batches" in message


@given(_lists())
def test_any_complete_lists_read_back_from_the_comms_dialect_and_their_computations_from_the_other_one(schedule):
    assert read_csv_text(write_csv_comms(schedule), "random.csv") == schedule
    rows = tuple(tuple(op for op in row if isinstance(op, Compute | Overlap | Step)) for row in schedule.ops)
    assert read_csv_text(write_csv(schedule), "random.csv") == replace(schedule, lists=rows, is_lowered=False)


@pytest.mark.parametrize(
    ("first", "advice"),
    [
        ("0F0;0F1;0B0", "try commas in place of the semicolons"),
        ("0f0,0f1,0b0", "try capital letters"),
        ("rank0,rank1,rank2", "try without this line if it is a header; a table of costs is no schedule"),
        ("stage,fwd_ms,bwd_ms", "try without this line if it is a header; a table of costs is no schedule"),
    ],
)
def test_a_row_of_another_table_is_told_once(first, advice):
    with pytest.raises(ScheduleError) as raised:
        read_csv_text(f"{first}\n1F0,1B0", "mine.csv")
    message = str(raised.value)
    assert message.startswith("mine.csv: row 1: got ")
    assert message.endswith(advice)
    assert message.count("row") == 1
