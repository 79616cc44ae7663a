import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster, Device, Link, flat
from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules import Schedule, ScheduleError, Timeline, make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import (
    Compute,
    Message,
    Overlap,
    Payload,
    Phase,
    Recv,
    Reduce,
    Send,
    Step,
    backward,
    forward,
)
from pipesched.schedules.transforms import recompute
from pipesched.simulator import NetworkOptions, SimulationError
from pipesched.simulator.analysis import metrics
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import simulate_arrays
from tests.properties import examples
from tests.simulator.longest_path import longest_path

F0 = Message(Payload.ACTIVATION, 0, 0)
F1 = Message(Payload.ACTIVATION, 0, 1)
B0 = Message(Payload.GRADIENT, 1, 0)


def times(timeline: Timeline, rank: int) -> dict[str, tuple[float, float]]:
    return {str(span.op): (span.start_s, span.end_s) for span in timeline.of_rank(rank)}


seconds = st.floats(0.01, 3.0)
stage_costs = st.builds(
    StageCost,
    forward_s=seconds,
    backward_s=seconds,
    backward_input_s=seconds,
    backward_weight_s=seconds,
    step_s=st.floats(0.0, 1.0),
    output_bytes=st.integers(0, 200),
    weight_bytes=st.integers(0, 200),
)
links = st.builds(
    Link, latency_s=st.floats(0.0, 3.0), bandwidth_bytes_per_s=st.sampled_from([50.0, 300.0, float("inf")])
)
NAMES = ("naive", "gpipe", "1f1b", "1f1b_afp", "interleaved", "pipedream", "dualpipe", "dualpipe_v", "data_parallel")


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    name = draw(st.sampled_from(NAMES))
    num_ranks, rounds, more = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(0, 9))
    match name:
        case "interleaved":
            schedule = build(name, num_ranks, num_ranks * rounds, draw(st.integers(1, 3)))
        case "dualpipe":
            schedule = build(name, 2 * rounds, 4 * rounds + 2 * more)
        case "dualpipe_v":
            schedule = build(name, rounds, 2 * rounds + more)
        case "data_parallel":
            schedule = build(name, num_ranks, num_ranks + more)
        case _:
            parameters = {"advance": draw(st.integers(0, 3))} if name == "1f1b_afp" else {}
            schedule = build(name, num_ranks, 1 + more, **parameters)
    return recompute(schedule) if draw(st.booleans()) else schedule


@examples(60)
@given(
    schedule=schedules(),
    link=links,
    data=st.data(),
    overlap=st.sampled_from([0.0, 0.4, 1.0]),
    protocol=st.sampled_from(["rendezvous", "eager"]),
)
def test_every_schedule_takes_as_long_as_its_longest_path_on_uneven_stages_and_slow_links(
    schedule, link, data, overlap, protocol
):
    size = schedule.num_stages
    costs = StageCosts(tuple(data.draw(st.lists(stage_costs, min_size=size, max_size=size))), overlap=overlap)
    timeline = simulate_lists(schedule, costs, flat(schedule.num_ranks, link), network=NetworkOptions(protocol))
    last_end_s = max(span.end_s for span in timeline.without_messages)
    assert last_end_s == pytest.approx(longest_path(schedule, costs, link), rel=1e-9)


def test_lists_that_are_lowered_already_give_the_same_timeline():
    schedule = build("1f1b", 3, 5)
    cluster = flat(3, Link(0.3))
    assert simulate_lists(schedule, uniform(3, 1.0, 2.0), cluster) == simulate_lists(
        lower(schedule), uniform(3, 1.0, 2.0), cluster
    )


def test_a_timeline_is_predicted_and_has_every_op_of_the_lowered_lists_in_order():
    schedule = lower(build("interleaved", 2, 4, 2))
    timeline = simulate_lists(schedule, uniform(4, 1.0, 2.0))
    assert timeline.source == "predicted"
    assert tuple(tuple(span.op for span in timeline.of_rank(rank)) for rank in range(2)) == schedule.ops


def test_a_slow_device_divides_the_seconds_by_its_speed():
    cluster = Cluster((Device(), Device(speed=0.5)))
    timeline = simulate_lists(build("naive", 2, 1), uniform(2, 1.0, 2.0), cluster)
    assert times(timeline, 1)["1F0"] == (1.0, 3.0)
    assert times(timeline, 1)["1B0"] == (3.0, 7.0)


def test_messages_of_one_channel_go_one_after_the_other_and_the_latency_is_pipelined():
    # 100 bytes at 50 bytes/s keep the channel for 2 s; F makes one every second.
    costs = StageCosts((StageCost(1.0, 1.0, output_bytes=100), StageCost(1.0, 1.0)))
    timeline = simulate_lists(build("gpipe", 2, 3), costs, flat(2, Link(0.5, 50.0)))
    received = times(timeline, 1)
    assert received["1RECV_F0"] == (1.0, 3.5)
    assert received["1RECV_F1"] == (3.0, 5.5)
    assert received["1RECV_F2"] == (5.0, 7.5)
    assert times(timeline, 0)["0SEND_F2"] == (5.0, 7.5)
    assert received["1F2"] == (7.5, 8.5)
    posted = {str(span.op): span.posted_s for span in timeline.spans}
    assert (posted["0SEND_F1"], posted["1RECV_F1"]) == (2.0, 0.0)


def late_receiver() -> Schedule:
    return make_schedule(
        "late receiver", 2, 2,
        [
            [forward(0, 0), Send(F0, 1), forward(0, 1), Send(F1, 1)],
            [Recv(F0, 0), forward(1, 0), Recv(F1, 0), forward(1, 1)],
        ],
    )  # fmt: skip


def test_rendezvous_waits_for_the_receiver_and_eager_does_not():
    costs = StageCosts((StageCost(1.0), StageCost(5.0)))
    cluster = flat(2, Link(2.0))
    assert times(simulate_lists(late_receiver(), costs, cluster), 1) == {
        "1RECV_F0": (1.0, 3.0), "1F0": (3.0, 8.0), "1RECV_F1": (8.0, 10.0), "1F1": (10.0, 15.0),
    }  # fmt: skip
    assert times(simulate_lists(late_receiver(), costs, cluster, network=NetworkOptions("eager")), 1) == {
        "1RECV_F0": (1.0, 3.0), "1F0": (3.0, 8.0), "1RECV_F1": (2.0, 4.0), "1F1": (8.0, 13.0),
    }  # fmt: skip


PAIR = Overlap(forward(0, 1), backward(0, 0))
PAIRED = make_schedule("overlap", 1, 2, [[forward(0, 0), PAIR, backward(0, 1)]])


@pytest.mark.parametrize(("overlap", "end_s"), [(0.0, 4.0), (0.25, 3.75), (1.0, 3.0)])
def test_an_overlap_takes_the_longer_and_what_is_not_hidden_of_the_shorter_in_one_span(overlap, end_s):
    assert times(simulate_lists(PAIRED, uniform(1, 1.0, 2.0, overlap=overlap)), 0)[str(PAIR)] == (1.0, end_s)
    assert times(simulate_lists(PAIRED, uniform(1, 2.0, 1.0, overlap=overlap)), 0)[str(PAIR)] == (2.0, end_s + 1)


def test_the_two_of_an_overlap_use_a_shared_device_together_while_both_run():
    # Each op uses 0.4 of the device. For the 0.5 s that both of the pair run, 0.8 and the 0.4 of rank 1 are wanted:
    # that takes 0.6 s, and rank 1 is late by as much as the pair. All else runs at full speed.
    pair = Overlap(forward(0, 3), backward(0, 0))
    rows = [[forward(0, 0), forward(0, 1), pair], [forward(0, 2), backward(0, 2)]]
    costs = StageCosts((StageCost(1.0, 2.0, utilisation=0.4),), overlap=0.5)
    timeline = simulate_lists(make_schedule("shared", 1, 4, rows, rank_to_device=(0, 0)), costs)
    assert times(timeline, 0)[str(pair)] == (2.0, pytest.approx(2.0 + 2.5 + 0.1))
    assert times(timeline, 1)["0B2"] == (1.0, pytest.approx(3.0 + 0.1))


def test_every_half_of_an_overlap_has_a_jitter_of_its_own():
    costs = uniform(1, 1.0, 2.0, overlap=1.0)
    apart = make_schedule("apart", 1, 2, [[forward(0, 0), forward(0, 1), backward(0, 0), backward(0, 1)]])
    seconds = [span.end_s - span.start_s for span in simulate_lists(apart, costs, jitter=0.3, seed=5).spans]
    start_s, end_s = times(simulate_lists(PAIRED, costs, jitter=0.3, seed=5), 0)[str(PAIR)]
    assert end_s - start_s == pytest.approx(max(seconds[1:3]), rel=1e-12)


@pytest.mark.parametrize("overlap", [-0.1, 1.1, float("nan")])
def test_an_overlap_that_is_no_share_is_refused(overlap):
    with pytest.raises(SimulationError, match=r"costs \(uniform\) of overlap .*, expected 0 to 1"):
        simulate_lists(PAIRED, uniform(1, 1.0, 2.0, overlap=overlap))


def test_jitter_is_reproducible_and_does_not_depend_on_the_protocol():
    costs = uniform(2, 1.0, 2.0)

    def durations(**options: object) -> list[float]:
        timeline = simulate_lists(late_receiver(), costs, flat(2, Link(2.0)), jitter=0.2, **options)
        return [span.end_s - span.start_s for span in timeline.spans if isinstance(span.op, Compute)]

    assert durations(seed=1) == durations(seed=1)
    assert durations(seed=1) == pytest.approx(durations(seed=1, network=NetworkOptions("eager")), rel=1e-12)
    assert durations(seed=1) != durations(seed=2)
    assert len(set(durations(seed=1))) == 4


def test_a_deadlock_names_every_stuck_rank_its_op_and_what_it_waits_for():
    rows = [
        [forward(0, 0), Recv(B0, 1), backward(0, 0)],
        [Recv(F0, 0), forward(1, 0), backward(1, 0), Send(B0, 0)],
    ]
    with pytest.raises(SimulationError) as caught:
        simulate_lists(make_schedule("unsent", 2, 1, rows), uniform(2, 1.0, 2.0))
    assert str(caught.value) == (
        "unsent: deadlock: rank 0 at 0B0 waits for 1SEND_B0 of rank 1, rank 1 at 1F0 waits for 0SEND_F0 of rank 0; "
        "check the schedule"
    )


def test_a_reduce_that_a_replica_never_reaches_is_a_deadlock():
    rows = [[forward(0, 0), Send(F0, 1), Reduce(0), Reduce(0)], [forward(0, 1), Reduce(0), Recv(F0, 0)]]
    with pytest.raises(SimulationError, match="rank 0 at the end of its list waits for 0REDUCE_GRAD of rank 1"):
        simulate_lists(make_schedule("replicas", 1, 2, rows), uniform(1, 1.0, 2.0))
    rows[0].append(Step(0))
    with pytest.raises(SimulationError, match="rank 0 at 0STEP waits for 0REDUCE_GRAD of rank 1"):
        simulate_lists(make_schedule("replicas", 1, 2, rows), uniform(1, 1.0, 2.0))


def test_costs_of_too_few_stages_and_a_cluster_of_too_few_devices_are_both_reported():
    with pytest.raises(
        SimulationError, match=r"costs \(uniform\) of 2 stages, expected 3; .* of 1 devices, expected 3"
    ):
        simulate_lists(build("1f1b", 3, 3), uniform(2, 1.0, 2.0), flat(1))


def test_a_phase_without_seconds_is_named():
    schedule = make_schedule("split", 1, 1, [[forward(0, 0), Compute(Phase.BACKWARD_INPUT, 0, 0)]])
    with pytest.raises(ProfileError, match="got no seconds of I on stage 0"):
        simulate_lists(schedule, uniform(1, 1.0, 2.0))


def test_a_step_of_a_stage_without_costs_is_refused():
    with pytest.raises(ScheduleError, match=r"far: .* 7STEP: expected a stage below 1"):
        simulate_lists(make_schedule("far", 1, 1, [[forward(0, 0), Step(7)]]), uniform(1, 1.0, 2.0))


def test_a_jitter_and_a_protocol_that_are_none_are_refused():
    with pytest.raises(
        SimulationError, match=r"protocol: got 'later', expected one of rendezvous, eager; jitter: got -0\.1"
    ):
        simulate_lists(build("1f1b", 2, 2), uniform(2, 1.0, 2.0), network=NetworkOptions("later"), jitter=-0.1)


@pytest.mark.parametrize(
    ("name", "predict_s", "busy_s"),
    [
        ("vanilla_1f1b", None, [9.0, 9.0]),
        ("pipedream", None, [10.0, 9.0]),  # the first rank keeps version 0 for B1, and version 1 for B2
        # and predicts for F2 alone: before the first Step there is nothing to predict from
        ("pipeoptim", None, [9.5, 9.0]),
        ("pipeoptim", 0.75, [9.75, 9.0]),
    ],
)
@pytest.mark.parametrize("evaluate", [simulate_lists, simulate_arrays])
def test_copies_of_weights_take_their_time_where_they_are_made(name, predict_s, busy_s, evaluate):
    costs = StageCosts((StageCost(1.0, 2.0, copy_s=0.5, predict_s=predict_s),) * 2)
    timeline = evaluate(build(name, 2, 3), costs)
    assert [device.busy_s for device in metrics(timeline).devices] == busy_s
