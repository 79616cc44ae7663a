"""The steady state of a schedule is the same by name, as an object and in a file; loops of the tests are the oracle."""

import random
from dataclasses import replace

import pytest

import pipesched
from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules import Schedule, ScheduleTraits
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.formats import from_json, to_json
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute
from pipesched.schedules.transforms import recompute, replicate, runs_without_flush
from tests.simulator.fast.op_loop import ends_s
from tests.simulator.fast.shared_devices import seconds_per_microbatch

UNFLUSHED = sorted(name for name, entry in CATALOGUE.items() if entry.traits.is_asynchronous)
LATENCY_S = 0.25


def grown_s(name, p, stages, **parameters):
    """Return the seconds per micro-batch by which longer builds of a schedule without a flush take longer."""
    counts = (240, 480)
    spans = [max(ends_s(build(name, p, count, **parameters), stages, LATENCY_S).values()) for count in counts]
    return (spans[1] - spans[0]) / (counts[1] - counts[0])


def drawn(seed):
    """Return a schedule without a flush: name, ranks, micro-batches, parameters, and (F, B, Step) of its stages."""
    draw = random.Random(seed)
    name, p = UNFLUSHED[seed % len(UNFLUSHED)], draw.choice([2, 3, 4])
    m, parameters = draw.randint(2, 20), {}
    if name in ("pipedream_2bw", "wpipe"):
        parameters = {"accumulate": draw.choice([size for size in (2, 3, 4, 6) if size >= p])}
        m = parameters["accumulate"] * draw.randint(1, 4)
    if name == "1f1b_rr":
        parameters = {"replicas": (2, 1, 1)[: p - 1] if p > 2 else (2,)}
        m = 2 * draw.randint(2, 8)
    num_stages = build(name, p, m, **parameters).num_stages
    return name, p, m, parameters, [tuple(draw.randint(2, 12) / 8 for _ in range(3)) for _ in range(num_stages)]


def costs_of(stages):
    return StageCosts(tuple(StageCost(forward_s, backward_s, step_s=s) for forward_s, backward_s, s in stages))


def steady(schedule, stages):
    return pipesched.simulate(schedule, pipesched.Setup(costs_of(stages), flat(schedule.num_ranks, Link(LATENCY_S))))


@pytest.mark.parametrize("seed", range(len(UNFLUSHED)))
def test_a_schedule_without_a_flush_has_one_steady_time_by_name_as_an_object_and_in_a_file(seed):
    name, p, m, parameters, stages = drawn(seed)
    expected = pytest.approx(grown_s(name, p, stages, **parameters), rel=1e-9)
    cluster = flat(p, Link(LATENCY_S))
    named = pipesched.simulate(
        pipesched.build_own(name, p, m, **parameters),
        pipesched.Setup(costs_of(stages), cluster),
    )
    made = build(name, p, m, **parameters)
    file = from_json(to_json(made), "lists.json")
    assert named.steady_s_per_microbatch == expected
    for schedule in (made, file, replace(made, name="mine"), lower(made)):
        result = steady(schedule, stages)
        assert result.steady_s_per_microbatch == expected
        assert result.steady_bubble_fraction == pytest.approx(named.steady_bubble_fraction, abs=1e-9)


@pytest.mark.parametrize("seed", range(len(UNFLUSHED)))
def test_lists_of_ones_own_without_a_flush_have_the_steady_time_of_their_repeating_part(seed):
    name, p, _, parameters, stages = drawn(seed)
    if name == "hybrid":
        pytest.skip("has two parts")
    made = build(name, p, 24, **parameters)
    own = replace(made, name="own", origin=None, traits=ScheduleTraits(), parameters=())
    assert steady(own, stages).steady_s_per_microbatch == pytest.approx(
        grown_s(name, p, stages, **parameters), rel=1e-9
    )


def test_lists_whose_versions_are_not_written_have_it_too():
    made = build("pipedream", 3, 12)
    rows = tuple(tuple(replace(op, version=0) if isinstance(op, Compute) else op for op in row) for row in made.ops)
    own = Schedule("own", 3, 12, rows, made.rank_to_device)
    assert steady(own, [(1.0, 2.0, 0.0)] * 3).steady_s_per_microbatch == pytest.approx(
        grown_s("pipedream", 3, [(1.0, 2.0, 0.0)] * 3), rel=1e-9
    )


def own_builder(num_ranks, num_microbatches):
    return [list(row) for row in build("pipedream", num_ranks, num_microbatches).ops]


@pytest.mark.parametrize("m", [2, 3, 8])
def test_a_builder_of_ones_own_is_asked_for_a_longer_run(m):
    stages = [(1.0, 2.0, 0.0), (1.5, 2.0, 0.0), (1.0, 2.5, 0.0)]
    cluster = flat(3, Link(LATENCY_S))
    told = pipesched.simulate(pipesched.build_own(own_builder, 3, m), pipesched.Setup(costs_of(stages), cluster))
    assert told.steady_s_per_microbatch == pytest.approx(grown_s("pipedream", 3, stages), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "m", "reason"), [("pipedream", 3, "do not repeat one block of ops"), ("hybrid", 24, "2 repeated parts")]
)
def test_a_note_says_why_lists_without_a_flush_have_no_steady_time(name, m, reason):
    own = replace(build(name, 4, m), name="own", origin=None)
    told = steady(own, [(1.0, 2.0, 0.0)] * 4)
    assert told.steady_s_per_microbatch is None
    (note,) = (note for note in told.notes if note.startswith("steady time: own: "))
    assert reason in note


def test_copies_and_recomputation_of_an_object_stay_in_its_steady_time():
    made, costs = build("pipedream", 3, 4), costs_of([(1.0, 2.0, 0.5)] * 3)
    for schedule, expected_s in (
        (replicate(made, 2), 3.5 / 2), (recompute(made), 4.5), (recompute(made, (0,)), 4.5),
        (recompute(replicate(made, 2), (1, 2)), 4.5 / 2),
    ):  # fmt: skip
        assert pipesched.simulate(schedule, costs).steady_s_per_microbatch == pytest.approx(expected_s)


def test_a_stage_steps_with_micro_batches_in_flight_only_where_there_is_no_flush():
    for name, entry in CATALOGUE.items():
        lists = replace(build(name, 4, 24), traits=ScheduleTraits())
        assert runs_without_flush(lists) == entry.traits.is_asynchronous, name


def test_lowered_lists_have_the_traits_of_their_schedule():
    lists = CATALOGUE["1f1b"].build(2, 4)
    lower(lists)
    named = lists.made_from("mine", ScheduleTraits(is_asynchronous=True))
    assert lower(named).origin == "mine"
    assert lower(named).traits.is_asynchronous


SHARED = [  # pipelines, ranks, micro-batches of each, advance, (F, B) of each stage, bandwidth, latency
    (1, 3, 4, 0, None, 100.0, 0.003),
    (2, 3, 5, 1, [(0.012, 0.020), (0.008, 0.023), (0.011, 0.018)], 100.0, 0.0),
    (4, 3, 9, 0, [(0.01, 0.03), (0.02, 0.01), (0.01, 0.02)], None, 0.003),
]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "p", "m", "advance", "stages", "bandwidth", "latency_s"), SHARED)
def test_averaged_pipelines_have_the_steady_time_of_a_long_run_of_a_loop_of_its_own(
    number, p, m, advance, stages, bandwidth, latency_s
):
    stages = stages or [(0.01, 0.02)] * p
    costs = StageCosts(tuple(StageCost(forward_s, backward_s, output_bytes=1) for forward_s, backward_s in stages))
    cluster = flat(p, Link(latency_s, bandwidth or float("inf")))
    parameters = {"pipelines": number, "advance": advance}
    told = pipesched.simulate(
        pipesched.build("avgpipe", p, number * m, **parameters),
        pipesched.Setup(costs, cluster),
    )
    expected = seconds_per_microbatch(
        number, m, stages, advance=advance, bandwidth=bandwidth, latency_s=latency_s, iterations=max(80, 900 // m // p)
    )
    assert told.steady_s_per_microbatch == pytest.approx(expected, rel=0.025)
    assert (told.steady_error is None) == (number == 1)


def test_the_error_of_pipelines_that_change_their_pace_now_and_then_covers_it():
    """These stay for hundreds of iterations at 42 ms, then at 57 ms; a run of 12,800 iterations takes 49.6 ms."""
    costs = StageCosts((StageCost(0.01, 0.02, output_bytes=1),) * 6)
    parameters = {"pipelines": 2, "advance": 2}
    cluster = flat(6, Link(0.0, 1000.0))
    told = pipesched.simulate(pipesched.build("avgpipe", 6, 8, **parameters), pipesched.Setup(costs, cluster))
    assert told.steady_error > 0.02
    assert abs(told.steady_s_per_microbatch / 0.0496 - 1) < 2 * told.steady_error


def test_averaged_pipelines_that_differ_have_no_steady_time_but_a_note():
    made = build("avgpipe", 2, 4)
    forward, backward, second, *others = made.ops[3]
    assert list(map(str, (forward, backward, second))) == ["1F2", "1B2", "1F3"]
    unequal = replace(made, lists=(*made.ops[:3], (forward, second, backward, *others)))
    told = pipesched.simulate(unequal, uniform(2, 1.0, 2.0))
    assert told.steady_s_per_microbatch is None
    assert any("2 unequal pipelines" in note for note in told.notes)
