"""PipeDream's partitioner beside brute force: every way to cut the layers and to hand out the devices."""

import math
import random
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from profiles.errors import ProfileError
from profiles.files import load_profile
from profiles.profile import layer_seconds
from profiles.replication import ChainLayer, Level, replicated_partition, slowest_s

PUBLISHED = Path(__file__).parents[2] / "profiles" / "data" / "pipedream"


def compositions(total, parts):
    for cuts in combinations(range(1, total), parts - 1):
        yield list(pairwise((0, *cuts, total)))


def brute_force_s(layers, levels, form, straight):
    """Return the least time over all plans, by the definition and nothing clever."""

    @cache
    def best_s(level, first, last):
        groups = levels[level].num_groups
        return min(
            pipeline_s(level, [(first + a, first + b) for a, b in cut], [b - a for a, b in given])
            for num_stages in range(1, min(last - first, groups) + 1)
            for cut in compositions(last - first, num_stages)
            for given in compositions(groups, num_stages)
        )

    def pipeline_s(level, stages, replicas):
        transfers = [2 * layers[a - 1].output_bytes / levels[level].bandwidth_bytes_per_s for a, _ in stages[1:]]
        times = [stage_s(level, a, b, m) for (a, b), m in zip(stages, replicas, strict=True)]
        return max(times + (transfers if form == "paper" else []))

    def stage_s(level, first, last, m):
        if straight and m > 1:
            return math.inf
        weights = sum(layer.weight_bytes for layer in layers[first:last])
        bandwidth = levels[level].bandwidth_bytes_per_s
        work = sum(layer.seconds for layer in layers[first:last]) if level == 0 else best_s(level - 1, first, last)
        if form == "paper":
            return max(work, 2 * (m - 1) * weights / bandwidth) / m
        return (work + 4 * (m - 1) * weights / (bandwidth * m)) / m

    return best_s(len(levels) - 1, 0, len(layers))


def random_instance(seed):
    draw = random.Random(seed)
    layers = [
        ChainLayer(draw.randrange(20) / 8, draw.choice((0, draw.randrange(40))), draw.choice((0, draw.randrange(200))))
        for _ in range(draw.randint(1, 8))
    ]
    shape = draw.choice(((1,), (2,), (3,), (4,), (6,), (2, 2), (2, 3), (3, 2), (2, 2, 2)))
    levels = [Level(count, draw.choice((8.0, 32.0, 128.0, math.inf))) for count in shape]
    return layers, levels, draw.choice(("paper", "published")), draw.random() < 0.2


@pytest.mark.parametrize("block", range(10))
def test_the_plan_is_as_fast_as_the_best_of_all_plans(block):
    for seed in range(block * 50, block * 50 + 50):
        layers, levels, form, straight = random_instance(seed)
        best_s = brute_force_s(layers, levels, form, straight)
        if math.isinf(best_s):
            with pytest.raises(ProfileError, match="straight pipeline"):
                replicated_partition(layers, levels, form=form, straight=straight)
            continue
        stages = replicated_partition(layers, levels, form=form, straight=straight)
        assert slowest_s(stages) == pytest.approx(best_s, abs=1e-12)
        assert [stages[0].first, *(stage.last for stage in stages)] == [*(s.first for s in stages), len(layers)]
        devices = [device for stage in stages for device in stage.devices]
        assert sorted(devices) == list(range(math.prod(level.num_groups for level in levels)))


def test_every_cost_of_a_stage_is_that_of_the_formula():
    layers = [ChainLayer(6.0, 5, 10), ChainLayer(3.0, 7, 20), ChainLayer(3.0, 0, 900)]
    first, second = replicated_partition(layers, [Level(4, 20.0)])
    assert (first.first, first.last, first.replicas) == (0, 2, 3)
    assert (second.first, second.last, second.replicas) == (2, 3, 1)
    assert (first.compute_s, first.reduce_s, first.transfer_s) == (3.0, 2 * 2 * 30 / 20 / 3, 0.0)
    assert (second.compute_s, second.reduce_s, second.transfer_s) == (3.0, 0.0, 2 * 7 / 20)
    assert slowest_s((first, second)) == 3.0


def test_servers_share_a_stage_and_split_it_among_their_devices():
    """Two servers of two devices: both hold a pipeline of two layers, and average gradients over the slow link."""
    layers = [ChainLayer(4.0, 1, 8), ChainLayer(4.0, 0, 8)]
    stages = replicated_partition(layers, [Level(2, 1.0), Level(2, 8.0)])
    assert [(stage.first, stage.last, stage.devices) for stage in stages] == [(0, 1, (0, 2)), (1, 2, (1, 3))]
    assert [stage.compute_s for stage in stages] == [2.0, 2.0]
    assert [stage.reduce_s for stage in stages] == [2 * 16 / 8 / 2] * 2
    assert stages[1].transfer_s == 2 * 1 / 1.0 / 2


def chain_of(name):
    profile = load_profile(PUBLISHED / f"{name}.graph.txt")
    outputs = [layer.measurements[0].output_bytes for layer in profile.layers]
    weights = [layer.weight_bytes for layer in profile.layers]
    return [ChainLayer(*each) for each in zip(layer_seconds(profile, 1), outputs, weights, strict=True)]


@pytest.mark.parametrize("form", ["paper", "published"])
def test_vgg16_on_four_workers_is_best_as_three_replicas_and_one(form):
    stages = replicated_partition(chain_of("vgg16"), [Level(4, 1e9)], form=form)
    assert [stage.replicas for stage in stages] == [3, 1]


@pytest.mark.parametrize("form", ["paper", "published"])
def test_gnmt_on_four_workers_is_best_straight_with_25_868_ms_in_the_slowest_stage(form):
    stages = replicated_partition(chain_of("gnmt"), [Level(4, 1e9)], form=form)
    assert [stage.replicas for stage in stages] == [1, 1, 1, 1]
    assert slowest_s(stages) == pytest.approx(25.868e-3, abs=1e-9)


@pytest.mark.parametrize(
    ("layers", "levels", "said"),
    [
        ([], [Level(2)], "got 0 layers"),
        ([ChainLayer(1.0, 0, 0)], [], "0 levels"),
        ([ChainLayer(math.nan, 0, 0)], [Level(2)], "layer 0"),
        ([ChainLayer(1.0, -1, 0)], [Level(2)], "layer 0"),
        ([ChainLayer(1.0, 0, 0)], [Level(0)], "got 0 groups"),
        ([ChainLayer(1.0, 0, 0)], [Level(2, -1.0)], "-1.0 bytes/s"),
        ([ChainLayer(1.0, 0, 0)], [Level(2, math.nan)], "nan bytes/s"),
        ([ChainLayer(1.0, 0, 0)] * 9, [Level(10**6)], "groups x layers"),
    ],
)
def test_what_is_no_instance_is_refused_in_one_line(layers, levels, said):
    with pytest.raises(ProfileError, match=said) as caught:
        replicated_partition(layers, levels)
    assert "\n" not in str(caught.value)
