from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from pipesched.profiles.clusters import Cluster, Device, Link, flat
from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules import MemorySample, make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute, Overlap, Phase, Step, backward, backward_input, backward_weight, forward
from pipesched.schedules.transforms import recompute
from pipesched.simulator import SimulationError
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import simulate_arrays
from pipesched.simulator.memory.memory_samples import KINDS, memory, over_capacity, peak_bytes, peak_memory
from tests.schedules.hand_schedules import replicated, v_shaped
from tests.simulator.memory import readable_lifetimes
from tests.strategies import random_costs

TWO = StageCosts(
    (
        StageCost(1.0, 2.0, step_s=1.0, output_bytes=10, saved_bytes=100, weight_bytes=1000, optimizer_bytes=1),
        StageCost(1.0, 2.0, step_s=1.0, output_bytes=5, saved_bytes=200, weight_bytes=2000, optimizer_bytes=2),
    )
)
CLUSTER = flat(2, Link(0.5))


def bytes_over_time(samples: Iterable[MemorySample], device: int, kind: str) -> list[tuple[float, int]]:
    """The (time, bytes) at which a kind changes on a device."""
    changes: list[tuple[float, int]] = []
    for sample in samples:
        num_bytes = dict(sample.bytes_by_kind)[kind]
        if sample.device == device and (not changes or changes[-1][1] != num_bytes):
            changes.append((sample.time_s, num_bytes))
    return changes


def test_two_stages_hold_what_was_worked_out_by_hand():
    #          0    1    2              4.5 5        7    8         10  11
    # rank 0   F0   F1                      B0            B1        Step
    # rank 1       1.5 F0 2.5 B0   4.5 F1 5.5 B1  7.5 Step 8.5
    schedule = build("1f1b", 2, 2)
    samples = memory(simulate_lists(schedule, TWO, CLUSTER), TWO, schedule)
    bytes_by_kind = {kind: (bytes_over_time(samples, 0, kind), bytes_over_time(samples, 1, kind)) for kind in KINDS}
    assert bytes_by_kind == {
        "weights": ([(0.0, 1000)], [(0.0, 2000)]),
        "weight_versions": ([(0.0, 0)], [(0.0, 0)]),
        "reference": ([(0.0, 0)], [(0.0, 0)]),
        "updates": ([(0.0, 0)], [(0.0, 0)]),
        "gradients": ([(0.0, 0), (7.0, 1000), (11.0, 0)], [(0.0, 0), (4.5, 2000), (8.5, 0)]),
        "optimizer": ([(0.0, 1)], [(0.0, 2)]),
        "activations": ([(0.0, 100), (1.0, 200), (7.0, 100), (10.0, 0)], [(0.0, 0), (1.5, 200), (7.5, 0)]),
        "receive_buffers": ([(0.0, 0), (1.0, 10), (2.0, 20), (7.0, 10), (10.0, 0)], [(0.0, 20), (1.5, 10), (4.5, 0)]),
        "send_buffers": (  # B0 answers F0, and B1 F1; nobody answers rank 1
            [(0.0, 0), (1.0, 10), (2.0, 20), (5.0, 10), (8.0, 0)],
            [(0.0, 0), (4.5, 10), (7.5, 20)],
        ),
    }


def test_a_gradient_smaller_than_its_activation_takes_its_own_bytes():
    costs = StageCosts((replace(TWO.stages[0], output_gradient_bytes=3), TWO.stages[1]))
    schedule = build("1f1b", 2, 2)  # at the times above
    samples = memory(simulate_lists(schedule, costs, CLUSTER), costs, schedule)
    assert [bytes_over_time(samples, rank, "receive_buffers") for rank in (0, 1)] == [
        [(0.0, 0), (1.0, 3), (2.0, 6), (7.0, 3), (10.0, 0)],
        [(0.0, 20), (1.5, 10), (4.5, 0)],
    ]
    assert [bytes_over_time(samples, rank, "send_buffers") for rank in (0, 1)] == [
        [(0.0, 0), (1.0, 10), (2.0, 20), (5.0, 10), (8.0, 0)],
        [(0.0, 0), (4.5, 3), (7.5, 6)],
    ]
    # weights, gradients, optimizer, activations, and on rank 0 after B0 the output that B1 has not answered and the
    # buffer of the second gradient; on rank 1 during B1 the gradient of B0
    peaks = {device: peak.total_bytes for device, peak in peak_memory(samples).items()}
    assert peaks == {0: 2 * 1000 + 1 + 100 + 10 + 3, 1: 2 * 2000 + 2 + 200 + 3}
    for evaluate in (simulate_lists, simulate_arrays):
        timeline = evaluate(build("naive", 2, 1), costs, flat(2, Link(0.5, bandwidth_bytes_per_s=10)))
        assert timeline.makespan_s == pytest.approx(1 + (0.5 + 1) + 1 + 2 + (0.5 + 0.3) + 2 + 1, rel=1e-12)


def test_a_buffer_at_use_is_there_while_a_backward_uses_it_and_never_for_a_forward_whose_input_it_becomes():
    schedule = build("1f1b", 2, 2)
    samples = memory(simulate_lists(schedule, TWO, CLUSTER), TWO, schedule, buffers="at_use")
    assert bytes_over_time(samples, 0, "receive_buffers") == [(0.0, 0), (5.0, 10), (7.0, 0), (8.0, 10), (10.0, 0)]
    assert bytes_over_time(samples, 1, "receive_buffers") == [(0.0, 0)]


def test_a_backward_holds_what_it_works_in_while_it_runs():
    schedule = build("1f1b", 2, 2)  # at the times above
    costs = StageCosts(tuple(replace(cost, working_bytes=cost.saved_bytes // 4) for cost in TWO.stages))
    samples = memory(simulate_lists(schedule, costs, CLUSTER), costs, schedule)
    assert [bytes_over_time(samples, rank, "activations") for rank in (0, 1)] == [
        [(0.0, 100), (1.0, 200), (5.0, 225), (7.0, 100), (8.0, 125), (10.0, 0)],
        [(0.0, 0), (1.5, 200), (2.5, 250), (4.5, 200), (5.5, 250), (7.5, 0)],
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "zbv", "interleaved"])
def test_ops_that_begin_a_rounding_late_hold_no_more(name, seed):
    """All times are whole seconds; a message that has its own sum comes a rounding after an op has ended."""
    schedule = lower(build(name, 4, 8, 2 if name == "interleaved" else None))
    cost = StageCost(1.0, 2.0, 1.0, 1.0, step_s=1.0, output_bytes=300, saved_bytes=100, weight_bytes=70)
    costs = StageCosts((cost,) * schedule.num_stages)
    exact = simulate_lists(schedule, costs, flat(4, Link(1.0)))
    draw = Random(seed)

    def late(time_s: float) -> float:
        return time_s * (1 + draw.choice((0, 1, 3)) * 2**-52)

    spans = [replace(span, start_s=late(span.start_s)) if span.end_s > span.start_s else span for span in exact.spans]
    rounded = replace(exact, spans=tuple(spans))
    assert rounded.spans != exact.spans
    assert {device: peak.total_bytes for device, peak in peak_memory(memory(rounded, costs, schedule)).items()} == {
        device: peak.total_bytes for device, peak in peak_memory(memory(exact, costs, schedule)).items()
    }


def test_ops_that_take_less_than_a_rounding_hold_what_ops_of_no_time_do():
    schedule = lower(build("zbv", 2, 4))

    def peaks(input_s: float) -> dict[int, int]:
        cost = StageCost(1.0, None, input_s, 1.0, output_bytes=300, saved_bytes=100, weight_bytes=70)
        costs = StageCosts((cost,) * schedule.num_stages)
        return peak_bytes(simulate_lists(schedule, costs, flat(2, Link(1.0))), costs, schedule)

    assert peaks(0.0) == peaks(1e-14) == peaks(1e-12)


@pytest.mark.parametrize("begin_s", [0.0, 5.0, 1.7e9])
def test_peaks_are_the_same_whenever_a_timeline_begins(begin_s):
    schedule = lower(build("1f1b", 4, 8))
    costs = StageCosts((StageCost(1.0, 2.0, output_bytes=10, saved_bytes=100, weight_bytes=1000),) * 4)
    timeline = simulate_lists(schedule, costs, flat(4, Link(1e-3)))
    spans = tuple(
        replace(
            span,
            posted_s=span.posted_s + begin_s,
            start_s=span.start_s + begin_s,
            end_s=span.end_s + begin_s,
        )
        for span in timeline.spans
    )
    samples = memory(replace(timeline, spans=spans), costs, schedule)
    assert samples[0].time_s == begin_s
    peaks = {device: peak.total_bytes for device, peak in peak_memory(samples).items()}
    assert peaks == peak_bytes(timeline, costs, schedule)


def test_the_peak_says_when_and_of_what():
    schedule = build("1f1b", 2, 2)
    peaks = peak_memory(memory(simulate_lists(schedule, TWO, CLUSTER), TWO, schedule))
    assert {device: (peak.time_s, peak.total_bytes) for device, peak in peaks.items()} == {
        0: (7.0, 2121),
        1: (4.5, 4212),
    }
    assert dict(peaks[0].bytes_by_kind)["activations"] == 100


def test_an_output_that_is_saved_is_held_once_unless_it_is_made_again():
    costs = StageCosts((replace(TWO.stages[0], output_is_saved=True), TWO.stages[1]))
    schedule = build("1f1b", 2, 2)
    samples = memory(simulate_lists(schedule, costs, CLUSTER), costs, schedule)
    assert bytes_over_time(samples, 0, "send_buffers") == [(0.0, 0)]
    assert bytes_over_time(samples, 1, "send_buffers") == [(0.0, 0), (4.5, 10), (7.5, 20)]
    again = recompute(schedule)
    samples = memory(simulate_lists(again, costs, CLUSTER), costs, again)
    assert max(num_bytes for _, num_bytes in bytes_over_time(samples, 0, "send_buffers")) == 20


def test_an_answer_tells_of_all_that_was_used_before_it():
    # rank 1 has used both when it sends B1, and then B0: rank 0, which takes B0 first, lets go of both
    zero = [forward(0, 0), forward(0, 1), backward(0, 0), backward(0, 1)]
    second_row = [forward(1, 0), forward(1, 1), backward(1, 1), backward(1, 0)]
    schedule = lower(make_schedule("late", 2, 2, [zero, second_row]))
    timeline = simulate_lists(schedule, TWO, flat(2))
    begin_s = {str(span.op): span.start_s for span in timeline.spans}
    assert (begin_s["0B0"], begin_s["0B1"]) == (7.0, 9.0)
    assert bytes_over_time(memory(timeline, TWO, schedule), 0, "send_buffers") == [
        (0.0, 0),
        (1.0, 10),
        (2.0, 20),
        (7.0, 0),
    ]


PAIR = Overlap(forward(0, 1), backward(0, 0))
AGAIN = Compute(Phase.RECOMPUTE, 1, 0)
AHEAD = [Compute(Phase.FORWARD, 0, i, version=i, lookahead=2) for i in range(2)]
ALONE = {
    "in a pair, a backward holds what it works in for as long as the pair runs": (
        [forward(0, 0), PAIR, backward(0, 1)],
        [StageCost(1.0, 2.0, saved_bytes=7, working_bytes=5)],
        {"activations": [(0, 7), (1, 19), (3.5, 12), (5.5, 0)]},
    ),
    "a split backward holds the activations to the end of W": (
        [forward(0, 0), backward_input(0, 0), backward_weight(0, 0)],
        [StageCost(1.0, None, 2.0, 3.0, saved_bytes=7, weight_bytes=50, working_bytes=20)],
        {"activations": [(0, 7), (1, 27), (3, 7), (6, 0)], "gradients": [(0, 0), (6, 50)]},
    ),
    "after I, only what W needs is held": (
        [forward(0, 0), backward_input(0, 0), forward(0, 1), backward_weight(0, 0)],
        [StageCost(1.0, None, 2.0, 3.0, saved_bytes=7, saved_for_weight_bytes=4)],
        {"activations": [(0, 7), (3, 4 + 7), (7, 7)]},
    ),
    "an R keeps only the input until it runs, which the rank itself hands on": (
        [forward(0, 0), forward(1, 0), AGAIN, backward(1, 0), backward(0, 0)],
        [StageCost(1.0, 1.0, output_bytes=10), StageCost(1.0, 1.0, saved_bytes=100, working_bytes=7)],
        {"activations": [(0, 0), (1, 10), (2, 100), (3, 107), (4, 0)], "send_buffers": [(0, 0), (4, 10), (5, 0)]},
    ),
    "a recomputed stage frees after I what W does not need": (
        [forward(0, 0), forward(1, 0), AGAIN, backward_input(1, 0), backward_weight(1, 0)],
        [StageCost(1.0, output_bytes=10), StageCost(1.0, None, 1.0, 1.0, saved_bytes=100, saved_for_weight_bytes=30)],
        {"activations": [(0, 0), (1, 10), (2, 100), (4, 30), (5, 0)]},
    ),
    "a version that a Step overwrites is kept until its last reader is done": (
        [forward(0, 0), forward(0, 1), backward(0, 0), Step(0), backward(0, 1), Step(0)],
        [StageCost(1.0, 2.0, step_s=0.5, weight_bytes=50)],
        {
            "weight_versions": [(0, 0), (4, 50), (6.5, 0)],
            "gradients": [(0, 0), (4, 50), (4.5, 0), (6.5, 50), (7, 0)],
        },
    ),
    "a predicted copy lives as long as its op, and before a Step there is no state to predict from": (
        [AHEAD[0], backward(0, 0), Step(0), AHEAD[1], backward(0, 1, 1)],
        [StageCost(1.0, 2.0, weight_bytes=50)],
        {"weight_versions": [(0, 0), (3, 50), (4, 0)]},
    ),
}


@pytest.mark.parametrize(("ops", "stages", "expected"), ALONE.values(), ids=ALONE)
def test_a_rank_alone_holds_what_was_worked_out_by_hand(ops, stages, expected):
    costs = StageCosts(tuple(stages), overlap=0.5)
    schedule = make_schedule("alone", len(stages), 2, [ops])
    samples = memory(simulate_lists(schedule, costs), costs, schedule)
    assert {kind: bytes_over_time(samples, 0, kind) for kind in expected} == expected


def test_a_buffer_per_microbatch_is_there_from_the_beginning_and_keeps_the_input():
    schedule = build("1f1b", 2, 3)
    samples = memory(simulate_lists(schedule, TWO, CLUSTER), TWO, schedule, buffers="per_microbatch")
    for rank in (0, 1):
        assert bytes_over_time(samples, rank, "receive_buffers") == [(0.0, 3 * 10)]
    most = [max(num_bytes for _, num_bytes in bytes_over_time(samples, rank, "activations")) for rank in (0, 1)]
    assert most == [2 * 100, 200 - 10]


def test_a_buffer_per_microbatch_is_there_even_for_what_stays_on_the_rank():
    # PyTorch makes it all the same, and puts the tensor in its place when it is handed over.
    schedule = v_shaped()
    costs = StageCosts((StageCost(1.0, 2.0, output_bytes=10, saved_bytes=100),) * 4)
    timeline = simulate_lists(schedule, costs)
    own = memory(timeline, costs, schedule, buffers="per_microbatch")
    # two micro-batches; rank 0 gets activations for stage 3 and gradients for 0, rank 1 both for both of its stages
    assert [bytes_over_time(own, rank, "receive_buffers") for rank in (0, 1)] == [
        [(0.0, 2 * 2 * 10)],
        [(0.0, 2 * 4 * 10)],
    ]
    held = {kind for sample in own for kind, num_bytes in sample.bytes_by_kind if num_bytes}
    assert held == {"receive_buffers", "activations"}  # transfers take no time here, and nothing is held twice


def test_a_reduce_holds_nothing_of_its_own():
    schedule = replicated()
    costs = StageCosts((StageCost(1.0, 2.0, step_s=1.0, weight_bytes=100),) * 2)
    samples = memory(simulate_lists(schedule, costs, flat(2, Link(0.5))), costs, schedule)
    for device in (0, 1):  # two ranks on each: weights and gradients twice, nothing else
        peak = max(sample.total_bytes for sample in samples if sample.device == device)
        assert peak == 2 * (100 + 100)


def test_a_predicted_copy_is_dropped_just_after_the_gradients_are_there():
    ops = [forward(0, 0), backward(0, 0), Step(0), forward(0, 1, 1), Compute(Phase.BACKWARD, 0, 1, 1, 1), Step(0)]
    costs = StageCosts((StageCost(1.0, 2.0, step_s=1.0, saved_bytes=7, weight_bytes=50),))
    schedule = make_schedule("ahead", 1, 2, [ops])
    samples = memory(simulate_lists(schedule, costs), costs, schedule)
    # the second B runs from 5 to 7 s
    held = [
        (s.time_s, *map(dict(s.bytes_by_kind).get, ("weight_versions", "gradients", "activations"))) for s in samples
    ]
    assert held[-5:] == [(4.0, 0, 0, 7), (5.0, 50, 0, 7), (7.0, 50, 50, 0), (7.0, 0, 50, 0), (8.0, 0, 0, 0)]


def test_the_first_moment_over_capacity_is_reported_with_rank_time_and_op():
    schedule = build("1f1b", 2, 2)
    timeline = simulate_lists(schedule, TWO, CLUSTER)
    samples = memory(timeline, TWO, schedule)
    tight = Cluster((Device(memory_bytes=2120), Device(memory_bytes=4212)))
    overflow = over_capacity(samples, tight, timeline)
    assert overflow is not None
    assert str(overflow) == "device 0 holds 2121 bytes of 2120 from 7 s on, at 0B0 of rank 0"
    assert over_capacity(samples, Cluster((Device(memory_bytes=2121), Device())), timeline) is None


def test_weights_that_do_not_fit_are_over_capacity_from_the_start():
    schedule = build("1f1b", 2, 2)
    timeline = simulate_lists(schedule, TWO, CLUSTER)
    overflow = over_capacity(memory(timeline, TWO, schedule), Cluster((Device(), Device(memory_bytes=1))), timeline)
    assert overflow is not None
    assert (overflow.device, overflow.rank, overflow.time_s) == (1, 1, 0.0)


def test_costs_of_too_few_stages_are_refused():
    schedule = build("1f1b", 2, 2)
    with pytest.raises(SimulationError, match="of 1 stages, expected 2"):
        memory(simulate_lists(schedule, TWO), uniform(1, 1.0, 2.0), schedule)


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "chimera"])
def test_kept_gradients_are_a_part_of_the_states_under_their_own_kind(name):
    chance = Random(name)
    schedule = lower(build(name, 4, 8))
    costs = random_costs(chance, schedule.num_stages)
    kept = tuple(replace(cost, kept_gradient_bytes=cost.optimizer_bytes // 3) for cost in costs.stages)
    timeline, with_kept = simulate_lists(schedule, costs), replace(costs, stages=kept)
    samples = memory(timeline, with_kept, schedule)
    assert samples == readable_lifetimes.memory(timeline, with_kept, schedule)
    before = memory(timeline, costs, schedule)
    assert [sample.total_bytes for sample in samples] == [sample.total_bytes for sample in before]
    assert samples != before
