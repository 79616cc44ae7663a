from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules import MemorySample, Span, Timeline, make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.ops import Average, Step, backward, forward
from pipesched.simulator import SimulationError
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.theory import gpipe_makespan_s
from pipesched.simulator.tuner.predictor import (
    Accounting,
    DevicePrediction,
    DeviceProfile,
    SettingProfile,
    predict_setting,
    profile_setting,
)
from tests.properties import examples

PAPER, CONSISTENT = Accounting.PAPER, Accounting.CONSISTENT

# Two devices, measured with m = 4 and n = 1.
TWO = SettingProfile(
    4,
    1,
    (
        DeviceProfile(((6.0, 0.5), (2.0, 0.8)), 2.0, 100, 30, data_bytes=40, gradient_bytes=30, in_flight=2),
        DeviceProfile(((4.0, 0.4),), 2.0, 200, 60, data_bytes=20, gradient_bytes=60, in_flight=1),
    ),
)


def close(prediction):
    values = astuple(prediction) if isinstance(prediction, DevicePrediction) else prediction
    return DevicePrediction(*(pytest.approx(value, rel=1e-12) for value in values))


def test_the_equations_as_printed_give_what_was_worked_out_by_hand():
    # M = 2, N = 2: phi is four times as high: 2, 3.2 and 1.6.
    # (2)    2/4 * 1/2 * (8 + 6 * 1 + 2 * 2.2) = 4.6;  2/4 * 1/2 * (4 + 4 * 0.6) = 1.6
    # (4)    4/2 + 1/2 * 0 = 2;  4/2 + 1/2 * (4 - 1.6) = 3.2
    # (6, 7) up (4 + 4.6) / 2 = 4.3 on the second;  down (4 + 1.6) / 2 = 2.8 on the first
    # (8)    2 * 100 + 4 * 40 = 360;  2 * 200 + 4 * 20 = 480
    first, second = predict_setting(TWO, 2, 2, PAPER).devices
    assert first == close((4.6, 2.0, 0.0, 2.8, 360))
    assert second == close((1.6, 3.2, 4.3, 0.0, 480))
    assert predict_setting(TWO, 2, 2, PAPER).seconds == pytest.approx(4.6 + 2.0 + 2.8)
    assert predict_setting(TWO, 2, 2, PAPER).held_bytes == pytest.approx(480)


def test_with_one_accounting_all_terms_are_an_iterations_shared_by_its_batches():
    # (2)    2/4 * 18.4 = 9.2;  2/4 * 6.4 = 3.2, of an iteration of two batches
    # (4)    2 + 0;  2 + 1/2 * (4 - 3.2) = 2.4
    # (6, 7) up (4 + 9.2) / 2 = 6.6;  down (4 + 3.2) / 2 = 3.6; and all of it halved
    # (8)    one reference model and two updates more: 360 + 3 * 30;  480 + 3 * 60. On the first, two in flight,
    #        both go forwards before one goes back: the gradients, 2 * 30, come when half of 160 has gone
    first, second = predict_setting(TWO, 2, 2, CONSISTENT).devices
    assert first == close((4.6, 1.0, 0.0, 1.8, 390))
    assert second == close((1.6, 1.2, 3.3, 0.0, 660))


def test_a_profile_of_two_pipelines_is_taken_apart_into_batches():
    # m = 2, n = 2, asked for M = 4, N = 1: phi falls to a quarter, and nothing is overused.
    # (2) 4/2 * 2/1 * (8 / 2) = 16;  (4) 1/2 * 6 = 3 in all: 3/4 + 3/4 * 0
    # (8) half of 100 + 30 as printed, half of 100 and no reference in one accounting; 1/2 * 1/2 of 40
    profile = SettingProfile(2, 2, (DeviceProfile(((8.0, 0.9),), 6.0, 100, 30, 40, gradient_bytes=60),))
    assert predict_setting(profile, 4, 1, PAPER).devices[0] == close((16.0, 0.75, 0.0, 0.0, 75))
    assert predict_setting(profile, 4, 1, CONSISTENT).devices[0] == close((16.0, 0.75, 0.0, 0.0, 60))


@pytest.mark.parametrize(
    ("m", "paper", "consistent"),
    [
        (8, 100 + 20, 100 + 20),
        (4, 100 + 40, 100 + 40),
        (2, 100 + 80, 70 + 80),  # F F B B: no gradients beside two, and 30 + 40 beside one
        (1, 100 + 160, 70 + 80),  # not two of twice the size
    ],
)
def test_no_more_microbatches_are_in_flight_than_there_are(m, paper, consistent):
    single = replace(TWO, devices=TWO.devices[:1])
    assert predict_setting(single, m, 1, PAPER).held_bytes == pytest.approx(paper)
    assert predict_setting(single, m, 1, CONSISTENT).held_bytes == pytest.approx(consistent)


def test_gradients_that_are_larger_than_a_microbatch_are_counted_beside_the_others():
    device = replace(TWO.devices[0], model_bytes=170, gradient_bytes=100, reference_bytes=100)
    # 70, and 100 beside the 40 that one of two holds: more than 80
    assert predict_setting(SettingProfile(4, 1, (device,)), 2, 1, CONSISTENT).held_bytes == pytest.approx(70 + 140)


def test_three_devices_wait_for_all_that_is_before_and_behind_them():
    # m = M = 2, N = 1: (1 + 2) / 2, (3 + 4) / 2, (5 + 6) / 2 seconds of a micro-batch
    devices = tuple(
        DeviceProfile(((compute, 0.1),), transfer) for transfer, compute in ((1.0, 2.0), (3.0, 4.0), (5.0, 6.0))
    )
    waits = [
        (device.upstream_s, device.downstream_s)
        for device in predict_setting(SettingProfile(2, 1, devices), 2, 1).devices
    ]
    assert waits == [(0.0, 9.0), (1.5, 5.5), (5.0, 0.0)]


@examples(30)
@given(
    m=st.integers(1, 8),
    asked=st.integers(1, 8),
    phi=st.floats(0.01, 1.0),
    transfer_s=st.floats(0.0, 10.0),
    num_devices=st.integers(1, 4),
)
def test_for_one_pipeline_both_accountings_are_the_same(m, asked, phi, transfer_s, num_devices):
    device = DeviceProfile(((3.0, phi),), transfer_s, 10, 3, 5, gradient_bytes=3, in_flight=1)
    profile = SettingProfile(m, 1, (device,) * num_devices)
    paper, consistent = (predict_setting(profile, 1 + asked, 1, accounting) for accounting in (PAPER, CONSISTENT))
    for paper_device, other in zip(paper.devices, consistent.devices, strict=True):
        assert paper_device == close(other)


@pytest.mark.parametrize(("p", "m", "c"), [(1, 4, 0.0), (2, 8, 1.0), (3, 6, 0.25), (4, 8, 0.5)])
def test_the_setting_of_the_profile_itself_takes_gpipes_time(p, m, c):
    """With what a device receives as its transfers Eq. 1 is AFAB's closed form, as in Fig. 7: 9 (t_f + t_b) + 2 c."""
    timeline = simulate_lists(build("1f1b_afp", p, m, advance=m), uniform(p, 1.0, 2.0), flat(p, Link(c)))
    profile = profile_setting(timeline, uniform(p, 1.0, 2.0), 1)
    prediction = predict_setting(profile, m, 1)
    for device in prediction.devices:
        assert device.seconds == pytest.approx(gpipe_makespan_s(p, m, 1.0, 2.0, c), rel=1e-12)


def test_a_profile_is_read_off_a_timeline():
    costs = StageCosts((StageCost(1.0, 1.0, weight_bytes=50, utilisation=0.4),))
    spans = (
        Span(0, forward(0, 0), 0.0, 0.0, 2.0),
        Span(0, backward(0, 0), 2.0, 4.0, 5.0),
        Span(0, Step(0), 5.0, 5.0, 5.5),
        Span(0, Average(0), 5.5, 5.5, 5.5),
        Span(1, forward(0, 1), 0.0, 1.0, 3.0),
        Span(1, backward(0, 1), 3.0, 4.0, 4.5),
    )
    kinds = {"weights": 100, "gradients": 100, "optimizer": 20, "reference": 50, "updates": 100, "activations": 10}
    small = MemorySample(0, 0.0, (("weights", 100),))
    timeline = Timeline("x", "measured", spans, (0, 0), (small, MemorySample(0, 1.0, tuple(kinds.items()))))
    (device,) = profile_setting(timeline, costs, 2).devices
    assert device.curve == ((1.0, 0.4), (1.0, 0.8), (1.0, 0.4), (0.5, 0.8), (0.5, 0.4), (0.5, 0.4))
    assert device.compute_s == 4.5
    assert (device.model_bytes, device.reference_bytes, device.data_bytes) == (220, 50, 10)
    assert (device.gradient_bytes, device.in_flight) == (100, 1)


def test_a_device_is_never_more_than_full():
    costs = StageCosts((StageCost(1.0, 1.0, utilisation=0.7),))
    profile = profile_setting(simulate_lists(build("avgpipe", 1, 4), costs), costs, 2)
    assert (profile.num_microbatches, profile.num_pipelines) == (2, 2)
    assert {phi for _, phi in profile.devices[0].curve} == {1.0}
    assert profile.devices[0].compute_s == pytest.approx(4 * 1.4)


@pytest.mark.parametrize(("m", "n"), [(0, 1), (1, 0), (-2, 1)])
def test_counts_below_1_are_refused(m, n):
    with pytest.raises(SimulationError, match=f"got M = {m}, N = {n}, expected at least 1 of each"):
        predict_setting(TWO, m, n)


def test_a_timeline_of_other_pipelines_is_refused():
    schedule = make_schedule("x", 1, 1, [[forward(0, 0), backward(0, 0)]])
    with pytest.raises(SimulationError, match="got 1 micro-batches of 2 pipelines"):
        profile_setting(simulate_lists(schedule, uniform(1, 1.0, 1.0)), uniform(1, 1.0, 1.0), 2)
