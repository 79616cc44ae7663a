import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import recompute
from pipesched.schedules.weights.versions import stages_in_flight
from pipesched.simulator import SimulationError, theory
from pipesched.simulator.analysis import metrics
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import memory
from tests.properties import examples

p_s, m_s, v_s = st.integers(1, 8), st.integers(1, 20), st.integers(1, 4)
seconds, delays = st.floats(0.01, 10.0), st.one_of(st.just(0.0), st.floats(0.0, 20.0))
exactly = examples(30)


def simulated_s(
    name: str, p: int, m: int, t_f: float, t_b: float, delay_s: float = 0.0, v: int = 1, **parameters: int
) -> float:
    schedule = build(name, p, m, v if name == "interleaved" else None, **parameters)
    return simulate_lists(schedule, uniform(p * v, t_f / v, t_b / v), flat(p, Link(delay_s))).makespan_s


@exactly
@given(p=p_s, m=m_s, t_f=seconds, t_b=seconds, delay_s=delays)
def test_naive_takes_its_closed_form(p, m, t_f, t_b, delay_s):
    expected = theory.naive_makespan_s(p, m, t_f, t_b, delay_s)
    assert simulated_s("naive", p, m, t_f, t_b, delay_s) == pytest.approx(expected, rel=1e-9)


@exactly
@given(p=p_s, m=m_s, t_f=seconds, t_b=seconds, delay_s=delays)
def test_gpipe_takes_its_closed_form(p, m, t_f, t_b, delay_s):
    expected = theory.gpipe_makespan_s(p, m, t_f, t_b, delay_s)
    assert simulated_s("gpipe", p, m, t_f, t_b, delay_s) == pytest.approx(expected, rel=1e-9)


@exactly
@given(p=p_s, m=m_s, t_f=seconds, t_b=seconds, delay_s=delays)
def test_one_f_one_b_takes_its_closed_form_for_any_delay_and_any_number_of_microbatches(p, m, t_f, t_b, delay_s):
    expected = theory.one_f_one_b_makespan_s(p, m, t_f, t_b, delay_s)
    assert simulated_s("1f1b", p, m, t_f, t_b, delay_s) == pytest.approx(expected, rel=1e-9)


@exactly
@given(p=st.integers(2, 8), k=st.integers(1, 5), t_f=seconds, t_b=seconds, c=delays)
def test_the_general_form_of_one_f_one_b_is_the_published_one_where_p_divides_m(p, k, t_f, t_b, c):
    m = k * p
    published = (m + p - 1) * (t_f + t_b) + c * (2 * (p - 2) + 2 * (p - 1) * m / p)
    assert theory.one_f_one_b_makespan_s(p, m, t_f, t_b, c) == pytest.approx(published, rel=1e-12)


@exactly
@given(p=p_s, m=m_s, advance=st.integers(0, 6), t_f=seconds, t_b=seconds)
def test_advance_forward_propagation_costs_nothing_where_links_are_free(p, m, advance, t_f, t_b):
    expected = theory.gpipe_makespan_s(p, m, t_f, t_b)
    assert simulated_s("1f1b_afp", p, m, t_f, t_b, advance=advance) == pytest.approx(expected, rel=1e-9)


@exactly
@given(m=m_s, advance=st.integers(0, 6), t_f=seconds, t_b=seconds, delay_s=delays)
def test_advance_forward_propagation_on_two_ranks_takes_its_closed_form(m, advance, t_f, t_b, delay_s):
    expected = theory.two_rank_afp_makespan_s(m, advance, t_f, t_b, delay_s)
    assert simulated_s("1f1b_afp", 2, m, t_f, t_b, delay_s, advance=advance) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("t_b", "expected"), [(1.0, (20.0, 26.0, 20.0)), (2.0, (29.0, 35.0, 29.0))])
def test_the_numbers_of_avgpipes_figure_7_come_out(t_b, expected):
    makespans_s = (
        simulated_s("gpipe", 2, 8, 1.0, t_b, 1.0),
        simulated_s("1f1b", 2, 8, 1.0, t_b, 1.0),
        simulated_s("1f1b_afp", 2, 8, 1.0, t_b, 1.0, advance=1),
    )
    assert makespans_s == pytest.approx(expected, rel=1e-12)
    assert stages_in_flight(build("1f1b_afp", 2, 8, advance=1))[0] == theory.afp_in_flight(2, 8, 0, 1) == 3


@exactly
@given(p=st.integers(1, 6), k=st.integers(1, 4), v=v_s, t_f=seconds, t_b=seconds)
def test_interleaved_takes_its_closed_form(p, k, v, t_f, t_b):
    expected = theory.interleaved_makespan_s(p, k * p, v, t_f, t_b)
    assert simulated_s("interleaved", p, k * p, t_f, t_b, v=v) == pytest.approx(expected, rel=1e-9)


@exactly
@given(p=st.integers(1, 6), m=m_s, v=v_s, t_f=seconds, t_b=seconds, delay_s=delays)
def test_looped_bfs_takes_its_closed_form_for_any_delay_and_any_number_of_microbatches(p, m, v, t_f, t_b, delay_s):
    schedule = build("looped_bfs", p, m, v)
    makespan_s = simulate_lists(schedule, uniform(p * v, t_f / v, t_b / v), flat(p, Link(delay_s))).makespan_s
    assert makespan_s == pytest.approx(theory.looped_bfs_makespan_s(p, m, v, t_f, t_b, delay_s), rel=1e-9)
    assert stages_in_flight(schedule) == (theory.looped_bfs_in_flight(m, v),) * p


def test_the_interleaved_bubble_is_refused_where_p_does_not_divide_m():
    with pytest.raises(SimulationError, match="got 6 micro-batches on 4 ranks, expected a multiple of 4"):
        theory.interleaved_bubble_overhead(4, 6, 2)


@exactly
@given(p=p_s, m=m_s, advance=st.integers(0, 4))
def test_as_many_microbatches_are_in_flight_as_the_papers_count(p, m, advance):
    ranks = range(p)
    assert stages_in_flight(build("gpipe", p, m)) == tuple(theory.gpipe_in_flight(m) for _ in ranks)
    assert stages_in_flight(build("1f1b", p, m)) == tuple(theory.one_f_one_b_in_flight(p, m, rank) for rank in ranks)
    expected = tuple(theory.afp_in_flight(p, m, rank, advance) for rank in ranks)
    assert stages_in_flight(build("1f1b_afp", p, m, advance=advance)) == expected


@exactly
@given(p=st.integers(2, 6), k=st.integers(2, 4), v=v_s)
def test_the_first_rank_of_interleaved_holds_the_peak_factor_times_that_of_1f1b(p, k, v):
    chunks = stages_in_flight(build("interleaved", p, k * p, v))[0]
    assert chunks / (p * v) == pytest.approx(theory.interleaved_peak_factor(p, v) if v > 1 else 1 + (p - 1) / p)


def recomputed_s(name: str, p: int, m: int, t_f: float, t_b: float, delay_s: float = 0.0, v: int = 1) -> float:
    schedule = recompute(build(name, p, m, v if name == "interleaved" else None))
    return simulate_lists(schedule, uniform(p * v, t_f / v, t_b / v), flat(p, Link(delay_s))).makespan_s


@exactly
@given(name=st.sampled_from(["naive", "gpipe"]), p=p_s, m=m_s, t_f=seconds, t_b=seconds, delay_s=delays)
def test_recompute_prolongs_naive_and_gpipe_by_that_of_one_rank_whatever_the_links_take(name, p, m, t_f, t_b, delay_s):
    expected = simulated_s(name, p, m, t_f, t_b, delay_s) + theory.recompute_extra_s(m, t_f)
    assert recomputed_s(name, p, m, t_f, t_b, delay_s) == pytest.approx(expected, rel=1e-9)


@exactly
@given(p=p_s, m=m_s, t_f=seconds, t_b=seconds, delay_s=delays)
def test_one_f_one_b_with_recompute_takes_its_closed_form(p, m, t_f, t_b, delay_s):
    expected = theory.one_f_one_b_recompute_makespan_s(p, m, t_f, t_b, delay_s)
    assert recomputed_s("1f1b", p, m, t_f, t_b, delay_s) == pytest.approx(expected, rel=1e-9)
    naive_count_s = theory.one_f_one_b_makespan_s(p, m, 2 * t_f, t_b, delay_s)
    assert expected <= naive_count_s * (1 + 1e-12)


@exactly
@given(p=st.integers(1, 6), k=st.integers(1, 4), v=v_s, t_f=seconds, t_b=seconds)
def test_recompute_prolongs_interleaved_by_that_of_one_rank_where_links_are_free(p, k, v, t_f, t_b):
    expected = theory.interleaved_makespan_s(p, k * p, v, t_f, t_b) + theory.recompute_extra_s(k * p, t_f)
    assert recomputed_s("interleaved", p, k * p, t_f, t_b, v=v) == pytest.approx(expected, rel=1e-9)


@exactly
@given(p=p_s, m=m_s, name=st.sampled_from(["gpipe", "1f1b"]), stage_input=st.integers(0, 9), more=st.integers(0, 50))
def test_with_recompute_one_microbatch_is_held_in_full_and_of_the_others_their_inputs(p, m, name, stage_input, more):
    costs = StageCosts((StageCost(1.0, 2.0, output_bytes=stage_input, saved_bytes=stage_input + more),) * p)
    plain = build(name, p, m)
    schedule = lower(recompute(plain))
    held = [0] * p
    for sample in memory(simulate_lists(schedule, costs), costs, schedule):
        held[sample.device] = max(held[sample.device], dict(sample.bytes_by_kind)["activations"])
    assert held[1:] == [
        theory.recompute_activations(stages_in_flight(plain)[rank], stage_input + more, stage_input)
        for rank in range(1, p)
    ]
    assert held[0] == stage_input + more  # the input of the first stage is data, and not counted


@exactly
@given(half=st.integers(1, 4), more=st.integers(0, 8), t_f=seconds, t_w=seconds, overlap=st.floats(0.0, 1.0))
def test_dualpipe_is_idle_and_takes_as_long_as_published_for_any_overlap(half, more, t_f, t_w, overlap):
    """Where W is no longer than F; beyond, W counts as F. DualPipeV is the same in half the ranks."""
    p, m = 2 * half, 4 * half + 2 * more
    for schedule in (build("dualpipe", p, m), build("dualpipe_v", half, m // 2)):
        run_metrics = metrics(simulate_lists(schedule, uniform(p, t_f, None, t_f, t_w, overlap)))
        idle_s = max(device.idle_s for device in run_metrics.devices)
        assert run_metrics.makespan_s == pytest.approx(theory.dualpipe_makespan_s(p, m, t_f, t_w, overlap), rel=1e-9)
        assert idle_s == pytest.approx(theory.dualpipe_idle_s(p, t_f, t_w, overlap), rel=1e-9, abs=1e-9)
        assert stages_in_flight(schedule) == (theory.dualpipe_in_flight(p),) * schedule.num_ranks


@pytest.mark.parametrize(("overlap", "t_fb"), [(0.0, 2.75), (0.25, 2.5), (1.0, 1.75)])
def test_the_idle_time_of_dualpipe_is_the_published_one(overlap, t_fb):
    t_f, t_b, t_w = 1.0, 1.75, 0.75
    assert theory.dualpipe_idle_s(8, t_f, t_w, overlap) == (8 / 2 - 1) * (t_fb + t_b - 3 * t_w)


@exactly
@given(p=p_s, more=st.integers(0, 20), t_f=seconds, t_b=seconds)
def test_data_parallel_takes_its_closed_form(p, more, t_f, t_b):
    expected = theory.data_parallel_makespan_s(p, p + more, t_f, t_b)
    schedule = build("data_parallel", p, p + more)
    assert simulate_lists(schedule, uniform(1, t_f, t_b)).makespan_s == pytest.approx(expected, rel=1e-9)
