"""Pipelines that share devices, links and a reference model: AvgPipe (PPoPP 2023)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules.builders import build
from pipesched.schedules.ops import Average, Recv, Step, computes, needs
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import memory, peak_memory
from tests.properties import examples


def blocked(timeline, num_stages):
    """Count the computations that had to wait until a message was there."""
    arrivals = {(s.rank, s.op.message): s.end_s for s in timeline.spans if isinstance(s.op, Recv)}
    return sum(
        span.posted_s < span.start_s == arrivals.get((span.rank, message))
        for span in timeline.spans
        for part in computes(span.op)
        for message in needs(part, num_stages)
    )


@pytest.mark.parametrize(("backward_s", "transfer_s"), [(1.0, 1.0), (2.0, 1.0), (2.0, 0.5)])
def test_figure_7_afab_blocks_twice_1f1b_nine_times_and_one_advance_is_as_fast_as_afab(backward_s, transfer_s):
    def run(name, **parameters):
        return simulate_lists(build(name, 2, 8, **parameters), uniform(2, 1.0, backward_s), flat(2, Link(transfer_s)))

    both_s, c = 1.0 + backward_s, transfer_s
    afab, alternating = run("gpipe"), run("1f1b")
    assert (afab.makespan_s, blocked(afab, 2)) == (9 * both_s + 2 * c, 2)
    assert (alternating.makespan_s, blocked(alternating, 2)) == (9 * both_s + 8 * c, 9)
    assert run("1f1b_afp", advance=1).makespan_s == afab.makespan_s
    assert run("avgpipe", pipelines=1, advance=1).makespan_s == afab.makespan_s


@examples(25)
@given(
    p=st.integers(1, 4),
    share=st.integers(1, 6),
    pipelines=st.integers(1, 4),
    utilisation=st.floats(0.05, 1.0),
    latency_s=st.floats(0.0, 2.0),
)
def test_pipelines_in_step_slow_each_other_as_far_as_they_want_more_than_the_device(
    p, share, pipelines, utilisation, latency_s
):
    costs = StageCosts((StageCost(1.0, 2.0, utilisation=utilisation),) * p)
    slower = max(1.0, pipelines * utilisation)
    alone = StageCosts((StageCost(slower, 2.0 * slower),) * p)
    cluster = flat(p, Link(latency_s))
    together = simulate_lists(build("avgpipe", p, pipelines * share, pipelines=pipelines), costs, cluster)
    single = simulate_lists(build("1f1b_afp", p, share), alone, cluster)
    assert together.makespan_s == pytest.approx(single.makespan_s, rel=1e-9)


def test_pipelines_share_the_link_between_their_devices():
    # F of both pipelines is over at 1 s; a message of 10 bytes alone takes 2 s, and both together take 4.
    costs = StageCosts((StageCost(1.0, 1.0, output_bytes=10, utilisation=0.5), StageCost(1.0, 1.0, utilisation=0.5)))
    timeline = simulate_lists(build("avgpipe", 2, 2), costs, flat(2, Link(0.25, 5.0)))
    recvs = [s for s in timeline.spans if isinstance(s.op, Recv) and s.rank in (1, 3)]
    assert [(s.rank, s.start_s, s.end_s) for s in recvs] == [(1, 1.0, 5.25), (3, 1.0, 5.25)]


def test_averaging_takes_the_device_for_its_seconds():
    costs = StageCosts((StageCost(1.0, 1.0, step_s=0.5, average_s=0.25, utilisation=0.5),))
    timeline = simulate_lists(build("avgpipe", 1, 2), costs)
    spans = [(str(s.op), s.start_s, s.end_s) for s in timeline.of_rank(1) if isinstance(s.op, Step | Average)]
    assert spans == [("0STEP", 2.0, 2.5), ("0AVERAGE", 2.5, 2.75)]


COSTS = StageCosts(
    tuple(
        StageCost(1.0, 1.0, saved_bytes=7, weight_bytes=size, optimizer_bytes=2 * size, utilisation=0.25, step_s=1.0)
        for size in (100, 300)
    )
)


@pytest.mark.parametrize("pipelines", [2, 3, 4])
def test_a_device_holds_every_pipelines_model_and_update_and_one_reference_model(pipelines):
    schedule = build("avgpipe", 2, 2 * pipelines, pipelines=pipelines)
    samples = memory(simulate_lists(schedule, COSTS, flat(2, Link())), COSTS, schedule)
    for device, size in ((0, 100), (1, 300)):
        bytes_by_kind = [dict(sample.bytes_by_kind) for sample in samples if sample.device == device]
        assert {held["weights"] for held in bytes_by_kind} == {pipelines * size}
        assert {held["optimizer"] for held in bytes_by_kind} == {2 * pipelines * size}
        assert {(held["reference"], held["updates"]) for held in bytes_by_kind} == {(size, pipelines * size)}


def test_one_pipeline_has_no_reference_model():
    schedule = build("avgpipe", 2, 4, pipelines=1)
    peaks = peak_memory(memory(simulate_lists(schedule, COSTS), COSTS, schedule))
    assert {dict(peak.bytes_by_kind)[kind] for peak in peaks.values() for kind in ("reference", "updates")} == {0}
