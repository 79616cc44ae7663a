"""Hundreds of damaged schedules: blocked ones are refused for a true reason, and only blocked ones."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import Schedule, make_schedule
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.interleaved import interleaved
from pipesched.schedules.check import find_faults, judge
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Overlap, Recv, Reduce, Send, Step, backward, computes, forward
from pipesched.schedules.semantics import Communication
from pipesched.schedules.semantics.deadlock import WaitingOp, Why, deadlocks
from tests.properties import examples
from tests.schedules.brute_force import delivers, finishes, made
from tests.schedules.deadlock_rules import assert_true
from tests.schedules.edits import edited, lists_of, mutant, small_schedules, swapped
from tests.schedules.formats.random_ops import ops
from tests.schedules.hand_schedules import replicated
from tests.schedules.state_exploration import Model

SEEDS = range(600, 1000)
"""Of the mutants: replicas wait for each other in 695."""
ALL = [communication.value for communication in Communication]


@pytest.mark.slow
@pytest.mark.parametrize("communication", ALL)
def test_a_mutant_is_refused_exactly_when_it_cannot_finish_and_every_link_of_the_reason_is_true(communication):
    """The truth: `state_exploration.Model` does all moves that are possible, until none is."""
    verdicts, kinds = Counter(), Counter()
    for seed in SEEDS:
        _, schedule = mutant(seed)
        model = Model(schedule, communication)
        comes_through = model.is_through(model.end())
        reasons = deadlocks(schedule, Communication(communication))
        assert bool(reasons) != comes_through, f"seed {seed}\n{schedule.ops}"
        for deadlock in reasons:
            assert_true(schedule, deadlock, communication, model)
            kinds["circle" if deadlock.missing is None else "missing"] += 1
            kinds.update(link.why.name for link in deadlock.links)
        verdicts[comes_through] += 1
    assert min(verdicts[True], verdicts[False], kinds["circle"], kinds["missing"]) > len(SEEDS) // 20
    expected = {"buffered": 0, "channel": 0, "device": 0, "pair": 10, "rank": 10, "batched": 10}
    assert kinds["BEHIND"] + kinds["WITH"] >= expected[communication]
    assert min(kinds[name] for name in ("NEEDS", "AFTER", "MEETS", "REPLICAS")) > 0


@pytest.mark.parametrize("communication", ALL)
def test_in_whatever_order_things_happen_they_come_equally_far(communication):
    """All orders of small lists, good and damaged: so one order is enough for the truth of large ones."""
    num_small = 0
    for seed in SEEDS:
        _, schedule = mutant(seed)
        if sum(map(len, schedule.ops)) <= 22:
            model = Model(schedule, communication)
            assert model.ends() == {model.end()}, seed
            num_small += 1
    assert num_small > 20


def test_no_mutant_that_runs_right_on_gloo_is_refused():
    """It runs right: all ranks come to their end, every message is delivered, and nothing is lost.

    Nothing is lost where each rank still has the ops it had, and where those that must keep an order have kept it:
    backwards, Reduce and Step of one stage (gradients), Steps and computations (versions), R and its backward.
    """
    num_right = 0
    for seed in SEEDS:
        original, schedule = mutant(seed)
        if finishes(schedule) and delivers(schedule) and kept(original) == kept(schedule):
            assert find_faults(schedule) == (), f"seed {seed}\n{schedule.ops}"
            num_right += 1
    assert num_right > len(SEEDS) // 20


def kept(schedule: Schedule) -> list[object]:
    """Return what must not change: the ops of each rank, and the order of those that share weights or gradients."""
    result: list[object] = []
    for row in schedule.ops:
        own = [op for op in row if not isinstance(op, Send | Recv)]
        updates_before, done, order = Counter[int](), set(), []
        for op in own:
            stage = getattr(op, "stage", None)
            updates_before[stage] += isinstance(op, Reduce | Step)
            done.update(made(op))
            is_late = any(part.phase.value == "R" and ("gradient", part.stage, part.microbatch) in done
                          for part in computes(op))  # fmt: skip
            order.append((str(op), updates_before[stage], is_late))
        result += [sorted(order), [op for op in own if isinstance(op, Step | Reduce)]]
    return result


@pytest.mark.slow
def test_mutants_that_finish_are_refused_for_their_messages_exactly_when_these_are_wrong():
    verdicts = Counter()
    for seed in SEEDS:
        _, schedule = mutant(seed)
        findings = find_faults(schedule)
        if not finishes(schedule) or any(finding.kind == "structure" for finding in findings):
            continue
        is_right = not any(finding.kind == "matching" for finding in findings)
        assert is_right == delivers(schedule), f"seed {seed}\n{schedule.ops}"
        verdicts[is_right] += 1
    assert min(verdicts.values()) > 10


def test_an_op_that_is_dropped_is_named():
    """Every op of ten lists in turn: by a finding about it, or as the end of a chain of waiting. R may be left out."""
    for schedule in small_schedules()[:10]:
        for rank, row in enumerate(schedule.ops):
            for index, op in enumerate(row):
                if any(part.phase.value == "R" for part in computes(op)):
                    continue
                bad = edited(schedule, rank, lambda ops, index=index: ops.pop(index))
                names = [str(op)]
                if isinstance(op, Send | Recv):  # where those after it move up, the other end has no counterpart
                    names.append(str(Recv(op.message, 0) if isinstance(op, Send) else Send(op.message, 0)))
                text = " ".join(map(str, find_faults(bad)))
                assert any(name in text for name in names), (schedule.name, op, text)


@examples(100, derandomize=True)
@given(st.lists(st.lists(ops(3, 2, 3), max_size=8), min_size=3, max_size=3), st.sampled_from(Communication))
def test_lists_of_any_ops_at_all_are_judged_truly(rows, communication):
    schedule = make_schedule("any", 3, 2, rows)
    judge(schedule)
    if schedule.is_lowered:
        model = Model(schedule, communication.value)
        reasons = deadlocks(schedule, communication)
        assert bool(reasons) != model.is_through(model.end())
        for deadlock in reasons:
            assert_true(schedule, deadlock, communication.value, model)


def test_a_circle_says_at_every_step_who_waits_for_whom():
    (deadlock,) = deadlocks(lists_of("0F0 0B1 0F1 0B0", "1F1 1F0 1B1 1B0"))
    assert (
        str(deadlock) == "0B1 waits forever for 0F1 (op 2), which comes after 0B1 (op 1): a circle; rank 1 waits for it"
    )
    assert [(link.rank, link.index, link.why) for link in deadlock.links] == [(0, 1, Why.NEEDS), (0, 2, Why.AFTER)]
    assert (deadlock.missing, deadlock.others) == (None, (1,))


def test_an_op_that_waits_for_itself_is_a_circle_too():
    overlap = Overlap(forward(0, 0), backward(0, 0))
    (deadlock,) = deadlocks(make_schedule("x", 1, 1, [[overlap]]))
    assert deadlock.links == (WaitingOp(0, 0, overlap, Why.NEEDS),)
    assert str(deadlock) == f"{overlap} waits forever for {overlap} (op 0): a circle"


def test_what_nobody_computes_is_named_with_the_op_that_waits_for_it():
    (deadlock,) = deadlocks(lists_of("", "1F0"))
    assert str(deadlock) == "1F0 waits forever for 0F0, which no rank computes"
    (deadlock,) = deadlocks(lists_of("0B0", "0F0 1F0 1B0"))
    assert str(deadlock) == "0B0 waits forever for 0F0 of rank 0, which rank 1 computes instead"


def test_a_reduce_that_a_replica_never_reaches_is_named():
    bad = edited(replicated(), 2, lambda row: row.insert(0, Reduce(0)))
    (deadlock,) = deadlocks(bad)
    assert (deadlock.links[0].rank, deadlock.links[0].index) == (2, 5)
    assert str(deadlock) == "0REDUCE_GRAD waits forever for its replica 0REDUCE_GRAD of rank 0, which is missing"


def test_replicas_that_reduce_two_stages_in_different_order_hang_where_a_device_keeps_the_order():
    schedule = lists_of(
        "0F0 1F0 1B0 0B0 0REDUCE_GRAD 1REDUCE_GRAD 0STEP 1STEP",
        "0F1 1F1 1B1 0B1 1REDUCE_GRAD 0REDUCE_GRAD 0STEP 1STEP",
    )
    assert deadlocks(schedule) == ()
    (deadlock,) = deadlocks(schedule, Communication.DEVICE)
    assert [(link.rank, link.index, link.why) for link in deadlock.links] == [
        (0, 4, Why.REPLICAS), (1, 5, Why.BEHIND), (1, 4, Why.REPLICAS), (0, 5, Why.BEHIND)
    ]  # fmt: skip
    verdicts = judge(schedule).findings
    assert [backend.value for backend, links in verdicts.items() if not links] == ["gloo", "buffered"]


def test_replicas_that_step_between_reduces_in_different_order_wait_for_each_other():
    rows = (
        "0F0 1F0 1B0 0B0 0REDUCE_GRAD 0STEP 1REDUCE_GRAD 1STEP",
        "0F1 1F1 1B1 0B1 1REDUCE_GRAD 1STEP 0REDUCE_GRAD 0STEP",
    )
    (deadlock,) = deadlocks(lists_of(*rows))
    assert [(link.rank, link.index, link.why) for link in deadlock.links] == [
        (0, 4, Why.REPLICAS), (1, 6, Why.AFTER), (1, 5, Why.NEEDS),
        (1, 4, Why.REPLICAS), (0, 6, Why.AFTER), (0, 5, Why.NEEDS),
    ]  # fmt: skip


def test_receives_in_the_wrong_order_say_what_is_at_their_place():
    good = lower(gpipe(2, 2))
    bad = edited(good, 1, swapped("1RECV_F0", "1RECV_F1"))
    text = str(deadlocks(bad)[0])
    assert "0SEND_F0 of rank 0, at whose place of the channel there is 0SEND_F1 (op 3)" in text


def test_a_long_circle_is_told_in_part():
    (deadlock,) = deadlocks(lower(interleaved(6, 6, 2)), Communication.BATCHED)
    assert len(deadlock.links) > 8
    assert f"(and so on over {len(deadlock.links) - 6} ops)" in str(deadlock)
    assert str(deadlock).count("which") < 8
