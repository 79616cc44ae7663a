"""Schedules take their closed forms in SimPy, in time and in memory."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import recompute
from pipesched.schedules.weights import staleness
from pipesched.simulator import SimulationError, theory
from pipesched.simulator.analysis import metrics
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import memory
from tests.properties import examples

P, M, V, FEW = st.integers(1, 8), st.integers(1, 20), st.integers(1, 4), st.integers(1, 6)
SECONDS = st.floats(0.01, 10.0)
DELAYS, NO_DELAY = st.one_of(st.just(0.0), st.floats(0.0, 20.0)), st.just(0.0)
exactly = examples(12)


class Form(NamedTuple):
    """A closed form of a makespan.

    Attributes:
        counts: Arguments of `build` that the form holds for.
        form: Maps (p, m, t_f, t_b, delay, and the other counts) to seconds.
        delays: Times of a message that the form holds for [s].
    """

    name: str
    counts: st.SearchStrategy[dict]
    form: Callable[..., float]
    delays: st.SearchStrategy[float] = NO_DELAY
    recomputes: bool = False


def stages_in_flight(schedule):
    return staleness(schedule).in_flight


def counts(p=P, m=M, **more):
    return st.fixed_dictionaries({"p": p, "m": m} | more)


def rounds(p=FEW, **more):
    """Counts of which `p` divides `m`."""
    return counts(p, st.integers(1, 4), **more).map(lambda drawn: drawn | {"m": drawn["p"] * drawn["m"]})


def undelayed(form, *more):
    """Return a form that knows no delay, of t_f and t_b of all chunks of a rank together."""
    return lambda p, m, t_f, t_b, c, **drawn: form(p, m, *(drawn[name] for name in more), t_f, t_b)


EVEN = st.integers(1, 5).map(lambda half: 2 * half)
CHUNKS = {"num_chunks": V}
FORMS = [
    Form("naive", counts(), theory.naive_makespan_s, DELAYS),
    Form("gpipe", counts(), theory.gpipe_makespan_s, DELAYS),
    Form("1f1b", counts(), theory.one_f_one_b_makespan_s, DELAYS),
    Form("1f1b_afp", counts(advance=st.integers(0, 6)), undelayed(theory.gpipe_makespan_s)),
    Form(
        "1f1b_afp",
        counts(st.just(2), advance=st.integers(0, 6)),
        lambda p, m, t_f, t_b, c, advance: theory.two_rank_afp_makespan_s(m, advance, t_f, t_b, c),
        DELAYS,
    ),
    Form("interleaved", rounds(**CHUNKS), undelayed(theory.interleaved_makespan_s, "num_chunks")),
    Form(
        "looped_bfs",
        counts(FEW, **CHUNKS),
        lambda p, m, t_f, t_b, c, num_chunks: theory.looped_bfs_makespan_s(p, m, num_chunks, t_f, t_b, c),
        DELAYS,
    ),
    Form("hanayo", rounds(waves=st.integers(1, 3)), undelayed(theory.hanayo_makespan_s, "waves")),
    Form("chimera", rounds(EVEN), undelayed(theory.chimera_makespan_s)),
    Form("gems", counts(st.integers(2, 8), st.integers(2, 16)), undelayed(theory.gems_makespan_s)),
    Form(
        "data_parallel",
        counts().map(lambda drawn: drawn | {"m": drawn["p"] + drawn["m"]}),
        undelayed(theory.data_parallel_makespan_s),
    ),
    *(
        Form(
            name,
            counts(),
            lambda p, m, t_f, t_b, c, form=form: form(p, m, t_f, t_b, c) + theory.recompute_extra_s(m, t_f),
            DELAYS,
            recomputes=True,
        )
        for name, form in (("naive", theory.naive_makespan_s), ("gpipe", theory.gpipe_makespan_s))
    ),
    Form("1f1b", counts(), theory.one_f_one_b_recompute_makespan_s, DELAYS, recomputes=True),
    Form(
        "interleaved",
        rounds(**CHUNKS),
        lambda p, m, t_f, t_b, c, num_chunks: (
            theory.interleaved_makespan_s(p, m, num_chunks, t_f, t_b) + theory.recompute_extra_s(m, t_f)
        ),
        recomputes=True,
    ),
]


@pytest.mark.parametrize("case", FORMS, ids=lambda case: f"{case.name}{'+R' * case.recomputes}")
@examples(24)
@given(data=st.data(), t_f=SECONDS, t_b=SECONDS)
def test_it_takes_its_closed_form_in_which_a_late_recompute_is_a_longer_backward(case, data, t_f, t_b):
    more, delay_s = data.draw(case.counts), data.draw(case.delays)
    is_late = not case.recomputes and data.draw(st.booleans())
    p, m = more.pop("p"), more.pop("m")
    schedule = build(case.name, p, m, **more)
    chunks = max(1, schedule.num_stages // p)
    costs = uniform(schedule.num_stages, t_f / chunks, t_b / chunks)
    if case.recomputes or is_late:
        schedule = recompute(schedule, None, "late" if is_late else "early")
    timeline = simulate_lists(schedule, costs, flat(p, Link(delay_s)))
    backward_s = theory.late_recompute_backward_s(t_f, t_b) if is_late else t_b
    assert timeline.makespan_s == pytest.approx(case.form(p, m, t_f, backward_s, delay_s, **more), rel=1e-9)


@exactly
@given(p=st.integers(2, 8), k=st.integers(1, 5), t_f=SECONDS, t_b=SECONDS, c=DELAYS)
def test_the_general_form_of_one_f_one_b_is_the_published_one_where_p_divides_m(p, k, t_f, t_b, c):
    m = k * p
    published = (m + p - 1) * (t_f + t_b) + c * (2 * (p - 2) + 2 * (p - 1) * m / p)
    assert theory.one_f_one_b_makespan_s(p, m, t_f, t_b, c) == pytest.approx(published, rel=1e-12)
    again_s = theory.one_f_one_b_recompute_makespan_s(p, m, t_f, t_b, c)
    assert again_s <= theory.one_f_one_b_makespan_s(p, m, 2 * t_f, t_b, c) * (1 + 1e-12)


SPANS = [
    ("zb_h1", counts(), theory.zb_h1_longest_span_s, lambda f, i, w: f >= w),
    ("zb_h2", counts(), theory.zb_h2_longest_span_s, lambda f, i, w: f >= w and f + i >= 2 * w),
    ("interleaved_zb", rounds(num_chunks=V), theory.interleaved_zb_longest_span_s, lambda f, i, w: f >= w),
]
"""Name, counts, form of the longest span of a device, and the seconds of F, I and W that it holds for."""


@pytest.mark.parametrize(("name", "drawn", "form", "holds"), SPANS, ids=[name for name, *_ in SPANS])
@exactly
@given(data=st.data(), t_f=SECONDS, t_i=SECONDS, t_w=SECONDS)
def test_the_longest_span_takes_its_closed_form(name, drawn, form, holds, data, t_f, t_i, t_w):
    assume(holds(t_f, t_i, t_w))
    counted = data.draw(drawn)
    p, m, chunks = counted["p"], counted["m"], [counted["num_chunks"]] if "num_chunks" in counted else []
    m += {"zb_h1": p, "zb_h2": 2 * p - 1}.get(name, 0)  # enough to fill the pipeline
    schedule, share = build(name, p, m, *chunks), max([1, *chunks])
    timeline = simulate_lists(schedule, uniform(schedule.num_stages, t_f / share, None, t_i / share, t_w / share))
    expected = pytest.approx(form(p, m, *chunks, t_f, t_i, t_w), rel=1e-9)
    assert max(device.span_s for device in metrics(timeline).devices) == expected
    if name == "zb_h1" and t_i >= t_w:
        assert timeline.makespan_s == expected


@exactly
@given(p=P, more=st.integers(0, 9), extra=st.integers(0, 9))
def test_zb_auto_takes_its_closed_form_of_equal_costs(p, more, extra):
    m, limit = 2 * p - 1 + more, p + extra
    timeline = simulate_lists(build("zb_auto", p, m, limit=limit), uniform(p, 1.0, None, 1.0, 1.0))
    longest_s = max(device.span_s for device in metrics(timeline).devices)
    assert longest_s == theory.zb_auto_longest_span_s(p, m, limit)


def simulated_in_chunk_times_s(name, p, m, t):
    return simulate_lists(build(name, p, m), uniform(2 * p, t, None, t, t)).makespan_s


@exactly
@given(p=P, m=st.integers(1, 24), t=SECONDS)
def test_zbv_takes_its_closed_form_for_any_number_of_microbatches(p, m, t):
    expected = theory.zbv_makespan_s(p, m, t)
    assert simulated_in_chunk_times_s("zbv", p, m, t) == pytest.approx(expected, rel=1e-9)
    if 2 * m >= 3 * p:
        assert expected == (6 * m + p - 1) * t


@pytest.mark.parametrize(("name", "form"), [("v_half", theory.v_half_makespan_s), ("v_min", theory.v_min_makespan_s)])
@pytest.mark.parametrize("p", [*range(1, 10), 16])
def test_v_half_and_v_min_take_what_our_squeezing_comes_to(name, form, p):
    assert simulated_in_chunk_times_s(name, p, 2 * p, 1.0) == form(p, 2 * p, 1.0)


@exactly
@given(half=st.integers(1, 4), more=st.integers(0, 8), t_f=SECONDS, t_w=SECONDS, overlap=st.floats(0.0, 1.0))
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


def most_activations(schedule, cost):
    """Return the most bytes of activations that each device holds."""
    costs, lowered = StageCosts((cost,) * schedule.num_stages), lower(schedule)
    most = [0] * schedule.num_devices
    for sample in memory(simulate_lists(lowered, costs), costs, lowered):
        most[sample.device] = max(most[sample.device], dict(sample.bytes_by_kind)["activations"])
    return most


CHUNK = StageCost(1.0, 2.0, 1.0, 1.0, saved_bytes=1)
"""Each chunk of a micro-batch is a byte from F to B or W."""


@exactly
@given(p=P, m=M, advance=st.integers(0, 4))
def test_as_many_microbatches_are_in_flight_as_the_papers_count(p, m, advance):
    ranks = range(p)
    assert stages_in_flight(build("gpipe", p, m)) == tuple(theory.gpipe_in_flight(m) for _ in ranks)
    assert stages_in_flight(build("looped_bfs", p, m, 3)) == (theory.looped_bfs_in_flight(m, 3),) * p
    assert stages_in_flight(build("1f1b", p, m)) == tuple(theory.one_f_one_b_in_flight(p, m, rank) for rank in ranks)
    expected = tuple(theory.afp_in_flight(p, m, rank, advance) for rank in ranks)
    assert stages_in_flight(build("1f1b_afp", p, m, advance=advance)) == expected


@exactly
@given(p=st.integers(2, 6), k=st.integers(2, 4), v=V)
def test_the_first_rank_of_interleaved_holds_the_peak_factor_times_that_of_1f1b(p, k, v):
    chunks = stages_in_flight(build("interleaved", p, k * p, v))[0]
    assert chunks / (p * v) == pytest.approx(theory.interleaved_peak_factor(p, v) if v > 1 else 1 + (p - 1) / p)


@pytest.mark.parametrize(
    ("name", "form"),
    [("zbv", theory.zbv_in_flight), ("v_half", theory.v_half_in_flight), ("v_min", theory.v_min_in_flight)],
)
def test_as_many_chunks_are_held_as_the_papers_count(name, form):
    for p, m in [(1, 3), (2, 1), (2, 8), (3, 9), (4, 2), (4, 12), (5, 10), (8, 20)]:
        schedule = build(name, p, m)
        assert max(stages_in_flight(schedule)) == max(most_activations(schedule, CHUNK)) == form(p, m)


@exactly
@given(p=P, more=st.integers(0, 6), saved=st.integers(0, 100), share=st.floats(0.0, 1.0))
def test_zero_bubble_holds_as_much_as_the_paper_counts(p, more, saved, share):
    kept = round(share * saved)
    cost = StageCost(1.0, None, 1.0, 1.0, saved_bytes=saved, saved_for_weight_bytes=kept)
    for name, m, form in (
        ("zb_h1", p + more, theory.zb_h1_activations),
        ("zb_h2", 2 * p - 1 + more, theory.zb_h2_activations),
    ):
        assert most_activations(build(name, p, m), cost) == [form(p, rank, saved, kept) for rank in range(p)]


@exactly
@given(p=P, m=M, name=st.sampled_from(["gpipe", "1f1b"]), stage_input=st.integers(0, 9), more=st.integers(0, 50))
def test_with_recompute_one_microbatch_is_held_in_full_and_of_the_others_their_inputs(p, m, name, stage_input, more):
    cost = StageCost(1.0, 2.0, output_bytes=stage_input, saved_bytes=stage_input + more)
    plain = build(name, p, m)
    held = most_activations(recompute(plain), cost)
    assert held[1:] == [
        theory.recompute_activations(stages_in_flight(plain)[rank], stage_input + more, stage_input)
        for rank in range(1, p)
    ]
    assert held[0] == stage_input + more  # the input of the first stage is data, and not counted


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_the_bubble_of_chimera_is_the_papers_where_f_and_b_take_as_long(p):
    for m in (p, 2 * p, 4 * p):
        schedule = build("chimera", p, m)
        bubble_fraction = metrics(simulate_lists(schedule, uniform(p, 1.0, 1.0))).bubble_fraction
        assert bubble_fraction == pytest.approx(theory.chimera_bubble_fraction(p, m), rel=1e-12, abs=1e-12)
        assert stages_in_flight(schedule) == tuple(theory.chimera_in_flight(p, rank) for rank in range(p))
        assert max(most_activations(schedule, CHUNK)) == p


@pytest.mark.parametrize("p", [2, 4, 16])
def test_the_bubble_of_gems_comes_to_what_the_authors_of_chimera_count_with_a_backward_of_twice_the_time(p):
    """(p - 1) / (p + 1 / 2), arXiv:2107.06925, table 2: the limit for many micro-batches."""
    m = 10**6
    idle = 1 - 3 * m / theory.gems_makespan_s(p, m, 1.0, 2.0)
    assert idle == pytest.approx((p - 1) / (p + 1 / 2), abs=2 / m)


@pytest.mark.parametrize(
    ("form", "arguments", "fault"),
    [
        (theory.interleaved_bubble_overhead, (4, 6, 2), "got 6 micro-batches on 4 ranks, expected a multiple of 4"),
        (theory.v_half_makespan_s, (4, 7, 1.0), "v_half: got m = 7, expected m >= 8"),
        (theory.v_min_makespan_s, (4, 7, 1.0), "v_min: got m = 7, expected m >= 8"),
        (theory.hanayo_makespan_s, (4, 6, 2, 1.0, 1.0), "hanayo: got m = 6, expected a multiple of 4"),
        (theory.zb_h1_longest_span_s, (4, 3, 1.0, 1.0, 1.0), "zb_h1: got m = 3, t_f = 1.0, t_w = 1.0, expected m >= 4"),
        (theory.zb_h2_longest_span_s, (4, 9, 2.0, 1.0, 1.6), "zb_h2: .* expected m >= 7, t_f >= t_w, t_f [+] t_i >= 2"),
        (theory.interleaved_zb_longest_span_s, (4, 9, 2, 1.0, 1.0, 1.0), "got m = 9, .* expected m a multiple of 4"),
        (theory.zb_auto_longest_span_s, (4, 9, 3), "got m = 9, limit = 3, expected m >= 7, limit >= 4"),
    ],
)
def test_where_a_form_does_not_hold_it_is_refused(form, arguments, fault):
    with pytest.raises(SimulationError, match=fault):
        form(*arguments)
