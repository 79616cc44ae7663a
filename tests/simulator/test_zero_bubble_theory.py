"""The zero-bubble family takes its closed forms, in time and in memory."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules import Schedule, Timeline
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.simulator import SimulationError, theory
from pipesched.simulator.analysis import metrics
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import memory
from tests.properties import examples

p_s, seconds = st.integers(1, 8), st.floats(0.01, 10.0)
exactly = examples(30)


def longest_span_s(timeline: Timeline) -> float:
    return max(device.span_s for device in metrics(timeline).devices)


def timeline_of(schedule: Schedule, t_f: float, t_i: float, t_w: float) -> Timeline:
    return simulate_lists(schedule, uniform(schedule.num_stages, t_f, None, t_i, t_w))


@exactly
@given(p=p_s, more=st.integers(0, 12), t_f=seconds, t_i=seconds, t_w=seconds)
def test_zb_h1_takes_its_closed_form(p, more, t_f, t_i, t_w):
    assume(t_f >= t_w)
    timeline = timeline_of(build("zb_h1", p, p + more), t_f, t_i, t_w)
    expected = theory.zb_h1_longest_span_s(p, p + more, t_f, t_i, t_w)
    assert longest_span_s(timeline) == pytest.approx(expected, rel=1e-9)
    if t_i >= t_w:
        assert timeline.makespan_s == pytest.approx(expected, rel=1e-9)


@exactly
@given(p=p_s, more=st.integers(0, 12), t_f=seconds, t_i=seconds, t_w=seconds)
def test_zb_h2_takes_its_closed_form(p, more, t_f, t_i, t_w):
    assume(t_f >= t_w and t_f + t_i >= 2 * t_w)
    m = 2 * p - 1 + more
    expected = theory.zb_h2_longest_span_s(p, m, t_f, t_i, t_w)
    assert longest_span_s(timeline_of(build("zb_h2", p, m), t_f, t_i, t_w)) == pytest.approx(expected, rel=1e-9)


@exactly
@given(p=st.integers(1, 6), k=st.integers(1, 4), v=st.integers(1, 4), t_f=seconds, t_i=seconds, t_w=seconds)
def test_interleaved_zb_takes_its_closed_form(p, k, v, t_f, t_i, t_w):
    assume(t_f >= t_w)
    timeline = timeline_of(build("interleaved_zb", p, k * p, v), t_f / v, t_i / v, t_w / v)
    expected = theory.interleaved_zb_longest_span_s(p, k * p, v, t_f, t_i, t_w)
    assert longest_span_s(timeline) == pytest.approx(expected, rel=1e-9)


@exactly
@given(p=p_s, more=st.integers(0, 9), extra=st.integers(0, 9))
def test_zb_auto_takes_its_closed_form_of_equal_costs(p, more, extra):
    m, limit = 2 * p - 1 + more, p + extra
    timeline = timeline_of(build("zb_auto", p, m, limit=limit), 1.0, 1.0, 1.0)
    assert longest_span_s(timeline) == theory.zb_auto_longest_span_s(p, m, limit)


@examples(20)
@given(p=p_s, more=st.integers(0, 6), saved=st.integers(0, 100), share=st.floats(0.0, 1.0))
def test_as_much_is_held_as_the_paper_counts(p, more, saved, share):
    kept = round(share * saved)
    cost = StageCost(1.0, None, 1.0, 1.0, saved_bytes=saved, saved_for_weight_bytes=kept)
    for name, m, closed_form in (
        ("zb_h1", p + more, theory.zb_h1_activations),
        ("zb_h2", 2 * p - 1 + more, theory.zb_h2_activations),
    ):
        schedule, costs = lower(build(name, p, m)), StageCosts((cost,) * p)
        samples = memory(simulate_lists(schedule, costs), costs, schedule)
        for rank in range(p):
            held = [dict(sample.bytes_by_kind)["activations"] for sample in samples if sample.device == rank]
            assert max(held) == closed_form(p, rank, saved, kept)


@pytest.mark.parametrize(
    ("form", "arguments", "fault"),
    [
        (theory.zb_h1_longest_span_s, (4, 3, 1.0, 1.0, 1.0), "zb_h1: got m = 3, t_f = 1.0, t_w = 1.0, expected m >= 4"),
        (theory.zb_h2_longest_span_s, (4, 9, 2.0, 1.0, 1.6), "zb_h2: .* expected m >= 7, t_f >= t_w, t_f [+] t_i >= 2"),
        (theory.interleaved_zb_longest_span_s, (4, 9, 2, 1.0, 1.0, 1.0), "got m = 9, .* expected m a multiple of 4"),
        (theory.zb_auto_longest_span_s, (4, 9, 3), "got m = 9, limit = 3, expected m >= 7, limit >= 4"),
    ],
)
def test_where_a_form_does_not_hold_it_is_refused(form, arguments, fault):
    with pytest.raises(SimulationError, match=fault):
        form(*arguments)
