"""Layers that share weights: the places of the copies, and the sums of their gradients."""

import random
from dataclasses import replace

import pytest

import pipesched
from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import LayerTie
from pipesched.profiles.costs.stage_costs import stages_of_layers
from pipesched.profiles.io.profile_json import profile_text, read_profile
from pipesched.schedules.ops import Reduce, Step, Summed
from tests.profiles.hand_profiles import layer
from tests.profiles.hand_profiles import profile as hand_made
from tests.simulator.planner.instances import random_profile

TIES = (LayerTie((0, 2, 5), 400), LayerTie((2, 3), 60))


def tied_profile():
    profile = random_profile(random.Random(3), 6)
    layers = [replace(layer, weight_bytes=1000, optimizer_bytes=2000, step_s=0.5) for layer in profile.layers]
    return replace(profile, layers=tuple(layers), ties=TIES)


@pytest.mark.parametrize(
    ("bounds", "num_bytes", "stages"),
    [
        ([(0, 6)], 0, ()),
        ([(0, 3), (3, 6)], 460, (0, 1)),
        ([(0, 4), (4, 6)], 400, (0, 1)),
        ([(0, 1), (1, 2), (2, 4), (4, 5), (5, 6)], 400, (0, 2, 4)),
        ([(i, i + 1) for i in range(6)], 460, (0, 2, 3, 5)),
    ],
)
def test_stages_with_copies_sum_them_and_a_stage_holds_one(bounds, num_bytes, stages):
    profile = tied_profile()
    for costs in (profile.costs_of_layers(bounds), stages_of_layers(profile)(bounds)):
        assert (costs.tied_bytes, costs.tied_stages) == (num_bytes, stages)
        for (first, last), cost in zip(bounds, costs.stages, strict=True):
            spare = sum(tie.num_bytes * max(0, sum(first <= at < last for at in tie.layers) - 1) for tie in TIES)
            assert cost.weight_bytes == 1000 * (last - first) - spare
            assert cost.optimizer_bytes == pytest.approx(2 * cost.weight_bytes, abs=1)
            assert cost.step_s == pytest.approx(0.5 * cost.weight_bytes / 1000)


def test_a_simulation_of_a_profile_sums_the_ties_of_its_cut():
    profile, lists = tied_profile(), pipesched.build("1f1b", 5, 5)
    cluster = flat(5, Link(bandwidth_bytes_per_s=10.0))
    setup = pipesched.Setup(profile, cluster, partition=[1, 1, 2, 1, 1])
    summed = pipesched.simulate(lists, setup).timeline
    (swept,) = pipesched.sweep(["1f1b"], setup, num_ranks=5, num_microbatches=5).outcomes
    assert swept.seconds == summed.makespan_s
    alone = pipesched.simulate(lists, replace(setup, costs=replace(profile, ties=()))).timeline
    sums = [span for span in summed.spans if isinstance(span.op, Reduce)]
    assert sorted(span.op.stage for span in sums) == [0, 2, 4]
    ready_s = max(alone.of_rank(rank)[-1].start_s for rank in (0, 2, 4))
    steps_s = {s.rank: s.start_s for s in summed.spans if isinstance(s.op, Step) and s.rank in (0, 2, 4)}
    over_s = ready_s + 4 * 400 / 3 / 10.0
    assert steps_s == pytest.approx(dict.fromkeys((0, 2, 4), over_s))
    assert sums[0].op.content is Summed.TIED
    unflushed = pipesched.simulate(pipesched.build("pipedream", 5, 5), setup).timeline
    assert not any(isinstance(span.op, Reduce) for span in unflushed.spans)


def test_a_file_keeps_the_ties_and_refuses_layers_that_are_not_there():
    profile = replace(hand_made(layer(), layer()), ties=(LayerTie((0, 1), 4),))
    assert read_profile(profile_text(profile, "p.json"), "p.json").ties == profile.ties
    for layers in ((0, 6), (1, 0), (1, 1)):
        with pytest.raises(ProfileError, match=r"ties\.0\.layers: got .*, expected (rising numbers|layers below)"):
            profile_text(replace(profile, ties=(LayerTie(layers, 1),)), "p.json")
