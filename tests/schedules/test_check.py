import random
from collections.abc import Callable

import pytest

from schedules.catalogue import CATALOGUE
from schedules.check import Finding, check, require_runnable
from schedules.gpipe import gpipe
from schedules.interleaved import interleaved
from schedules.lower import lower
from schedules.naive import naive
from schedules.one_f_one_b import one_f_one_b, one_f_one_b_afp
from schedules.op import Compute, Message, Op, Overlap, Payload, Phase, Recv, Reduce, Send, Step
from schedules.pipedream import pipedream
from schedules.schedule import Schedule, ScheduleError, backward, forward, make_schedule
from tests.schedules.brute_force import delivers, finishes
from tests.schedules.hand_schedules import mixed_backwards, replicated, v_shaped

NUM_MUTANTS = 300


def found(schedule: Schedule, kind: str) -> list[tuple[int | None, int | None, str]]:
    return [(finding.rank, finding.index, finding.text) for finding in check(schedule) if finding.kind == kind]


def edited(schedule: Schedule, rank: int, edit: Callable[[list[Op]], object]) -> Schedule:
    rows = [list(row) for row in schedule.ops]
    edit(rows[rank])
    return make_schedule(schedule.name, schedule.num_stages, schedule.num_microbatches, rows)


def place_of(schedule: Schedule, rank: int, text: str) -> int:
    return [str(op) for op in schedule.ops[rank]].index(text)


def swapped(first: str, second: str) -> Callable[[list[Op]], None]:
    def swap(row: list[Op]) -> None:
        texts = [str(op) for op in row]
        a, b = texts.index(first), texts.index(second)
        row[a], row[b] = row[b], row[a]

    return swap


def test_no_schedule_of_the_catalogue_is_refused():
    for entry in CATALOGUE.values():
        for p in range(1, 9):
            for m in range(1, 17):
                for chunks in ({"num_chunks": v} for v in (1, 2, 3)) if entry.takes_chunks else ({},):
                    if entry.name == "interleaved" and m % max(1, m // p):
                        continue
                    schedule = entry.build(p, m, **chunks)
                    assert check(schedule) == ()
                    assert check(lower(schedule)) == ()


@pytest.mark.parametrize("schedule", [v_shaped(), replicated(), mixed_backwards()], ids=["v", "replicated", "mixed"])
def test_stages_in_a_v_replicas_and_mixed_backwards_are_fine(schedule):
    assert check(schedule) == ()
    assert check(lower(schedule)) == ()


def test_a_missing_send_is_named_at_its_receive_and_at_the_op_that_waits():
    good = lower(one_f_one_b(2, 2))
    bad = edited(good, 0, lambda row: row.pop(place_of(good, 0, "0SEND_F1")))
    recv, user = place_of(bad, 1, "1RECV_F1"), place_of(bad, 1, "1F1")
    assert found(bad, "matching") == [(1, recv, "1RECV_F1 has no Send on rank 0")]
    assert (1, user) in [place[:2] for place in found(bad, "progress")]
    assert "1F1 waits forever for 0F1 of rank 0" in " ".join(text for *_, text in found(bad, "progress"))


def test_a_missing_receive_is_named_at_its_send_and_at_the_op_that_waits():
    good = lower(one_f_one_b(2, 2))
    bad = edited(good, 0, lambda row: row.pop(place_of(good, 0, "0RECV_B0")))
    assert found(bad, "matching") == [(1, place_of(bad, 1, "1SEND_B0"), "1SEND_B0 has no Recv on rank 0")]
    ((rank, index, text),) = found(bad, "progress")
    assert (rank, index) == (0, place_of(bad, 0, "0B0"))
    assert "1B0 of rank 1, which runs but does not reach it" in text


def test_two_receives_in_the_wrong_order_are_named():
    good = lower(gpipe(2, 3))
    bad = edited(good, 1, swapped("1RECV_F0", "1RECV_F1"))
    ((rank, index, text),) = found(bad, "matching")
    assert (rank, index) == (1, place_of(bad, 1, "1RECV_F1"))
    assert text.startswith("1RECV_F1 is out of order: rank 0 sends 0SEND_F0 at this place")
    assert "expected 1RECV_F0" in text
    assert (1, place_of(bad, 1, "1F0")) in [place[:2] for place in found(bad, "progress")]


@pytest.mark.parametrize("prepare", [lambda s: s, lower], ids=["compute-only", "lowered"])
def test_a_backward_before_its_forward_is_named(prepare):
    bad = edited(prepare(gpipe(2, 1)), 1, swapped("1F0", "1B0"))
    assert (1, place_of(bad, 1, "1B0")) in [place[:2] for place in found(bad, "progress")]
    text = next(text for rank, _, text in found(bad, "progress") if rank == 1)
    assert f"1F0, which comes later in the same list (op {place_of(bad, 1, '1F0')})" in text


def test_a_forward_given_twice_is_named_with_the_place_of_the_first():
    bad = edited(gpipe(2, 2), 1, lambda row: row.insert(3, forward(1, 0)))
    assert found(bad, "structure") == [(1, 3, "1F0 is there twice, first at rank 1 op 0")]


def test_a_backward_on_another_rank_than_its_forward_is_named():
    rows = [[forward(0, 0)], [forward(1, 0), backward(1, 0), backward(0, 0)]]
    bad = make_schedule("x", 2, 1, rows)
    assert found(bad, "structure") == [(1, 2, "0B0 is here, expected on rank 0 where its forward is")]


@pytest.mark.parametrize("version", [-1, 2, 7])
def test_a_version_that_does_not_exist_is_named(version):
    bad = edited(pipedream(1, 2), 0, lambda row: row.__setitem__(3, forward(0, 1, version)))
    ((rank, index, text),) = found(bad, "version")
    assert (rank, index) == (0, 3)
    assert f"reads version {version}, but 1 steps of stage 0 come before it" in text


def test_versions_inside_an_overlap_are_looked_at_too():
    rows = [[forward(0, 0), Overlap(forward(0, 1, 1), backward(0, 0)), backward(0, 1)]]
    assert [place[:2] for place in found(make_schedule("x", 1, 2, rows), "version")] == [(0, 1)]


def test_each_missing_op_is_named():
    bad = edited(gpipe(2, 2), 0, lambda row: row.remove(backward(0, 1)))
    assert found(bad, "structure") == [(0, None, "0B1 is missing")]
    empty = make_schedule("x", 1, 1, [[]])
    assert found(empty, "structure") == [(None, None, "0B0 is missing"), (None, None, "0F0 is missing")]


def test_half_of_a_split_backward_is_not_enough_and_both_kinds_are_too_many():
    inputs, weights = (Compute(phase, 0, 0) for phase in (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT))
    half = make_schedule("x", 1, 1, [[forward(0, 0), inputs]])
    assert found(half, "structure") == [(0, None, "0W0 is missing")]
    both = make_schedule("x", 1, 1, [[forward(0, 0), inputs, weights, backward(0, 0)]])
    assert [place[:2] for place in found(both, "structure")] == [(0, 3)]


def test_weights_before_inputs_wait_forever():
    inputs, weights = (Compute(phase, 0, 0) for phase in (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT))
    bad = make_schedule("x", 1, 1, [[forward(0, 0), weights, inputs]])
    assert [place[:2] for place in found(bad, "progress")] == [(0, 1)]


def test_a_recompute_comes_between_forward_and_backward():
    recompute = Compute(Phase.RECOMPUTE, 0, 0)
    assert check(make_schedule("x", 1, 1, [[forward(0, 0), recompute, backward(0, 0)]])) == ()
    late = make_schedule("x", 1, 1, [[forward(0, 0), backward(0, 0), recompute]])
    assert found(late, "structure") == [(0, 2, "0R0 comes after its backward")]


@pytest.mark.parametrize("op", [forward(2, 0), forward(-1, 0), backward(0, 3)])
def test_numbers_outside_of_the_schedule_are_named(op):
    bad = edited(gpipe(2, 3), 1, lambda row: row.append(op))
    assert found(bad, "structure") == [(1, 7, f"{op} is outside of 2 stages and 3 micro-batches")]


@pytest.mark.parametrize("op", [Step(0), Step(5), Reduce(0)])
def test_a_step_of_a_stage_that_the_rank_does_not_hold_is_named(op):
    bad = edited(gpipe(2, 1), 1, lambda row: row.append(op))
    assert found(bad, "structure") == [(1, 3, f"{op} is of a stage that this rank does not compute")]


def test_a_message_sent_and_received_twice_is_named():
    """The channel's ends agree; but what has been sent is gone."""
    good = lower(gpipe(2, 1))
    activation = Message(Payload.ACTIVATION, 0, 0)
    rows = [list(row) for row in good.ops]
    rows[0].append(Send(activation, 1))
    rows[1].append(Recv(activation, 0))
    bad = make_schedule("twice", 2, 1, rows)
    index = len(rows[0]) - 1
    assert found(bad, "matching") == [(0, index, "0SEND_F0 is there again, expected each message to be sent once")]
    assert found(bad, "progress") == []


def test_a_message_to_a_rank_that_has_no_use_for_it_is_named():
    good = lower(gpipe(3, 1))
    activation = Message(Payload.ACTIVATION, 0, 0)
    rows = [list(row) for row in good.ops]
    rows[0] = [Send(activation, 2) if isinstance(op, Send) else op for op in rows[0]]
    rows[1] = [op for op in rows[1] if not (isinstance(op, Recv) and op.message == activation)]
    rows[2].insert(0, Recv(activation, 0))
    bad = make_schedule("astray", 3, 1, rows)
    assert found(bad, "matching") == [(0, 1, "0SEND_F0 goes to rank 2, expected rank 1")]


def test_a_message_that_nobody_else_uses_is_named():
    last = Message(Payload.ACTIVATION, 1, 0)
    rows = [list(row) for row in lower(gpipe(2, 1)).ops]
    rows[1].append(Send(last, 0))
    rows[0].append(Recv(last, 1))
    bad = make_schedule("x", 2, 1, rows)
    assert found(bad, "matching") == [(1, len(rows[1]) - 1, "1SEND_F0 is sent, but no other rank uses it")]


def test_a_send_before_the_op_that_makes_it_is_named():
    good = lower(gpipe(2, 1))
    bad = edited(good, 0, swapped("0F0", "0SEND_F0"))
    assert found(bad, "matching") == [(0, place_of(bad, 0, "0SEND_F0"), "0SEND_F0 comes before the op that makes it")]


@pytest.mark.parametrize("peer", [-1, 2, 99])
def test_a_peer_that_is_no_rank_is_named(peer):
    good = lower(gpipe(2, 1))
    at = place_of(good, 0, "0SEND_F0")
    bad = edited(good, 0, lambda row: row.__setitem__(at, Send(Message(Payload.ACTIVATION, 0, 0), peer)))
    assert (0, at, "0SEND_F0 names a peer outside of 2 ranks") in found(bad, "matching")
    at = place_of(good, 1, "1RECV_F0")
    bad = edited(good, 1, lambda row: row.__setitem__(at, Recv(Message(Payload.ACTIVATION, 0, 0), peer)))
    assert (1, at, "1RECV_F0 names a peer outside of 2 ranks") in found(bad, "matching")


def test_ranks_that_wait_for_each_other_name_each_other():
    rows = [[forward(0, 0), backward(0, 1), forward(0, 1), backward(0, 0)]]
    rows.append([forward(1, 1), forward(1, 0), backward(1, 1), backward(1, 0)])
    texts = [str(finding) for finding in check(make_schedule("x", 2, 2, rows))]
    assert texts == [
        "rank 0 op 1: 0B1 waits forever for 0F1, which comes later in the same list (op 2)",
        "rank 1 op 0: 1F1 waits forever for 0F1 of rank 0 (op 2), which waits at 0B1 (op 1)",
    ]


def test_a_reduce_that_a_replica_never_reaches_is_named():
    bad = edited(replicated(), 2, lambda row: row.insert(0, Reduce(0)))
    assert (2, 0, "0REDUCE_GRAD waits forever for the other replicas of its stage") not in found(bad, "progress")
    assert (2, 5, "0REDUCE_GRAD waits forever for the other replicas of its stage") in found(bad, "progress")


def test_a_finding_says_its_place_first():
    assert str(Finding("structure", 2, 5, "so")) == "rank 2 op 5: so"
    assert str(Finding("structure", 2, None, "so")) == "rank 2: so"
    assert str(Finding("structure", None, None, "so")) == "so"


def test_what_cannot_run_is_refused_in_one_line_with_three_findings_and_a_count():
    require_runnable(gpipe(2, 2))
    with pytest.raises(ScheduleError) as error:
        require_runnable(make_schedule("hollow", 2, 2, [[], []]))
    text = str(error.value)
    assert text == "hollow: 0B0 is missing; 0F0 is missing; 0B1 is missing; and 5 more"


def mutant(chance: random.Random) -> Schedule:
    """A lowered schedule of the catalogue with one or two ops dropped, duplicated, swapped or moved."""
    p, m = chance.randint(2, 4), chance.randint(1, 4)
    schedule = chance.choice(
        [
            *(build(p, m) for build in (naive, gpipe, one_f_one_b, one_f_one_b_afp, pipedream)),
            *(interleaved(2, 2, 2), v_shaped(), replicated()),
        ]
    )
    rows = [list(row) for row in lower(schedule).ops]
    for _ in range(chance.choice([1, 1, 2])):
        row = chance.choice([row for row in rows if row])
        place, other = chance.randrange(len(row)), chance.randrange(len(row))
        match chance.choice(["drop", "duplicate", "swap", "move", "neighbours", "emigrate"]):
            case "drop":
                row.pop(place)
            case "duplicate":
                row.insert(other, row[place])
            case "swap":
                row[place], row[other] = row[other], row[place]
            case "move":
                row.insert(other, row.pop(place))
            case "neighbours":
                row[place - 1], row[place] = row[place], row[place - 1]
            case "emigrate":
                target = chance.choice(rows)
                op = row.pop(place)
                target.insert(chance.randint(0, len(target)), op)
    return make_schedule("mutant", schedule.num_stages, schedule.num_microbatches, rows)


def test_mutants_cannot_finish_by_check_exactly_when_they_cannot_in_truth():
    stuck = 0
    for seed in range(NUM_MUTANTS):
        schedule = mutant(random.Random(seed))
        assert bool(found(schedule, "progress")) != finishes(schedule), f"seed {seed}\n{schedule.ops}"
        stuck += not finishes(schedule)
    assert NUM_MUTANTS // 5 < stuck < NUM_MUTANTS * 4 // 5


def test_mutants_that_finish_are_refused_for_their_messages_exactly_when_these_are_wrong():
    right = wrong = 0
    for seed in range(NUM_MUTANTS):
        schedule = mutant(random.Random(seed))
        if not finishes(schedule) or found(schedule, "structure"):
            continue
        assert bool(found(schedule, "matching")) != delivers(schedule), f"seed {seed}\n{schedule.ops}"
        right, wrong = right + delivers(schedule), wrong + (not delivers(schedule))
    assert min(right, wrong) > 10


def test_every_finding_of_a_mutant_has_a_place_in_its_lists():
    for seed in range(NUM_MUTANTS):
        schedule = mutant(random.Random(seed))
        for finding in check(schedule):
            assert "\n" not in str(finding)
            if finding.index is not None:
                assert 0 <= finding.index < len(schedule.ops[finding.rank])
