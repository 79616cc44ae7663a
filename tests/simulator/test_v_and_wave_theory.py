"""What goes down the ranks and up again, or both ways at once, takes its closed forms, in time and in memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules import Schedule
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.weights.versions import stages_in_flight
from pipesched.simulator import SimulationError, theory
from pipesched.simulator.analysis import metrics
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import memory
from tests.properties import examples

seconds, units = st.floats(0.01, 10.0), st.integers(1, 4)
exactly = examples(30)


def simulated_s(schedule: Schedule, t_f: float, t_b: float) -> float:
    return simulate_lists(schedule, uniform(schedule.num_stages, t_f, t_b)).makespan_s


def simulated_in_chunk_times_s(name: str, p: int, m: int, t: float) -> float:
    return simulate_lists(build(name, p, m), uniform(2 * p, t, None, t, t)).makespan_s


def most_activations(schedule: Schedule) -> int:
    """Return what the rank that holds most holds, where each chunk of a micro-batch is a byte from F to B or W."""
    costs = StageCosts((StageCost(1.0, 2.0, 1.0, 1.0, saved_bytes=1),) * schedule.num_stages)
    lowered = lower(schedule)
    samples = memory(simulate_lists(lowered, costs), costs, lowered)
    return max(dict(sample.bytes_by_kind)["activations"] for sample in samples)


@exactly
@given(p=st.integers(1, 8), m=st.integers(1, 24), t=seconds)
def test_zbv_takes_its_closed_form_for_any_number_of_microbatches(p, m, t):
    expected = theory.zbv_makespan_s(p, m, t)
    assert simulated_in_chunk_times_s("zbv", p, m, t) == pytest.approx(expected, rel=1e-9)
    if 2 * m >= 3 * p:
        assert expected == (6 * m + p - 1) * t


@pytest.mark.parametrize(("name", "form"), [("v_half", theory.v_half_makespan_s), ("v_min", theory.v_min_makespan_s)])
@pytest.mark.parametrize("p", [*range(1, 10), 16])
def test_v_half_and_v_min_take_what_our_squeezing_comes_to(name, form, p):
    assert simulated_in_chunk_times_s(name, p, 2 * p, 1.0) == form(p, 2 * p, 1.0)
    with pytest.raises(SimulationError, match=f"{name}: got m = {2 * p - 1}, expected m >= {2 * p}"):
        form(p, 2 * p - 1, 1.0)


@pytest.mark.parametrize(
    ("name", "form"),
    [("zbv", theory.zbv_in_flight), ("v_half", theory.v_half_in_flight), ("v_min", theory.v_min_in_flight)],
)
def test_as_many_chunks_are_held_as_the_papers_count(name, form):
    for p, m in [(1, 3), (2, 1), (2, 8), (3, 9), (4, 2), (4, 12), (5, 10), (8, 20)]:
        schedule = build(name, p, m)
        assert max(stages_in_flight(schedule)) == most_activations(schedule) == form(p, m)


@exactly
@given(p=st.integers(1, 6), rounds=units, waves=st.integers(1, 3), t_f=seconds, t_b=seconds)
def test_hanayo_takes_its_closed_form(p, rounds, waves, t_f, t_b):
    m = p * rounds
    makespan_s = simulated_s(build("hanayo", p, m, waves=waves), t_f / (2 * waves), t_b / (2 * waves))
    assert makespan_s == pytest.approx(theory.hanayo_makespan_s(p, m, waves, t_f, t_b), rel=1e-9)


def test_hanayos_form_is_refused_where_p_does_not_divide_m():
    with pytest.raises(SimulationError, match="hanayo: got m = 6, expected a multiple of 4"):
        theory.hanayo_makespan_s(4, 6, 2, 1.0, 1.0)


@exactly
@given(half=st.integers(1, 5), rounds=units, t_f=seconds, t_b=seconds)
def test_chimera_takes_its_closed_form(half, rounds, t_f, t_b):
    p, m = 2 * half, 2 * half * rounds
    expected = theory.chimera_makespan_s(p, m, t_f, t_b)
    assert simulated_s(build("chimera", p, m), t_f, t_b) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_the_bubble_of_chimera_is_the_papers_where_f_and_b_take_as_long(p):
    for m in (p, 2 * p, 4 * p):
        schedule = build("chimera", p, m)
        bubble_fraction = metrics(simulate_lists(schedule, uniform(p, 1.0, 1.0))).bubble_fraction
        assert bubble_fraction == pytest.approx(theory.chimera_bubble_fraction(p, m), rel=1e-12, abs=1e-12)
        assert stages_in_flight(schedule) == tuple(theory.chimera_in_flight(p, rank) for rank in range(p))
        assert most_activations(schedule) == p


@exactly
@given(p=st.integers(2, 8), m=st.integers(2, 16), t_f=seconds, t_b=seconds)
def test_gems_takes_its_closed_form(p, m, t_f, t_b):
    expected = theory.gems_makespan_s(p, m, t_f, t_b)
    assert simulated_s(build("gems", p, m), t_f, t_b) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("p", [2, 4, 16])
def test_the_bubble_of_gems_comes_to_what_the_authors_of_chimera_count_with_a_backward_of_twice_the_time(p):
    """(p - 1) / (p + 1 / 2), arXiv:2107.06925, table 2: the limit for many micro-batches."""
    m = 10**6
    idle = 1 - 3 * m / theory.gems_makespan_s(p, m, 1.0, 2.0)
    assert idle == pytest.approx((p - 1) / (p + 1 / 2), abs=2 / m)
