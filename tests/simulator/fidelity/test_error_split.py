"""The split of a prediction's error, held against runs that are worked out by hand or by a plain loop."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules import Yardstick, repeat
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute, Message, Op, Payload
from pipesched.schedules.transforms import replicate, with_step_barrier, with_tied_sum
from pipesched.simulator import NetworkOptions, SimulationError
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fidelity import ErrorSplit, NetworkModel, split_error
from tests.hand_runs import run_by_hand

COSTS = uniform(2, 1.0, 2.0)


def parts(split: ErrorSplit) -> list[float]:
    makespan = split.makespan
    return [makespan.error_s, makespan.costs_s, makespan.hand_over_s, makespan.rest_s]


def test_one_microbatch_on_two_ranks_is_split_as_worked_out_by_hand():
    # F0 1.2 s, 0.5 s on the way, F0 B0 on rank 1 3.6 s, 0.5 s back, B0 2.4 s: 8.2 s; predicted 6 s, works alone 7.2 s.
    schedule = build("gpipe", num_ranks=2, num_microbatches=1)
    split = split_error(run_by_hand(schedule, 0.1, 0.5, 1.2), simulate_lists(schedule, COSTS))
    assert parts(split) == pytest.approx([-2.2, -1.2, -1.0, 0.0], abs=1e-12)
    quantities = {(quantity.name, quantity.device): quantity for quantity in split.quantities}
    assert quantities["busy_s", 0].costs_s == pytest.approx(-0.6)
    assert quantities["idle_s", 0].costs_s == pytest.approx(-0.6)
    assert quantities["idle_s", 0].hand_over_s == pytest.approx(-1.0)
    assert split.sentence("in the profile") == (
        "gpipe: 26.8 % too fast: 14.6 % because ops ran slower than in the profile, 12.2 % because messages and "
        "posting took longer, 0.0 % unexplained"
    )


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved"])
@pytest.mark.parametrize("post_s", [0.0, 0.1])
def test_posting_and_messages_of_a_known_length_are_all_hand_over(name, post_s):
    schedule = build(name, num_ranks=2, num_microbatches=4)
    prediction = simulate_lists(schedule, uniform(schedule.num_stages, 1.0, 2.0))
    split = split_error(run_by_hand(schedule, post_s, 0.3), prediction)
    error_s = split.makespan.error_s
    assert parts(split) == pytest.approx([error_s, 0.0, error_s, 0.0], abs=1e-12)
    assert error_s < -0.5


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb_h1"])
@pytest.mark.parametrize("is_told", [True, False], ids=["network told", "network not told"])
@pytest.mark.parametrize("kept_s", [0.0, 0.02], ids=["ranks not kept", "ranks kept"])
def test_the_error_of_costs_that_are_all_a_sixth_too_low_is_wholly_theirs(name, is_told, kept_s):
    schedule = build(name, num_ranks=2, num_microbatches=4)
    link = Link(0.05, 1e6, send_s=kept_s, post_s=kept_s, receive_s=kept_s)
    cluster = Cluster((Device(op_s=kept_s), Device(op_s=kept_s)), intra=link)

    def costs(factor: float) -> StageCosts:
        stage = StageCost(factor, 2 * factor, factor, factor, output_bytes=100_000)
        return StageCosts((stage,) * schedule.num_stages)

    run = replace(simulate_lists(schedule, costs(1.2), cluster), source="measured")
    prediction = simulate_lists(schedule, costs(1.0), cluster)
    split = split_error(run, prediction, NetworkModel(costs(1.0), cluster) if is_told else None)
    for quantity in split.quantities:
        assert quantity.costs_s == pytest.approx(quantity.error_s, abs=1e-9)
        assert quantity.rest_s == pytest.approx(0.0, abs=1e-9)
    assert split.makespan.error_s < -1.0


def test_seconds_on_a_device_that_ranks_share_are_not_slowed_twice():
    schedule = replace(build("1f1b", num_ranks=2, num_microbatches=4), rank_to_device=(0, 0))
    run = replace(simulate_lists(schedule, COSTS), source="measured")
    split = split_error(run, simulate_lists(schedule, uniform(2, 0.5, 1.0)))
    assert parts(split) == pytest.approx([-run.makespan_s / 2, -run.makespan_s / 2, 0.0, 0.0], abs=1e-9)


def test_the_parts_of_every_quantity_add_up_exactly():
    schedule = build("1f1b", num_ranks=2, num_microbatches=5)
    split = split_error(run_by_hand(schedule, 0.07, 0.31, 1.13), simulate_lists(schedule, COSTS))
    for quantity in split.quantities:
        instants = (quantity.predicted_s, quantity.with_works_s, quantity.with_hand_over_s, quantity.measured_s)
        predicted, works, hand_over, measured = map(Fraction, instants)
        assert (predicted - works) + (works - hand_over) + (hand_over - measured) == predicted - measured
        assert quantity.costs_s + quantity.hand_over_s + quantity.rest_s == pytest.approx(quantity.error_s, abs=1e-14)


def test_a_run_without_prediction_has_no_part_of_costs():
    schedule = build("1f1b", num_ranks=2, num_microbatches=4)
    split = split_error(run_by_hand(schedule, 0.1, 0.3, 1.7))
    assert split.makespan.predicted_s is None
    assert split.makespan.costs_s == 0.0
    assert split.makespan.error_s == pytest.approx(split.makespan.hand_over_s)
    assert split.sentence().startswith("1f1b: with its own op times ")


def test_one_message_that_comes_late_is_unexplained_and_told():
    # The activations of rank 0 take 0.1 s, but for the last one, which keeps rank 1 waiting for 3 s.
    schedule = build("gpipe", num_ranks=2, num_microbatches=4)
    late = Message(Payload.ACTIVATION, 0, 3)
    run = run_by_hand(schedule, 0.0, lambda message: 3.1 if message == late else 0.1)
    split = split_error(run, simulate_lists(schedule, COSTS))
    assert split.makespan.rest_s == pytest.approx(-3.0)
    assert split.makespan.late_messages_s == pytest.approx(-3.0)
    assert "in single messages that came late" in split.sentence()


def test_a_sum_of_tied_gradients_is_split_as_worked_out_by_hand():
    # Rank 1 reaches its Reduce at 4 s, rank 0 at 6 s; the copy takes 0.25 s and the sum 2 s more: 8.25 s.
    schedule = with_tied_sum(build("gpipe", num_ranks=2, num_microbatches=1))
    run = run_by_hand(schedule, 0.0, 0.0, copy_s=0.25, sum_s=2.0)
    assert run.makespan_s == 8.25
    free = split_error(run, simulate_lists(schedule, COSTS))
    assert parts(free) == pytest.approx([-2.25, 0.0, -2.25, 0.0], abs=1e-12)
    assert free.makespan.late_messages_s == pytest.approx(0.0, abs=1e-12)
    # two rounds of a ring, 100 bytes each at 200 bytes/s: one second of the two is no lateness
    costs, cluster = replace(COSTS, tied_bytes=200), Cluster((Device(), Device()), intra=Link(0.0, 200.0))
    priced = split_error(run, simulate_lists(schedule, costs, cluster), NetworkModel(costs, cluster))
    assert parts(priced) == pytest.approx([-1.25, 0.0, -1.25, 0.0], abs=1e-12)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb_h1"])
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("slow", [0, 1], ids=["rank 0 last", "rank 1 last"])
def test_sums_of_a_known_length_are_all_hand_over_whichever_rank_is_last(name, width, slow):
    schedule = with_step_barrier(with_tied_sum(replicate(build(name, num_ranks=2, num_microbatches=4), width)))

    def factor(op: Op) -> float:
        return 1.5 if isinstance(op, Compute) and op.stage % 2 == slow else 1.0

    costs = StageCosts(
        tuple(
            StageCost(*(seconds * (1.5 if stage % 2 == slow else 1.0) for seconds in (1.0, 2.0, 2.0, 2.0)))
            for stage in range(schedule.num_stages)
        )
    )
    split = split_error(run_by_hand(schedule, 0.0, 0.0, factor, copy_s=0.1, sum_s=0.7), simulate_lists(schedule, costs))
    error_s = split.makespan.error_s
    assert parts(split) == pytest.approx([error_s, 0.0, error_s, 0.0], abs=1e-12)
    assert error_s < -1.5


def test_one_sum_of_several_that_comes_late_is_unexplained():
    # Three batches with a sum each; the last one takes 3.4 s, the others 0.4 s.
    schedule = with_tied_sum(repeat(build("1f1b", num_ranks=2, num_microbatches=2), 3))
    run = run_by_hand(schedule, 0.0, 0.0, sum_s=lambda k: 3.4 if k == 2 else 0.4)
    makespan = split_error(run, simulate_lists(schedule, COSTS)).makespan
    assert [makespan.hand_over_s, makespan.rest_s] == pytest.approx([-1.2, -3.0])
    assert makespan.late_messages_s == pytest.approx(-3.0)


@pytest.mark.parametrize("width", [1, 2])
def test_a_reduce_that_waits_for_another_sum_does_not_wait_twice_in_a_replay(width):
    lists = replicate(build("1f1b", num_ranks=2, num_microbatches=4), width)
    schedule, cluster = with_step_barrier(with_tied_sum(lists)), Cluster((Device(),) * 2 * width, Link(0.05, 1e6))

    def costs(factor: float) -> StageCosts:
        stage = StageCost(factor, 2 * factor, weight_bytes=3_000_000, step_s=0.5 * factor)
        return StageCosts((stage, stage), tied_bytes=2_000_000)

    run = replace(simulate_lists(schedule, costs(1.2), cluster), source="measured")
    for network in (NetworkModel(costs(1.0), cluster), None):
        split = split_error(run, simulate_lists(schedule, costs(1.0), cluster), network)
        assert parts(split) == pytest.approx([-3.1, -3.1, 0.0, 0.0], abs=1e-9)


def test_a_prediction_that_a_replay_does_not_know_is_refused():
    schedule = build("gpipe", num_ranks=2, num_microbatches=4)
    stage = StageCost(1.0, 2.0, output_bytes=1)
    costs, cluster = StageCosts((stage, stage)), Cluster((Device(), Device()), intra=Link(0.0, 1.0))
    network = NetworkOptions(sends="blocking")
    prediction = simulate_lists(schedule, costs, cluster, network=network)
    with pytest.raises(SimulationError, match="blocking Sends"):
        split_error(run_by_hand(schedule, 0.0, 0.1), prediction, NetworkModel(costs, cluster, network))


def test_runs_of_other_lists_are_refused():
    run = run_by_hand(build("gpipe", num_ranks=2, num_microbatches=4), 0.0, 0.1)
    with pytest.raises(SimulationError, match="rank 0: op"):
        split_error(run, simulate_lists(lower(build("1f1b", num_ranks=2, num_microbatches=4)), COSTS))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved"])
def test_what_the_machines_of_a_prediction_hand_over_is_no_error_of_it(name):
    schedule = lower(build(name, num_ranks=2, num_microbatches=4))
    link = Link(0.1, 400.0, send_s=0.03, send_s_per_byte=1e-4, post_s=0.02, receive_s=0.015)
    free, handing = Cluster((Device(),) * 2, Link(0.1, 400.0)), Cluster((Device(op_s=0.01),) * 2, link)
    costs, slower = (
        StageCosts((StageCost(share, 2 * share, output_bytes=100),) * schedule.num_stages) for share in (1.0, 1.1)
    )
    run = replace(simulate_lists(schedule, slower, handing), source="measured")
    explained, unexplained = (
        split_error(run, simulate_lists(schedule, costs, cluster), NetworkModel(costs, cluster))
        for cluster in (handing, free)
    )
    assert parts(explained)[2:] == pytest.approx([0.0, 0.0], abs=1e-9)
    assert parts(explained)[0] == pytest.approx(parts(explained)[1])
    assert parts(unexplained)[2] < -0.1
    assert parts(unexplained)[3] == pytest.approx(0.0, abs=1e-9)


def test_a_run_that_was_predicted_exactly_has_no_cause_of_an_error():
    schedule = build("1f1b", num_ranks=2, num_microbatches=4)
    prediction = simulate_lists(schedule, COSTS)
    split = split_error(replace(prediction, source="measured"), prediction)
    assert parts(split) == [0.0, 0.0, 0.0, 0.0]
    assert split.sentence() == "1f1b: as long as measured, within 0.1 %"


def test_errors_that_cancel_are_both_named():
    # ops of 6 s with two messages of 0.06 s take 6.12 s; so do ops that take 1.02 times as long, without messages
    schedule = build("gpipe", num_ranks=2, num_microbatches=1)
    slow = simulate_lists(schedule, uniform(2, 1.02, 2.04))
    split = split_error(run_by_hand(schedule, 0.0, 0.06), slow)
    assert split.sentence() == (
        "gpipe: as long as measured: 2.0 % because ops ran faster than predicted, -2.0 % because messages and posting "
        "took longer, 0.0 % unexplained"
    )


@pytest.mark.parametrize(
    ("launch_s", "device", "what"),
    [
        (8.2, "cuda", "launching, messages and posting"),
        (6.0, "cuda", "messages and posting"),
        (8.2, "cpu", "messages and posting"),
        (None, "cuda", "messages and posting"),
    ],
)
def test_launching_is_named_where_it_bounds_the_run(launch_s, device, what):
    # ops of 1.2 and 2.4 s and two messages that take a second in all: 8.2 s
    run = run_by_hand(build("gpipe", num_ranks=2, num_microbatches=1), 0.1, 0.5, 1.2)
    split = split_error(replace(run, launch_s=launch_s, yardstick=Yardstick(device, 1, 1.0)))
    assert split.sentence() == (
        f"gpipe: with its own op times 12.2 % too fast: 12.2 % because {what} took longer, 0.0 % unexplained"
    )
