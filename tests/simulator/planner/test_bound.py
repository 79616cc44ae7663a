"""What a candidate takes at least is never more than it takes."""

import pytest

from pipesched.profiles.clusters import Cluster, Device, Link, flat
from pipesched.profiles.costs import Compression, StageCost, StageCosts
from pipesched.simulator.planner import Candidate
from pipesched.simulator.planner.bound import Bounds
from pipesched.simulator.planner.candidate_evaluation import predict_candidate

CANDIDATES = (
    Candidate("dualpipe", 4, 1, 8, 1, (1,) * 4),
    Candidate("dualpipe_v", 4, 1, 8, 1, (1,) * 8),
    Candidate("dualpipe", 4, 2, 8, 1, (1,) * 4, recomputes=True),
)


@pytest.mark.parametrize("candidate", CANDIDATES, ids=str)
@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_the_bound_knows_what_an_overlap_hides(candidate, overlap):
    costs = StageCosts((StageCost(1.0, 2.0, 1.0, 1.5, step_s=0.5),) * len(candidate.partition), overlap=overlap)
    cluster = flat(candidate.num_devices)
    predicted_s = predict_candidate(candidate, costs, cluster).seconds
    assert 0.5 * predicted_s < Bounds(cluster).of(candidate, costs).seconds <= predicted_s


@pytest.mark.parametrize(
    ("overlap", "least_s", "predicted_s"), [(0.0, 24.0, 26.0), (0.5, 20.0, 24.0), (1.0, 16.0, 22.0)]
)
def test_eight_micro_batches_of_dualpipe_keep_a_device_busy_for_less_where_ops_hide(overlap, least_s, predicted_s):
    """A device computes 8 F of 1 s and 8 B of 2 s: 24 s, of which as many as the F take can hide behind the B."""
    costs = StageCosts((StageCost(1.0, 2.0, 1.0, 1.0),) * 4, overlap=overlap)
    assert Bounds(flat(4)).of(CANDIDATES[0], costs).seconds == least_s
    assert predict_candidate(CANDIDATES[0], costs, flat(4)).seconds == predicted_s


def test_the_bound_has_the_conversion_of_messages():
    costs = StageCosts((StageCost(1.0, 2.0, output_bytes=100),) * 2, compression=Compression(4, 100.0))
    candidate = Candidate("1f1b", 2, 1, 4, 1, (1, 1), compression="half")
    cluster = flat(2, Link(0.1, 1000.0))
    predicted_s = predict_candidate(candidate, costs, cluster).seconds
    assert 0.9 * predicted_s < Bounds(cluster).of(candidate, costs).seconds <= predicted_s


def test_what_a_device_must_hold_is_said_of_that_device():
    light, heavy = StageCost(1.0, 2.0, weight_bytes=100), StageCost(1.0, 2.0, weight_bytes=5000)
    cluster = Cluster((Device(memory_bytes=150), Device()), Link())
    least = Bounds(cluster).of(Candidate("1f1b", 2, 1, 4, 1, (1, 1)), StageCosts((light, heavy)))
    assert least.peak_bytes == {0: 200, 1: 10_000}  # weights and gradients
    assert least.over_memory == "device 0 holds at least 200 bytes of 150"
