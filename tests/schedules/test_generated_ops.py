import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import ScheduleError, make_schedule, repeat
from pipesched.schedules.builders import CATALOGUE, build, build_generated
from pipesched.schedules.check import find_faults
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute, Overlap, Recv, Send, backward, forward
from pipesched.schedules.weights import uses
from tests.properties import examples
from tests.schedules.brute_force import delivers, finishes
from tests.schedules.builder_rules import assert_complete, refused
from tests.schedules.hand_schedules import replicated, v_shaped

ASYNCHRONOUS = [name for name, entry in CATALOGUE.items() if entry.traits.is_asynchronous]
SYNCHRONOUS = [name for name, entry in CATALOGUE.items() if not entry.traits.is_asynchronous]


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_a_generated_schedule_has_the_lists_of_the_one_in_memory_every_time_it_is_read(name):
    generated, whole = build_generated(name, 4, 16), build(name, 4, 16)
    for _ in range(2):
        assert tuple(map(tuple, generated.lists)) == whole.ops
    assert generated.ops == whole.ops
    assert {(k, i): generated.home(k, i) for k in range(generated.num_stages) for i in range(16)} == whole.routes()
    assert (generated.num_ranks, generated.is_lowered) == (4, False)
    assert (generated.is_held, whole.is_held) == (False, True)
    assert generated.held() == whole


def test_exactly_the_asynchronous_schedules_are_generated():
    assert [name for name, entry in CATALOGUE.items() if entry.build_generated is not None] == ASYNCHRONOUS


def test_a_run_too_long_for_memory_can_be_generated_and_not_held():
    generated = build_generated("wpipe", 4, 4 * 10**12)
    assert next(iter(generated.lists[0])) == forward(0, 0)
    with pytest.raises(ScheduleError, match="expected at most 5000000"):
        generated.held()
    with pytest.raises(ScheduleError, match="expected at most 5000000"):
        build("wpipe", 4, 4 * 10**12)


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_a_synchronous_schedule_repeated_reads_version_b_in_batch_b(name):
    batch = build(name, 4, 8)
    run = repeat(batch, 3).held()
    assert run.num_microbatches == 24
    assert_complete(run)
    assert find_faults(run) == ()
    assert finishes(lower(run))
    for row in run.ops:
        for use in uses(row, in_order=True):
            assert use.op.version == use.op.microbatch // 8 == use.update
            assert use.held == (use.op.version,)


def numbers(op):
    """What an op is, its micro-batch and its version, of an Overlap both times."""
    match op:
        case Overlap():
            return (*numbers(op.first), *numbers(op.second))
        case Compute():
            return ((op.phase, op.stage, op.lookahead, op.microbatch, op.version),)
        case Send() | Recv():
            return ((type(op), op.message.payload, op.message.stage, op.peer, op.message.microbatch, 0),)
        case _:
            return ((type(op), op.stage, None, 0, 0),)


@examples(30)
@given(st.sampled_from([*SYNCHRONOUS, "pipedream", "wpipe"]), st.integers(1, 3), st.booleans())
def test_batch_b_of_a_repeated_schedule_is_its_list_moved_by_b_batches(name, times, is_lowered):
    batch = lower(build(name, 2, 4)) if is_lowered else build(name, 2, 4)
    steps = {"pipedream": 4, "wpipe": 2}.get(name, 1)
    run = repeat(batch, times)
    assert run.is_lowered == batch.is_lowered
    for row, ops in zip(batch.ops, run.lists, strict=True):
        moved = list(ops)
        assert len(moved) == times * len(row)
        for place, op in enumerate(moved):
            b, index = divmod(place, len(row))
            for now, before in zip(numbers(op), numbers(row[index]), strict=True):
                assert now[:-2] == before[:-2]
                has_microbatch = isinstance(op, Compute | Overlap | Send | Recv)
                assert now[-2] - before[-2] == (4 * b if has_microbatch else 0)
                assert now[-1] - before[-1] == (steps * b if isinstance(op, Compute | Overlap) else 0)


@pytest.mark.parametrize("name", ["zbv", "dualpipe", "wpipe", "spectrain", "avgpipe"])
def test_columns_of_a_repeated_schedule_have_its_ops(name):
    for batch in (build(name, 4, 8), lower(build(name, 4, 8))):
        run, columns = repeat(batch, 3).held(), repeat(batch, 3, in_memory=True)
        assert columns.ops == run.ops
        assert (columns.num_microbatches, columns.is_lowered) == (24, batch.is_lowered)
        assert columns.homes == run.homes


def test_replicas_and_turns_keep_their_routes_when_repeated():
    for batch in (replicated(), v_shaped()):
        run = repeat(batch, 3)
        assert {
            (k, i): run.home(k, i) for k in range(run.num_stages) for i in range(run.num_microbatches)
        } == run.held().routes()
        assert run.rank_to_device == batch.rank_to_device
        lowered = repeat(lower(batch), 3).held()
        assert finishes(lowered)
        assert delivers(lowered)


def test_a_list_without_steps_keeps_its_version():
    batch = make_schedule("x", 1, 1, [[forward(0, 0), backward(0, 0)]])
    assert {op.version for op in repeat(batch, 3).lists[0] if isinstance(op, Compute)} == {0}


@pytest.mark.parametrize("times", [0, -1, 1.5, True])
def test_a_count_that_cannot_be_is_refused(times):
    with refused(f"times is {times}"):
        repeat(build("gpipe", 2, 2), times)


def test_a_schedule_with_a_missing_forward_cannot_be_repeated():
    with refused("holey: 1F1 is missing"):
        repeat(make_schedule("holey", 2, 2, [[forward(0, 0), forward(0, 1)], [forward(1, 0)]]), 2)
