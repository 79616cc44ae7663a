import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles.clusters import Device, Link, flat
from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules import Span, Timeline, make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.ops import Message, Payload, Recv, Reduce, Send, Step, backward, forward
from pipesched.simulator import NetworkOptions, SimulationError
from pipesched.simulator.analysis import CAUSES, Metrics, metrics
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import memory
from tests.properties import examples


def causes(run_metrics: Metrics, device: int) -> dict[str, float]:
    return {cause: seconds for cause, seconds in run_metrics.devices[device].idle_by_cause_s if seconds}


def test_the_idle_time_of_two_ranks_is_charged_as_worked_out_by_hand():
    #          0    1    2              4.5 5        7    8         10
    # rank 0   F0   F1                      B0            B1
    # rank 1       1.5 F0 2.5 B0   4.5 F1 5.5 B1  7.5
    run_metrics = metrics(simulate_lists(build("1f1b", 2, 2), uniform(2, 1.0, 2.0), flat(2, Link(0.5))))
    assert run_metrics.makespan_s == 10.0
    assert causes(run_metrics, 0) == {"downstream": 3.0, "transfer": 1.0}
    assert causes(run_metrics, 1) == {"warmup": 1.5, "cooldown": 2.5}
    assert [device.span_s for device in run_metrics.devices] == [10.0, 6.0]
    assert run_metrics.bubble_fraction == 8 / 20
    assert run_metrics.bubble_overhead == 4 / 6
    assert run_metrics.bubble_of_longest_span == 4 / 10
    assert run_metrics.throughput == 0.2


def test_a_starved_rank_waits_upstream():
    run_metrics = metrics(simulate_lists(build("gpipe", 2, 2), StageCosts((StageCost(3.0, 1.0), StageCost(1.0, 1.0)))))
    assert causes(run_metrics, 1) == {"warmup": 3.0, "upstream": 2.0, "cooldown": 1.0}


def test_a_gap_is_cut_at_the_post_of_the_send_and_at_start_and_arrival_of_the_transfer():
    message = Message(Payload.ACTIVATION, 0, 1)
    spans = (
        Span(0, forward(0, 1), 0.0, 0.0, 1.0),
        Span(0, Send(message, 1), 1.0, 2.0, 4.0),
        Span(1, forward(1, 0), 0.0, 0.0, 0.5),
        Span(1, Recv(message, 0), 0.5, 2.0, 4.0),
        Span(1, forward(1, 1), 0.5, 5.0, 6.0),
    )
    run_metrics = metrics(Timeline("by hand", "measured", spans, (0, 1)))
    assert causes(run_metrics, 1) == {"upstream": 0.5, "busy_link": 1.0, "transfer": 2.0, "overhead": 1.0}


def test_instants_outside_of_the_gap_are_clamped_into_it():
    message = Message(Payload.GRADIENT, 1, 0)
    spans = (
        Span(0, forward(0, 0), 0.0, 0.0, 2.0),
        Span(0, Recv(message, 1), 0.0, 1.0, 9.0),
        Span(0, backward(0, 0), 2.0, 3.0, 4.0),
        Span(1, backward(1, 0), 0.0, 0.0, 4.5),
        Span(1, Send(message, 0), 2.5, 1.0, 9.0),
    )
    run_metrics = metrics(Timeline("by hand", "measured", spans, (0, 1)))
    assert causes(run_metrics, 0) == {"downstream": 0.5, "transfer": 0.5, "cooldown": 0.5}


def test_a_reduce_is_idle_time_of_the_collective():
    rows = [[forward(0, 0), backward(0, 0), Reduce(0), Step(0), forward(0, 2)], [forward(0, 1), Reduce(0), Step(0)]]
    for step_s in (0.0, 0.5):
        costs = StageCosts((StageCost(1.0, 2.0, step_s=step_s, weight_bytes=100),))
        run_metrics = metrics(simulate_lists(make_schedule("replicas", 1, 3, rows), costs, flat(2, Link(0.5, 50.0))))
        assert causes(run_metrics, 0) == {"collective": 3.0}
        assert causes(run_metrics, 1) == {"collective": 5.0, "cooldown": 1.0}


@pytest.mark.parametrize("steps", [True, False])
def test_only_the_part_of_a_reduce_that_something_waits_for_is_idle_time(steps):
    """It runs from 3 s to 6 s beside another forward; the Step, or the end of the list, waits for the last 2 s."""
    rows = [[forward(0, 0), backward(0, 0), Reduce(0), forward(0, 2)], [forward(0, 1), Reduce(0)]]
    rows = [[*row, Step(0)] for row in rows] if steps else rows
    costs = StageCosts((StageCost(1.0, 2.0, step_s=0.5, weight_bytes=100),))
    run_metrics = metrics(simulate_lists(make_schedule("replicas", 1, 3, rows), costs, flat(2, Link(0.5, 50.0))))
    assert causes(run_metrics, 0) == {"collective": 2.0}
    assert causes(run_metrics, 1) == {"collective": 5.0}


def test_the_time_of_ranks_that_share_a_device_is_counted_once():
    schedule = make_schedule("shared", 1, 2, [[forward(0, 0)], [forward(0, 1)]], rank_to_device=(0, 0))
    run_metrics = metrics(simulate_lists(schedule, StageCosts((StageCost(1.0),))))
    assert [(device.device, device.busy_s, device.idle_s) for device in run_metrics.devices] == [(0, 2.0, 0.0)]


random_costs = st.builds(
    StageCost, st.floats(0.01, 3.0), st.floats(0.01, 3.0), step_s=st.floats(0.0, 1.0), output_bytes=st.integers(0, 200)
)


@examples(30)
@given(
    name=st.sampled_from(["naive", "gpipe", "1f1b", "pipedream"]),
    costs=st.lists(random_costs, min_size=1, max_size=5),
    m=st.integers(1, 12),
    link=st.builds(Link, st.floats(0.0, 3.0), st.sampled_from([70.0, math.inf])),
    jitter=st.sampled_from([0.0, 0.3]),
    shared=st.booleans(),
)
def test_busy_and_idle_add_up_to_the_makespan_on_every_device(name, costs, m, link, jitter, shared):
    schedule = build(name, len(costs), m)
    if shared:
        schedule = replace(schedule, rank_to_device=tuple(rank // 2 for rank in range(len(costs))))
    run_metrics = metrics(simulate_lists(schedule, StageCosts(tuple(costs)), flat(len(costs), link), jitter=jitter))
    for device in run_metrics.devices:
        charges = [seconds for _, seconds in device.idle_by_cause_s]
        assert device.idle_s == math.fsum(charges)
        assert min(charges) >= 0
        assert device.busy_s + device.idle_s == pytest.approx(run_metrics.makespan_s, rel=1e-12)


@pytest.mark.parametrize(("name", "p"), [("gpipe", 4), ("1f1b", 3), ("zb_h1", 3), ("interleaved", 2)])
@pytest.mark.parametrize("link", [Link(0.1), Link(0.0, 10.0), Link(0.1, 30.0)])
def test_what_a_rounding_leaves_over_is_charged_to_nothing(name, p, link):
    tenths = StageCost(0.3, None, 0.1, 0.2, step_s=0.1, output_bytes=1)  # their sums are not what they are on paper
    schedule = build(name, p, 6)
    run_metrics = metrics(simulate_lists(schedule, StageCosts((tenths,) * schedule.num_stages), flat(p, link)))
    for device in run_metrics.devices:
        assert all(seconds == 0 or seconds > 1e-3 for _, seconds in device.idle_by_cause_s)
        assert device.busy_s + device.idle_s == pytest.approx(run_metrics.makespan_s, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_charges_add_up_whatever_the_clocks_of_a_measured_run_say(seed):
    exact = simulate_lists(build("1f1b", 3, 4), uniform(3, 1.0, 2.0), flat(3, Link(0.3)))
    draw = random.Random(seed).uniform
    spans = []
    for span in exact.spans:
        start_s = span.start_s + draw(-0.8, 0.8)
        spans.append(replace(span, start_s=start_s, end_s=start_s + draw(0.0, 2.4)))
    run_metrics = metrics(replace(exact, source="measured", spans=tuple(spans)))
    for device in run_metrics.devices:
        assert device.busy_s + device.idle_s == pytest.approx(run_metrics.makespan_s, rel=1e-12)
        assert [cause for cause, _ in device.idle_by_cause_s] == list(CAUSES)


def test_the_plain_data_has_the_keys_of_the_command_line_and_survives_json():
    timeline = simulate_lists(build("1f1b", 2, 2), uniform(2, 1.0, 2.0))
    costs = uniform(2, 1.0, 2.0)
    with_memory = replace(timeline, memory=memory(timeline, costs, build("1f1b", 2, 2)))
    plain = metrics(with_memory).to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert list(plain) == ["makespan_s", "bubble_fraction", "bubble_overhead", "throughput", "devices"]
    assert list(plain["devices"][0]) == [
        "device", "busy_s", "idle_s", "span_s", "idle_by_cause_s", "peak_memory_bytes", "peak_memory_by_kind",
    ]  # fmt: skip
    assert plain["devices"][0]["peak_memory_bytes"] == 0
    assert metrics(timeline).devices[0].peak_memory_bytes is None


def test_a_timeline_in_which_nothing_takes_time_has_no_metrics():
    with pytest.raises(SimulationError, match="1f1b: got a timeline in which no op takes time"):
        metrics(simulate_lists(build("1f1b", 2, 2), uniform(2, 0.0, 0.0)))


HANDED = Link(0.5, send_s=0.25, post_s=0.125, receive_s=0.0625)


def test_handing_over_is_idle_time_of_its_own_at_both_ends():
    #          0    1     1.25     1.75    1.8125   3.8125  5.8125    6.0625  6.5625    6.625   8.625
    # rank 0   F0   Send  Recv(.125) ..                                               take  B0
    # rank 1   Recv ..                     take  F0      B0       Send
    schedule = build("gpipe", 2, 1)
    run_metrics = metrics(simulate_lists(schedule, StageCosts((StageCost(1.0, 2.0),) * 2), flat(2, HANDED)))
    assert run_metrics.makespan_s == 1 + 0.25 + 0.5 + 0.0625 + 1 + 2 + 0.25 + 0.5 + 0.0625 + 2
    assert causes(run_metrics, 0) == {"downstream": 3.8125, "hand_over": 0.3125, "transfer": 0.5}
    assert causes(run_metrics, 1) == {"warmup": 1.8125, "cooldown": 2.8125}


def test_what_a_rank_posts_between_two_works_that_wait_for_nothing_is_handing_over():
    run_metrics = metrics(simulate_lists(build("gpipe", 2, 3), StageCosts((StageCost(1.0, 1.0),) * 2), flat(2, HANDED)))
    assert causes(run_metrics, 0)["hand_over"] >= 2 * 0.25
    assert "overhead" not in causes(run_metrics, 0)
    assert "overhead" not in causes(run_metrics, 1)


def test_a_blocking_send_is_handed_over_before_it_travels():
    schedule, network = build("gpipe", 2, 2), NetworkOptions(sends="blocking")
    timeline = simulate_lists(schedule, StageCosts((StageCost(1.0, 1.0),) * 2), flat(2, HANDED), network=network)
    second = next(span for span in timeline.of_rank(0) if str(span.op) == "0F1")
    assert second.start_s == 1.75
    first_gap = {"hand_over": 0.25, "transfer": 0.5}
    alone = replace(timeline, spans=tuple(span for span in timeline.spans if span.end_s <= second.end_s))
    assert {cause: causes(metrics(alone), 0)[cause] for cause in first_gap} == first_gap


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb_h1", "dualpipe_v", "chimera"])
def test_what_devices_are_busy_and_idle_is_the_makespan_with_handing_over_too(name):
    schedule = build(name, 4, 8)
    cluster = replace(flat(4, HANDED), devices=(Device(op_s=0.03),) * 4)
    costs = StageCosts((StageCost(1.0, 2.0, 1.0, 1.0, weight_bytes=8),) * schedule.num_stages)
    run_metrics = metrics(simulate_lists(schedule, costs, cluster))
    for device in run_metrics.devices:
        assert device.busy_s + device.idle_s == pytest.approx(run_metrics.makespan_s, rel=1e-12)
        assert causes(run_metrics, device.device).get("overhead", 0.0) == 0.0
