from dataclasses import replace
from functools import partial

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipesched.profiles.clusters import flat
from pipesched.profiles.costs import uniform
from pipesched.schedules import GeneratedOps, Layout, ScheduleError, make_schedule, repeat
from pipesched.schedules.builders import CATALOGUE, build, build_generated
from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.check import MessageBackend, find_faults, judge
from pipesched.schedules.columns import machine_code
from pipesched.schedules.lowering import lower
from pipesched.schedules.lowering.streamed_insertion import lowered_ranks
from pipesched.schedules.ops import Phase, Reduce, Step, backward, computes, forward
from pipesched.schedules.transforms import place_copies, recompute, replicate
from pipesched.schedules.transforms import replication as module
from pipesched.schedules.weights import live_versions
from pipesched.simulator.analysis import metrics
from pipesched.simulator.engine import simulate_lists
from tests.properties import examples
from tests.schedules.brute_force import delivers, finishes
from tests.schedules.builder_rules import assert_complete, kinds, parts, refused
from tests.schedules.drawings import cells, drawn, is_in

DRAWING = """
    rank 0  F0 F1 .. B0 .. B1
    rank 1  .. F0 B0 F1 B1 ..
    rank 2  F2 F3 .. B2 .. B3
    rank 3  .. F2 B2 F3 B3 ..
"""
NAMES = [name for name, entry in CATALOGUE.items() if not entry.traits.averages]
KINDS = [name for name in kinds() if name in NAMES]


def built(name, p, m):
    try:
        return build(name, p, m)
    except ScheduleError:
        assume(False)


def seconds(schedule):
    """Simulate with ops of a second and without links."""
    costs = uniform(schedule.num_stages, forward_s=1.0, backward_s=2.0, backward_input_s=1.0, backward_weight_s=1.0)
    cluster = flat(max(schedule.rank_to_device) + 1)
    return metrics(simulate_lists(lower(schedule), costs, cluster)).makespan_s


def counted(row, stage):
    """How many micro-batches of a stage each Step of it follows on."""
    counts, count = [], 0
    for op in row:
        count += sum(part.stage == stage and part.phase.value in "BW" for part in computes(op))
        if op == Step(stage):
            counts.append(count)
            count = 0
    return counts


def test_it_runs_as_drawn():
    assert drawn(replicate(one_f_one_b(2, 2), 2)) == cells(DRAWING)
    assert is_in(DRAWING, module.__doc__)


@examples(25)
@given(name=st.sampled_from(NAMES), p=st.integers(1, 4), m=st.integers(1, 10), width=st.integers(2, 4))
def test_over_any_schedule_copies_do_what_it_does_each_with_its_share_of_every_step(name, p, m, width):
    plain = built(name, p, m)
    schedule = replicate(plain, width)
    assert (schedule.num_ranks, schedule.num_microbatches) == (width * plain.num_ranks, width * m)
    assert schedule.rank_to_device == tuple(range(width * plain.num_ranks))
    assert_complete(schedule)
    assert find_faults(schedule) == ()
    lowered = lower(schedule)
    assert finishes(lowered)
    assert delivers(lowered)
    per_step = module._batch(plain)
    for j in range(width):
        for rank, row in enumerate(plain.ops):
            copy = schedule.ops[j * plain.num_ranks + rank]
            for here, there in zip(parts(row), parts(copy), strict=True):
                batch, place_in_it = divmod(here.microbatch, per_step)
                expected = batch * width * per_step + j * per_step + place_in_it
                assert (there.phase, there.stage, there.microbatch) == (here.phase, here.stage, expected)
                assert (there.version, there.lookahead) == (here.version, here.lookahead)


@examples(25)
@given(name=st.sampled_from(NAMES), p=st.integers(1, 4), m=st.integers(1, 8), width=st.integers(2, 3))
def test_every_step_follows_on_one_reduce_right_behind_the_last_gradient_of_its_stage(name, p, m, width):
    plain = built(name, p, m)
    schedule = replicate(plain, width)
    own = any(isinstance(op, Reduce) for row in plain.ops for op in row)
    for rank, row in enumerate(schedule.ops):
        for stage in {part.stage for part in parts(row)}:
            assert counted(row, stage) == counted(plain.ops[rank % plain.num_ranks], stage)
            reduced = False
            for before, op in zip((None, *row), row, strict=False):
                if op == Reduce(stage):
                    assert not reduced
                    reduced = True
                    letters = [c.phase.value for c in computes(before)] if before is not None else []
                    assert own or (letters and set(letters) & set("BW"))
                for part in computes(op):
                    assert not (reduced and part.stage == stage and part.phase.value in "BW")
                if op == Step(stage):
                    assert reduced
                    reduced = False


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_it_is_safe_where_the_original_is_and_takes_as_long_without_links(name):
    plain = build(name, 4, 8)
    schedule = replicate(plain, 2)
    safe, still = (
        {backend for backend in MessageBackend if not judge(lists).findings[backend]} for lists in (plain, schedule)
    )
    assert safe <= still
    assert seconds(schedule) == pytest.approx(seconds(plain), rel=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_over_lists_that_are_made_while_they_are_read_it_is_the_same(name):
    generated = replicate(build_generated(name, 4, 8), 3)
    assert generated.held() == replicate(build(name, 4, 8), 3)
    homes = {
        (part.stage, part.microbatch): rank
        for rank, row in enumerate(generated.held().ops)
        for part in parts(row)
        if part.phase is Phase.FORWARD
    }
    assert homes == {place: generated.home(*place) for place in homes}
    lowered = lowered_ranks(generated, range(generated.num_ranks)).values()
    assert tuple(map(tuple, lowered)) == lower(replicate(build(name, 4, 8), 3)).ops


@pytest.mark.parametrize("name", ["gpipe", "zb_h1", "chimera", "data_parallel", "interleaved"])
def test_copies_of_a_run_are_a_run_of_copies(name):
    batch = build(name, 2, 4)
    assert replicate(repeat(batch, 3), 2).held() == repeat(replicate(batch, 2), 3).held()


@pytest.mark.parametrize("name", KINDS)
def test_every_rank_keeps_as_many_versions_as_in_the_original(name):
    plain = build(name, 4, 8)
    versions, expected = live_versions(replicate(plain, 2)), live_versions(plain)
    assert versions == {(rank + 4 * j, stage): kept for (rank, stage), kept in expected.items() for j in range(2)}


@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "dualpipe", "pipedream_2bw"])
def test_recompute_before_or_after_is_the_same_but_for_the_name(name):
    before, after = replicate(recompute(build(name, 4, 8)), 2), recompute(replicate(build(name, 4, 8), 2))
    assert before.ops == after.ops
    assert (before.name, after.name) == (f"{name}+Rx2", f"{name}x2+R")


@pytest.mark.parametrize("name", ["zb_h1", "wpipe"])
def test_lowered_lists_can_be_copied_too(name):
    copies = replicate(lower(build(name, 3, 6)), 2)
    assert find_faults(copies) == ()
    assert finishes(copies)
    assert sorted(map(str, copies.ops[4])) == sorted(map(str, lower(replicate(build(name, 3, 6), 2)).ops[4]))


def test_the_message_behind_the_last_gradient_leaves_before_the_sum():
    assert [str(op) for op in replicate(lower(one_f_one_b(2, 1)), 2).ops[3]] == [
        "1RECV_F1", "1F1", "1B1", "1SEND_B1", "1REDUCE_GRAD", "1STEP",
    ]  # fmt: skip


def test_lists_that_leave_the_optimizer_to_their_caller_are_summed_at_their_last_gradient():
    plain = make_schedule("file", 1, 2, [[forward(0, 0), forward(0, 1), backward(0, 0), backward(0, 1)]])
    copies = replicate(plain, 2)
    assert [str(op) for op in copies.ops[1]] == ["0F2", "0F3", "0B2", "0B3", "0REDUCE_GRAD"]
    assert find_faults(copies) == ()


def read_op_by_op(schedule):
    """The same lists, made while they are read."""
    lists = tuple(GeneratedOps(partial(iter, row)) for row in schedule.ops)
    return replace(schedule, lists=lists, layout=Layout(schedule.homes))


@pytest.mark.slow
@pytest.mark.parametrize("break_even", [0, 10**12], ids=["arrays", "lists"])
@pytest.mark.parametrize("name", KINDS)
def test_columns_are_copied_and_rebuilt_as_ops_are(name, break_even, monkeypatch):
    monkeypatch.setattr(machine_code, "BREAK_EVEN", break_even)
    for plain in (build(name, 4, 8), lower(build(name, 4, 8))):
        op_by_op, evens = read_op_by_op(plain), range(0, plain.num_stages, 2)
        assert replicate(recompute(plain, evens), 3).ops == replicate(recompute(op_by_op, evens), 3).ops


def test_one_copy_is_the_schedule_itself():
    whole, generated = build("1f1b", 3, 4), build_generated("pipedream", 3, 4)
    assert replicate(whole, 1) is whole
    assert replicate(generated, 1) is generated


@pytest.mark.parametrize("is_generated", [False, True])
def test_devices_are_numbered_copy_by_copy_or_with_the_copies_of_a_rank_side_by_side(is_generated):
    plain = build_generated("pipedream", 4, 4) if is_generated else one_f_one_b(4, 4)
    copies = replicate(plain, 2)
    assert place_copies(copies, "pipeline", 2).rank_to_device == (0, 1, 2, 3, 4, 5, 6, 7)
    assert place_copies(copies, "data", 2).rank_to_device == (0, 2, 4, 6, 1, 3, 5, 7)
    assert place_copies(plain, "data", 1).rank_to_device == (0, 1, 2, 3)
    assert place_copies(replicate(plain, 3), "data", 3).rank_to_device == (0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11)


def test_a_million_micro_batches_are_copied_while_they_are_read():
    generated = replicate(build_generated("pipedream_2bw", 4, 10**6), 4)
    ops = iter(generated.lists[6])
    assert [str(next(ops)) for _ in range(3)] == ["2F4", "2F5", "2B4"]


def test_averaged_pipelines_and_no_copies_are_refused_in_one_line():
    with refused("avgpipe: got width 2, expected 1", "try more pipelines"):
        replicate(build("avgpipe", 2, 4), 2)
    with refused("width is 0"):
        replicate(one_f_one_b(2, 2), 0)


def test_more_copies_than_a_cluster_has_devices_are_refused_before_they_are_made():
    for schedule in (build("1f1b", 4, 4), build_generated("pipedream", 4, 4)):
        with pytest.raises(ScheduleError, match="got 25001 copies of 4 ranks and 4 micro-batches, expected"):
            replicate(schedule, 25_001)
