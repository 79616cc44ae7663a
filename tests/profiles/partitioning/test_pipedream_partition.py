"""PipeDream's partitioner beside brute force: every way to cut the layers and to hand out the devices."""

import math
import random
from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Device
from pipesched.profiles.io import load_profile
from pipesched.profiles.partitioning.pipedream_partition import ChainLayer, Level, replicated_partition, slowest_s
from tests.profiles.partitioning.brute_force import all_partitions

PUBLISHED = Path(__file__).parents[3] / "profiles" / "data" / "pipedream"


@dataclass(frozen=True)
class Instance:
    """`held[first, last]` is what a stage holds always, and per micro-batch in flight."""

    layers: list
    levels: list
    form: str
    straight: bool
    devices: list
    held: dict

    def solve(self):
        return replicated_partition(
            self.layers,
            self.levels,
            form=self.form,
            straight=self.straight,
            devices=self.devices,
            stage_bytes=lambda first, last: self.held[first, last],
        )


def plans(case, level, first, last, copies):
    """Yield (seconds, stages as (first, last, devices)) of every way to run layers on each of `copies` of the devices.

    By the definition and nothing clever; the seconds are those of a micro-batch of one copy.
    """
    if level < 0:
        devices = [copy[0] for copy in copies]
        work = sum(layer.seconds for layer in case.layers[first:last])
        yield work / min(case.devices[device].speed for device in devices), [(first, last, devices)]
        return
    bandwidth, groups = case.levels[level].bandwidth_bytes_per_s, case.levels[level].num_groups
    size = len(copies[0]) // groups
    for num_stages in range(1, min(last - first, groups) + 1):
        for cut in all_partitions(last - first, num_stages):
            transfers = [2 * case.layers[first + a - 1].output_bytes / bandwidth for a, _ in cut[1:]]
            for given in all_partitions(groups, num_stages):
                if case.straight and any(h - g > 1 for g, h in given):
                    continue
                parts = []
                for (a, b), (g, h) in zip(cut, given, strict=True):
                    inside = [copy[at * size : (at + 1) * size] for copy in copies for at in range(g, h)]
                    weights = sum(layer.weight_bytes for layer in case.layers[first + a : first + b])
                    parts.append(
                        [
                            (together(case.form, inner_s, weights, bandwidth, h - g), stages)
                            for inner_s, stages in plans(case, level - 1, first + a, first + b, inside)
                        ]
                    )
                for chosen in product(*parts):
                    times = [seconds for seconds, _ in chosen] + (transfers if case.form == "paper" else [])
                    yield max(times), [stage for _, stages in chosen for stage in stages]


def together(form, inner_s, weights, bandwidth, m):
    if form == "paper":
        return max(inner_s, 2 * (m - 1) * weights / bandwidth) / m
    return (inner_s + 4 * (m - 1) * weights / (bandwidth * m)) / m


def holds(case, stages):
    """Return what each stage holds under 1F1B-RR, where one of r devices has ceil(devices from it on / r) in flight."""
    held_bytes = []
    for index, (first, last, devices) in enumerate(stages):
        behind = sum(len(later) for *_, later in stages[index:])
        always, per_microbatch = case.held[first, last]
        held_bytes.append(always + math.ceil(behind / len(devices)) * per_microbatch)
    return held_bytes


def fits(case, stages):
    limits = [min(case.devices[device].memory_bytes or math.inf for device in devices) for *_, devices in stages]
    return all(held <= limit for held, limit in zip(holds(case, stages), limits, strict=True))


def random_instance(seed, is_plain):
    draw = random.Random(seed)
    layers = [
        ChainLayer(draw.randrange(20) / 8, draw.choice((0, draw.randrange(40))), draw.choice((0, draw.randrange(200))))
        for _ in range(draw.randint(1, 8))
    ]
    shape = draw.choice(((1,), (2,), (3,), (4,), (6,), (2, 2), (2, 3), (3, 2), (2, 2, 2)))
    levels = [Level(count, draw.choice((8.0, 32.0, 128.0, math.inf))) for count in shape]
    form, straight = draw.choice(("paper", "published")), draw.random() < 0.2
    held = {
        (first, last): (draw.randrange(10) + 2 * (last - first), draw.randrange(6) + (last - first))
        for first, last in combinations(range(len(layers) + 1), 2)
    }
    usual = draw.randint(8, 50)
    devices = [
        Device() if is_plain else Device(draw.choice((0.5, 1.0, 2.0)), draw.choice((usual, usual, draw.randint(5, 60))))
        for _ in range(math.prod(shape))
    ]
    return Instance(layers, levels, form, straight, devices, held)


@pytest.mark.slow
@pytest.mark.parametrize("is_plain", [True, False], ids=["equal devices", "speeds and limits"])
@pytest.mark.parametrize("block", range(5))
def test_the_plan_is_as_fast_as_the_best_of_all_plans(block, is_plain):
    for seed in range(block * 50, block * 50 + 50):
        case = random_instance(seed, is_plain)
        num_devices = math.prod(level.num_groups for level in case.levels)
        every = list(plans(case, len(case.levels) - 1, 0, len(case.layers), [list(range(num_devices))]))
        best_s = min((seconds for seconds, stages in every if fits(case, stages)), default=math.inf)
        if math.isinf(best_s):
            least = min((max(holds(case, stages)) for _, stages in every), default=None)
            said = "straight pipeline" if least is None else f"expected {least} bytes on each"
            with pytest.raises(ProfileError, match=said):
                case.solve()
            continue
        stages = case.solve()
        chosen = [(stage.first, stage.last, list(stage.devices)) for stage in stages]
        assert slowest_s(stages) == pytest.approx(best_s, abs=1e-12)
        assert (best_s, chosen) in [(pytest.approx(seconds), sorted_devices(plan)) for seconds, plan in every]
        assert fits(case, chosen)


def sorted_devices(plan):
    return [(first, last, sorted(devices)) for first, last, devices in plan]


def test_the_instances_have_some_of_every_kind():
    """Limits that forbid the fastest plan, limits that forbid all, and limits that do not matter."""
    seen = Counter()
    for seed in range(0, 250, 2):
        case = random_instance(seed, is_plain=False)
        free = replace(case, devices=[replace(device, memory_bytes=None) for device in case.devices])
        try:
            seen["slower" if slowest_s(case.solve()) > slowest_s(free.solve()) else "as fast"] += 1
        except ProfileError:
            seen["none"] += 1
    assert min(seen[kind] for kind in ("slower", "as fast", "none")) >= 15


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
    return [ChainLayer(*fields) for fields in zip(profile.seconds_of_layers(1), outputs, weights, strict=True)]


@pytest.mark.parametrize("form", ["paper", "published"])
def test_vgg16_on_four_workers_is_best_as_three_replicas_and_one(form):
    stages = replicated_partition(chain_of("vgg16"), [Level(4, 1e9)], form=form)
    assert [stage.replicas for stage in stages] == [3, 1]


@pytest.mark.parametrize("form", ["paper", "published"])
def test_gnmt_on_four_workers_is_best_straight_with_25_868_ms_in_the_slowest_stage(form):
    stages = replicated_partition(chain_of("gnmt"), [Level(4, 1e9)], form=form)
    assert [stage.replicas for stage in stages] == [1, 1, 1, 1]
    assert slowest_s(stages) == pytest.approx(25.868e-3, abs=1e-9)


def test_too_many_groups_are_refused_in_one_line():
    with pytest.raises(ProfileError, match="groups x layers"):
        replicated_partition([ChainLayer(1.0, 0, 0)] * 9, [Level(10**6)])
