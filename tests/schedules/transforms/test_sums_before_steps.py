"""Sums over stages before the Steps: closed forms give the times of any lists with a flush."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipesched
from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import uniform
from pipesched.schedules import ScheduleError, make_schedule, repeat
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.check import find_faults
from pipesched.schedules.formats import from_json, to_json, write_csv
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Reduce, Step, Summed, backward, forward
from pipesched.schedules.transforms import ScheduleSpec, replicate, with_step_barrier, with_tied_sum
from pipesched.simulator import SimulationError
from pipesched.simulator.analysis.summary import CommunicationVolume, communication_volume
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import simulate_arrays
from tests.properties import examples
from tests.strategies import random_costs

FLUSHED = [name for name, entry in CATALOGUE.items() if not entry.traits.is_asynchronous and not entry.traits.averages]


@examples(25)
@given(name=st.sampled_from(FLUSHED), seed=st.integers(0, 10**6), width=st.sampled_from([1, 1, 2]))
def test_all_step_when_the_last_gradient_and_the_last_sum_are_there(name, seed, width):
    chance = random.Random(seed)
    try:
        lists = replicate(build(name, chance.randint(1, 4), chance.randint(1, 8)), width)
    except ScheduleError:  # these counts are not for this schedule
        return
    costs, cluster = random_costs(chance, lists.num_stages), flat(lists.num_devices, Link(0.1, 25.0))
    at_once = replace(costs, stages=tuple(replace(cost, step_s=0.0) for cost in costs.stages))
    over_s = max(span.end_s for span in simulate_lists(lists, at_once, cluster).spans)
    barred = with_step_barrier(lists)
    assert find_faults(barred) == ()
    for simulate in (simulate_lists, simulate_arrays):
        timeline = simulate(barred, costs, cluster)
        for rank, row in enumerate(barred.ops):
            steps_s = sum(costs.stages[op.stage].step_s for op in row if isinstance(op, Step))
            assert timeline.of_rank(rank)[-1].end_s == pytest.approx(over_s + steps_s, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "period"), [("1f1b", 57), ("zb_h1", 51), ("zb_h2", 51), ("zbv", Fraction(99, 2)), ("gpipe", 57)]
)
def test_the_period_of_a_batch_is_its_makespan(name, period):
    lists = with_step_barrier(build(name, 4, 16))
    share = lists.stage_share
    setup = pipesched.Setup(uniform(lists.num_stages, *(float(share * count) for count in (1, 2, 1, 1))))
    told = pipesched.simulate(lists, setup)
    assert told.steady_s_per_microbatch == told.makespan_s / 16 == float(Fraction(period) / 16)


@pytest.mark.parametrize("name", ["1f1b", "zbv", "dualpipe", "chimera", "data_parallel"])
def test_each_rank_adds_its_norms_behind_its_gradients_and_then_steps(name):
    for row in with_step_barrier(build(name, 4, 8)).ops:
        steps = [op for op in row if isinstance(op, Step)]
        norms = [Reduce(step.stage, Summed.NORM) for step in steps]
        assert list(row[-2 * len(steps) :]) == norms + steps
        assert row[: -2 * len(steps)] == tuple(op for op in row if op not in (*norms, *steps))


def test_steps_between_backwards_move_behind_the_last_backward_of_their_batch():
    rows = [
        [forward(0, 0), forward(1, 0), backward(1, 0), Step(1), backward(0, 0), Step(0)],
    ]
    twice = repeat(make_schedule("early", 2, 1, rows), 2).held()
    texts = [str(op) for op in with_step_barrier(twice).ops[0]]
    assert texts == [
        "0F0", "1F0", "1B0", "0B0", "1REDUCE_NORM", "0REDUCE_NORM", "1STEP", "0STEP",
        "0F1@1", "1F1@1", "1B1@1", "0B1@1", "1REDUCE_NORM", "0REDUCE_NORM", "1STEP", "0STEP",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["1f1b", "chimera", "zbv"])
def test_generated_lists_of_many_batches_have_the_same_barriers(name):
    barred = with_step_barrier(build(name, 2, 4))
    generated = with_step_barrier(repeat(build(name, 2, 4), 3))
    held = repeat(barred, 3, in_memory=True)
    assert generated.ops == held.ops == repeat(barred, 3).ops
    assert {group: set(places) for group, places in generated.summands.items()} == {
        group: set(places) for group, places in held.summands.items()
    }
    assert lower(generated).summands == generated.summands


def test_files_keep_the_barrier_and_pytorchs_leave_it_to_their_caller():
    barred = with_step_barrier(build("interleaved", 2, 4))
    assert from_json(to_json(barred), "text").ops == barred.ops
    assert write_csv(barred) == write_csv(build("interleaved", 2, 4))


def test_copies_of_lists_with_a_barrier_have_one_barrier():
    copied = replicate(with_step_barrier(build("1f1b", 2, 4)), 2)
    assert copied.ops == with_step_barrier(replicate(build("1f1b", 2, 4), 2)).ops
    assert len(copied.summands[Summed.NORM]) == 4


@pytest.mark.parametrize(("name", "reason"), [("pipedream", "a schedule with a flush"), ("avgpipe", "one model")])
def test_stages_that_step_alone_have_no_barrier_and_are_not_tied(name, reason):
    for made, got in ((with_step_barrier, "a barrier before the steps"), (with_tied_sum, "tied stages 0, 1")):
        with pytest.raises(ScheduleError, match=f"got {got}, expected {reason}.*; try 1f1b"):
            made(build(name, 2, 4))


def test_a_training_run_steps_behind_barriers():
    spec = ScheduleSpec(name="1f1b", num_ranks=2, num_microbatches=3, step_barrier=True, width=2)
    assert spec.run(2).lists(2).ops == repeat(with_step_barrier(replicate(build("1f1b", 2, 3), 2)), 2).ops


def test_a_gradient_behind_its_norm_is_a_fault():
    rows = [[forward(0, 0), Reduce(0, Summed.NORM), backward(0, 0), Step(0)]]
    (finding,) = find_faults(make_schedule("early norm", 1, 1, rows))
    assert "0B0 comes between 0REDUCE_NORM and Step" in finding.text


def test_a_sum_that_one_rank_posts_once_more_stops_all_ranks():
    barred = with_step_barrier(build("1f1b", 2, 1))
    rows = [list(barred.ops[0]), [op for op in barred.ops[1] if not isinstance(op, Reduce)]]
    rows[1].insert(0, Reduce(1, Summed.NORM))
    early = make_schedule("early norm", 2, 1, [[Reduce(0, Summed.NORM), *rows[0]], rows[1]])
    assert any("waits" in finding.text for finding in find_faults(early))
    for simulate in (simulate_lists, simulate_arrays):
        with pytest.raises(SimulationError, match="rank 0 at 0STEP waits for 0REDUCE_NORM of rank 1"):
            simulate(early, uniform(2, 1.0, 2.0))


def without_sums(lists, rank):
    rows = [[op for op in row if at != rank or not isinstance(op, Reduce)] for at, row in enumerate(lists.ops)]
    return make_schedule("in part", lists.num_ranks, lists.num_microbatches, rows)


def test_a_norm_of_a_part_of_the_stages_is_a_fault():
    partial = without_sums(with_step_barrier(build("1f1b", 2, 2)), 1)
    (finding,) = find_faults(partial)
    assert "1REDUCE_NORM is missing before 1STEP" in finding.text
    with pytest.raises(ScheduleError, match="lists with sums before some Steps only, expected a sum before every Step"):
        with_step_barrier(partial)


def test_a_tied_sum_of_one_stage_is_a_fault():
    partial = without_sums(with_tied_sum(build("1f1b", 2, 2)), 1)
    (finding,) = find_faults(partial)
    assert "0REDUCE_TIED has no part in a sum before 0STEP" in finding.text
    with pytest.raises(ScheduleError, match="got tied stages 0, 1 in lists with a sum over stages 0,"):
        with_tied_sum(partial, (0, 1))


def test_a_replica_without_its_tied_sum_is_a_fault():
    partial = without_sums(with_tied_sum(replicate(build("1f1b", 2, 4), 2)), 3)
    assert any("1REDUCE_TIED is missing before 1STEP" in finding.text for finding in find_faults(partial))


@pytest.mark.parametrize("stages", [(0, 1), (1, 2), (0, 2, 3), (0, 1, 2, 3)])
def test_any_stages_sum_their_tied_gradients(stages):
    """A ring of k stages takes 2 (k - 1) rounds of 1 / k of the bytes; the other stages do not wait."""
    lists, costs = build("1f1b", 4, 4), replace(uniform(4, 1.0, 2.0), tied_bytes=600)
    cluster, k = flat(4, Link(bandwidth_bytes_per_s=10.0)), len(stages)
    tied = with_tied_sum(lists, stages)
    assert find_faults(tied) == ()
    assert tied.summed_stages(Summed.TIED) == stages
    without = simulate_lists(lists, costs, cluster)
    ends_s = {stage: without.of_rank(stage)[-1].end_s for stage in range(4)}
    over_s = max(ends_s[stage] for stage in stages) + 2 * (k - 1) * 600 / k / 10.0
    for simulate in (simulate_lists, simulate_arrays):
        steps = {span.rank: span.end_s for span in simulate(tied, costs, cluster).spans if isinstance(span.op, Step)}
        assert steps == pytest.approx({stage: over_s if stage in stages else ends_s[stage] for stage in range(4)})
    messages, plain = (communication_volume(lower(of), costs).num_messages for of in (tied, lists))
    assert messages - plain == 2 * (k - 1) * k


def test_a_repeated_batch_knows_its_tied_stages_without_its_lists():
    once = with_tied_sum(build("1f1b", 4, 4), (0, 2, 3))
    again = with_tied_sum(repeat(build("1f1b", 4, 4), 3), (0, 2, 3))
    assert repeat(once, 3).summands == again.summands == again.held().summands
    assert again.ops == repeat(once, 3).ops


def test_lists_with_other_tied_stages_are_refused():
    tied = with_tied_sum(build("1f1b", 4, 4))
    assert with_tied_sum(tied, (0, 3)) is tied
    with pytest.raises(ScheduleError, match="got tied stages 0, 2 in lists with a sum over stages 0, 3, expected the"):
        with_tied_sum(tied, (0, 2))


def test_generated_lists_without_steps_get_steps_and_sums():
    rows = [[op for op in row if not isinstance(op, Step)] for row in build("1f1b", 2, 2).ops]
    barred = with_step_barrier(repeat(make_schedule("bare", 2, 2, rows), 2))
    assert all(row[-2:] == (Reduce(rank, Summed.NORM), Step(rank)) for rank, row in enumerate(barred.ops))


@examples(25)
@given(name=st.sampled_from(FLUSHED), seed=st.integers(0, 10**6), is_barred=st.booleans())
def test_tied_stages_step_when_both_gradients_have_crossed_the_link(name, seed, is_barred):
    chance = random.Random(seed)
    try:
        lists = build(name, chance.randint(2, 4), chance.randint(1, 8))
    except ScheduleError:  # these counts are not for this schedule
        return
    drawn = random_costs(chance, lists.num_stages)
    stages = tuple(replace(cost, step_s=0.0, weight_bytes=0) for cost in drawn.stages)
    costs, link = replace(drawn, stages=stages, tied_bytes=chance.randint(1, 1000)), Link(0.1, 25.0)
    cluster, last = flat(lists.num_devices, link), lists.num_stages - 1
    without = simulate_lists(lists, costs, cluster)
    tied = with_tied_sum(with_step_barrier(lists) if is_barred else lists)
    assert find_faults(tied) == ()
    firsts, lasts = lists.replicas(0), lists.replicas(last)
    ready_s = max(without.of_rank(rank)[-1].end_s for rank in {*firsts, *lasts})
    over_s = ready_s + (0.0 if firsts == lasts else 2 * (0.1 + costs.tied_bytes / 2 / 25.0))
    for simulate in (simulate_lists, simulate_arrays):
        spans = simulate(tied, costs, cluster).spans
        steps = [span for span in spans if isinstance(span.op, Step) and span.op.stage in (0, last)]
        if is_barred:
            over_s = max([over_s, *(span.end_s for span in without.spans)])
        assert [span.end_s for span in steps] == pytest.approx([over_s] * len(steps), rel=1e-9)


def test_a_gigabyte_over_ten_gigabytes_a_second_takes_a_tenth_of_a_second():
    setup = pipesched.Setup(uniform(4, 0.01, 0.02), flat(4, Link(0.0, 10e9)), tied_bytes=10**9)
    told = pipesched.simulate(build("1f1b", 4, 8), setup)
    assert told.makespan_s == pytest.approx(0.43, rel=1e-12)
    assert told.steady_s_per_microbatch == pytest.approx(0.43 / 8, rel=1e-12)
    assert communication_volume(lower(told.schedule), told.costs) == CommunicationVolume(4 + 2 * 3 * 8, 2 * 10**9)


def test_the_order_of_the_two_sums_does_not_depend_on_which_was_asked_for_first():
    lists = build("zbv", 2, 4)
    both = with_tied_sum(with_step_barrier(lists)).ops
    assert both == with_step_barrier(with_tied_sum(lists)).ops
    assert [str(op) for op in both[0][-6:]] == [
        "0REDUCE_TIED", "3REDUCE_TIED", "0REDUCE_NORM", "3REDUCE_NORM", "0STEP", "3STEP",
    ]  # fmt: skip


def test_copies_sum_their_tied_gradients_each_for_itself():
    lists, costs = with_tied_sum(replicate(build("1f1b", 2, 4), 2)), replace(uniform(2, 1.0, 2.0), tied_bytes=100)
    slow = flat(4, Link(0.0, 10.0))
    assert simulate_lists(lists, costs, slow).makespan_s == 15.0 + 10.0
    assert simulate_arrays(lists, costs, slow).makespan_s == 15.0 + 10.0
