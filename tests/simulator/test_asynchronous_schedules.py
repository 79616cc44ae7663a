"""What asynchronous schedules cost, against the papers and closed forms."""

from itertools import pairwise

import pytest

from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules.builders import build
from pipesched.schedules.ops import Phase, computes
from pipesched.simulator import SimulationError, theory
from pipesched.simulator.analysis import metrics
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import memory


def gaps_between_first_backward_and_last_forward(timeline, rank):
    """The idle seconds of a rank from the start of its first backward to the end of its last forward."""
    spans = [span for span in timeline.work if span.rank == rank]
    phases = [{part.phase for part in computes(span.op)} for span in spans]
    first = next(place for place, phase in enumerate(phases) if Phase.BACKWARD in phase)
    last = max(place for place, phase in enumerate(phases) if Phase.FORWARD in phase)
    steady = spans[first : last + 1]
    return sum(after.start_s - before.end_s for before, after in pairwise(steady))


@pytest.mark.parametrize("t_b", [1.0, 2.0, 3.5])
@pytest.mark.parametrize(("p", "accumulate", "periods"), [(1, 1, 3), (2, 2, 1), (2, 3, 4), (4, 4, 3), (5, 8, 2)])
def test_wpipe_has_no_bubble_but_those_of_warmup_and_drain(p, accumulate, periods, t_b):
    m = accumulate * periods
    timeline = simulate_lists(build("wpipe", p, m, accumulate=accumulate), uniform(2 * p, 1.0, t_b))
    work_of_one_s = 2 * m * (1.0 + t_b)
    assert timeline.makespan_s == pytest.approx(work_of_one_s + (p - 1) * (1.0 + t_b))
    assert timeline.makespan_s == pytest.approx(theory.wpipe_makespan_s(p, m, 1.0, t_b))
    assert [gaps_between_first_backward_and_last_forward(timeline, rank) for rank in range(p)] == [0.0] * p
    assert [device.busy_s for device in metrics(timeline).devices] == [work_of_one_s] * p


@pytest.mark.parametrize("name", ["pipedream", "pipedream_2bw", "vanilla_1f1b", "spectrain", "pipeoptim"])
def test_1f1b_without_a_flush_fills_and_drains_once_whatever_it_reads(name):
    p, m = 4, 40
    timeline = simulate_lists(build(name, p, m), uniform(p, 1.0, 2.0))
    assert timeline.makespan_s == pytest.approx(theory.unflushed_makespan_s(p, m, 1.0, 2.0))
    assert [gaps_between_first_backward_and_last_forward(timeline, rank) for rank in range(p)] == [0.0] * p


def test_gpipe_takes_7_quarters_of_pipedreams_time_in_the_ideal_model():
    """PipeOptim, Table VI: 1.69 measured on 4 stages with 4 micro-batches; 7 / 4 where all stages are equal."""
    batch_s = simulate_lists(build("gpipe", 4, 4), uniform(4, 1.0, 2.0)).makespan_s
    short_s, long_s = (simulate_lists(build("pipedream", 4, m), uniform(4, 1.0, 2.0)).makespan_s for m in (40, 44))
    assert batch_s / (long_s - short_s) == pytest.approx(7 / 4)


def test_a_rank_replicated_twice_halves_the_time_of_its_stage():
    """Stage 0 takes twice as long as stage 1: two replicas of it balance the pipeline, and nobody waits."""
    costs = StageCosts((StageCost(2.0, 4.0), StageCost(1.0, 2.0)))
    alone_s, both_s = (
        simulate_lists(build("1f1b_rr", sum(replicas), m, replicas=replicas), costs).makespan_s
        for m, replicas in ((60, (1, 1)), (60, (2, 1)))
    )
    assert alone_s == pytest.approx(60 * 6.0 + 1.0)  # it waits a second for its first gradient
    assert both_s == pytest.approx(60 * 3.0, rel=0.06)


@pytest.mark.parametrize("p", [2, 4])
def test_half_the_run_pipelined_saves_what_the_stale_weights_paper_says(p):
    """arXiv:1912.12675, section 4.2 and 6.5: 1 / (0.5 / S + 0.5) for a pipelined speed-up S; 1.33 for S = 2."""
    m, costs = 400, uniform(p, 1.0, 2.0)
    alone_s = simulate_lists(build("hybrid", p, m, pipelined=0), costs).makespan_s
    half_s, all_s = (simulate_lists(build("hybrid", p, m, pipelined=count), costs).makespan_s for count in (m // 2, m))
    speedup = alone_s / all_s
    assert speedup == pytest.approx(p, rel=0.02)
    assert alone_s / half_s == pytest.approx(theory.hybrid_speedup(0.5, speedup), rel=0.01)
    if p == 2:
        assert alone_s / half_s == pytest.approx(1.33, abs=0.01)


@pytest.mark.parametrize("n", [2, 4, 6])
def test_memory_over_time_agrees_with_table_1_of_wpipe(n):
    for name in ("pipedream", "pipedream_2bw", "wpipe"):
        buffers, activations = theory.wpipe_table(name, n)
        weights = buffers + (1 / 2 if name == "wpipe" else 0)  # group 1's one version is no buffer
        num_stages = n * (2 if name == "wpipe" else 1)
        stage = StageCost(1.0, 2.0, saved_bytes=num_stages * 10, weight_bytes=num_stages * 1000)
        schedule = build(name, n, 4 * n)
        costs = StageCosts((stage,) * num_stages)
        samples = memory(simulate_lists(schedule, costs), costs, schedule)
        most = {(sample.device, kind): 0 for sample in samples for kind, _ in sample.bytes_by_kind}
        for sample in samples:
            for kind, num_bytes in sample.bytes_by_kind:
                most[sample.device, kind] = max(most[sample.device, kind], num_bytes)
        held = {kind: sum(most[device, kind] for device in range(n)) for _, kind in most}
        model_weights, model_saved = stage.weight_bytes * num_stages, stage.saved_bytes * num_stages
        assert (held["weights"] + held["weight_versions"]) / model_weights == pytest.approx(weights), name
        assert held["activations"] / model_saved == pytest.approx(activations), name


def test_stashing_weights_would_add_177_points_to_the_memory_of_alexnet():
    """arXiv:1912.12675, section 6.7 and Appendix D: 214 % against 37 %, 4 stages, CIFAR-10, batches of 128."""
    share = theory.weight_stash_share(4, weight_bytes=88.87e6, activation_bytes=128 * 0.88e6)
    assert share == pytest.approx(2.14 - 0.37, abs=0.01)


def test_forms_say_where_they_hold():
    assert theory.hybrid_speedup(0.5, 2.0) == pytest.approx(1.33, abs=0.005)
    for share, speedup in ((1.5, 2.0), (0.5, 0.0)):
        with pytest.raises(SimulationError, match="hybrid: got"):
            theory.hybrid_speedup(share, speedup)
    with pytest.raises(SimulationError, match="expected one of gpipe, pipedream"):
        theory.wpipe_table("1f1b", 4)
