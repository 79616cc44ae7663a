from dataclasses import replace

import pytest

from pipesched.profiles.clusters import Cluster, Device, flat
from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules.builders import build
from pipesched.simulator.analysis import Summary, fits, summarize
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import memory
from tests.schedules.hand_schedules import replicated

BYTES = StageCosts((StageCost(1.0, 2.0, output_bytes=1, saved_bytes=100, weight_bytes=1000),) * 4)


def predicted(schedule, costs):
    timeline = simulate_lists(schedule, costs)
    return replace(timeline, memory=memory(timeline, costs, schedule)) if costs.has_bytes else timeline


def summary(schedule, costs, cluster=None):
    return summarize(schedule, predicted(schedule, costs), costs, cluster or flat(schedule.num_devices))


def test_one_f_one_b_in_the_unit_model():
    p, m = 4, 8
    assert summary(build("1f1b", p, m), uniform(p, 1.0, 2.0)) == Summary(
        name="1f1b",
        makespan_s=(m + p - 1) * 3,
        bubble_fraction=(p - 1) / (m + p - 1),
        bubble_overhead=(p - 1) / m,
        bubble_of_longest_span=(p - 1) / (m + p - 1),
        throughput=m / ((m + p - 1) * 3),
        peak_microbatches_worst=p,
        peak_microbatches_best=1,
        weight_versions=1,
        model_copies=1,
        messages=2 * m * (p - 1),
    )


def test_bytes_are_known_where_the_costs_say_them():
    row = summary(build("1f1b", 4, 8), BYTES)
    weights_and_gradients = 2 * 1000
    buffers = 4 + 1  # for the gradient of each micro-batch in flight, and the output that nobody has answered yet
    assert row.peak_memory_worst_bytes == weights_and_gradients + 4 * 100 + buffers
    assert row.peak_memory_best_bytes == pytest.approx(weights_and_gradients + 100, abs=3)  # its buffers
    assert row.sent_bytes == row.messages == 2 * 8 * 3


def test_versions_and_replicas_are_copies_of_the_model():
    stashing = summary(build("pipedream", 4, 8), uniform(4, 1.0, 2.0))
    assert (stashing.weight_versions, stashing.model_copies) == (4, (4 + 3 + 2 + 1) / 4)
    twice = summary(replicated(), uniform(2, 1.0, 2.0))
    assert (twice.weight_versions, twice.model_copies) == (1, 2)


@pytest.mark.parametrize(
    ("name", "versions", "by_stage"),
    [
        ("vanilla_1f1b", 1, [1, 1, 1, 1]),
        ("pipedream", 4, [4, 3, 2, 1]),
        ("pipedream_2bw", 2, [2, 2, 2, 2]),
        ("spectrain", 1, [2, 2, 2, 2]),  # one predicted, on every stage
        ("xpipe", 1, [2, 2, 2, 2]),
        ("pipeoptim", 1, [2, 2, 2, 1]),  # the last stage predicts nothing
    ],
)
def test_model_copies_are_all_copies_of_weights_that_a_stage_holds_at_once(name, versions, by_stage):
    """Counted by hand, and in arXiv:2312.00839, Table II, "weights memory" for D = 4; the memory holds as many."""
    schedule, costs = build(name, 4, 16), StageCosts((StageCost(1.0, 2.0, weight_bytes=1),) * 4)
    row = summary(schedule, costs)
    assert (row.weight_versions, row.model_copies) == (versions, sum(by_stage) / 4)
    held = [0] * 4
    for sample in memory(simulate_lists(schedule, costs), costs, schedule):
        kinds = dict(sample.bytes_by_kind)
        held[sample.device] = max(held[sample.device], kinds["weights"] + kinds["weight_versions"])
    assert held == by_stage


@pytest.mark.parametrize(("limit", "expected"), [(None, None), (2405, True), (2404, False)])
def test_it_fits_if_no_device_holds_more_than_it_has(limit, expected):
    cluster = Cluster((Device(memory_bytes=limit), Device(), Device(), Device()))
    assert summary(build("1f1b", 4, 8), BYTES, cluster).fits is expected


def test_nobody_knows_whether_it_fits_without_bytes():
    assert (
        fits(simulate_lists(build("1f1b", 2, 2), uniform(2, 1.0, 2.0)), Cluster((Device(memory_bytes=1),) * 2)) is None
    )


def test_a_row_has_every_column_whatever_is_known():
    assert Summary(name="x", reason="no").to_row().keys() == summary(build("gpipe", 2, 2), BYTES).to_row().keys()
