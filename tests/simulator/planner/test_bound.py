"""What a candidate takes at least is never more than it takes."""

from dataclasses import replace
from random import Random

import pytest

from pipesched.profiles.clusters import Cluster, Device, Link, flat
from pipesched.profiles.costs import Compression, StageCost, StageCosts
from pipesched.schedules.ops import backward, backward_input, backward_weight, forward
from pipesched.simulator.planner import layout_of
from pipesched.simulator.planner.bound import Bounds
from pipesched.simulator.planner.candidate_evaluation import predict_candidate
from pipesched.simulator.search import Setting
from pipesched.workflows.arguments import searched_entries

CANDIDATES = (
    Setting("dualpipe", 4, 8, microbatch_size=1, partition=(1,) * 4),
    Setting("dualpipe_v", 4, 8, microbatch_size=1, partition=(1,) * 8),
    Setting("dualpipe", 4, 8, recompute_when="early", microbatch_size=1, width=2, partition=(1,) * 4),
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
    candidate = Setting("1f1b", 2, 4, microbatch_size=1, partition=(1, 1), compression="half")
    cluster = flat(2, Link(0.1, 1000.0))
    predicted_s = predict_candidate(candidate, costs, cluster).seconds
    assert 0.9 * predicted_s < Bounds(cluster).of(candidate, costs).seconds <= predicted_s


def test_what_a_device_must_hold_is_said_of_that_device():
    light, heavy = StageCost(1.0, 2.0, weight_bytes=100), StageCost(1.0, 2.0, weight_bytes=5000)
    cluster = Cluster((Device(memory_bytes=150), Device()), Link())
    least = Bounds(cluster).of(Setting("1f1b", 2, 4, microbatch_size=1, partition=(1, 1)), StageCosts((light, heavy)))
    assert least.peak_bytes == {0: 200, 1: 10_000}  # weights and gradients
    assert least.over_memory == "device 0 holds at least 200 bytes of 150"


def test_a_device_must_hold_what_a_backward_works_in_beside_all_in_flight():
    costs = StageCosts((StageCost(1.0, 2.0, saved_bytes=100, working_bytes=30, weight_bytes=1),) * 2)
    least = Bounds(flat(2)).of(Setting("1f1b", 2, 4, microbatch_size=1, partition=(1, 1)), costs)
    assert least.peak_bytes == {0: 231, 1: 131}


def shuffled(seed):
    """Return a builder of lists that nobody would write: stages anywhere, ops in any order that comes to its end."""

    def builder(num_ranks, num_microbatches):
        chance = Random(seed)
        homes = [*range(num_ranks), *(chance.randrange(num_ranks) for _ in range(chance.randrange(num_ranks)))]
        chance.shuffle(homes)
        halves = (backward_input, backward_weight) if chance.random() < 0.5 else (backward,)
        rows = [[] for _ in range(num_ranks)]
        stages = range(len(homes))
        ways = [
            [*(forward(stage, i) for stage in stages), *(half(stage, i) for stage in stages[::-1] for half in halves)]
            for i in range(num_microbatches)
        ]
        while waiting := [way for way in ways if way]:
            op = chance.choice(waiting).pop(0)
            rows[homes[op.stage]].append(op)
        return rows

    return builder


@pytest.mark.parametrize("seed", range(12))
def test_the_bound_holds_of_any_schedule_of_a_users_own(seed):
    chance = Random(seed)
    (entry,) = searched_entries([shuffled(seed)], "")
    width, when = chance.choice((1, 2)), chance.choice((None, None, "early", "late"))
    whole = Setting(entry.searched_name, 3, 4, recompute_when=when, microbatch_size=1, width=width)
    candidate = replace(whole, partition=(1,) * layout_of(whole).num_stages)
    parts = [(chance.random(), 2 * chance.random(), chance.random(), chance.random()) for _ in candidate.partition]
    sizes = {"output_bytes": 10, "weight_bytes": 9, "saved_bytes": 50, "working_bytes": seed % 2 * 70}
    costs = StageCosts(tuple(StageCost(*part, **sizes) for part in parts))
    devices = tuple(Device(chance.choice((0.5, 1.0))) for _ in range(candidate.num_devices))
    cluster = Cluster(devices, Link(chance.choice((0.0, 0.3)), 100.0))
    least, predicted = Bounds(cluster).of(candidate, costs), predict_candidate(candidate, costs, cluster)
    assert 0.1 * predicted.seconds < least.seconds <= predicted.seconds * (1 + 1e-12)
    assert all(num_bytes <= predicted.peak_bytes[device] for device, num_bytes in least.peak_bytes.items())
