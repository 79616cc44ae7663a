"""What-if of runs with a slow stage: each answer is what a simulation of the target takes."""

from dataclasses import replace

import pytest

import pipesched
from pipesched.profiles.clusters import with_slow_device
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.builders import build
from pipesched.workflows import ArgumentError
from tests.hand_timelines import play
from tests.profiles.hand_profiles import layer, measurement, profile, split
from tests.properties import thinned

LINK = pipesched.Link(1e-4)
RANKS, BATCH = 4, 8


def costs(num_stages, slow=()):
    """Return costs of stages that are equal parts of a whole, but for some that take 1.3 times as long."""
    part_s = [0.01 * RANKS / num_stages * (1.3 if stage in slow else 1.0) for stage in range(num_stages)]
    return StageCosts(tuple(StageCost(seconds, 2 * seconds, seconds, seconds) for seconds in part_s))


def machines(slow_device=None):
    flat = pipesched.flat(RANKS, LINK)
    return flat if slow_device is None else with_slow_device(flat, slow_device, 1.3)


def run(lists, slow_stages=(), slow_device=None):
    """Return a run whose stages, or one of whose devices, are slow."""
    return pipesched.simulate(
        lists, pipesched.Setup(costs(lists.num_stages, slow_stages), machines(slow_device))
    ).timeline


def measured(timeline):
    return replace(timeline, source="measured")


def parts_of(stages, before, after):
    """Return the stages of a schedule that are parts of some stages of another, as there are twice as many."""
    parts = after.num_stages // before.num_stages
    return [parts * stage + part for stage in stages for part in range(parts)]


MOVES = [("1f1b", "interleaved", 2), ("gpipe", "interleaved", 4), ("1f1b", "zbv", None), ("1f1b", "looped_bfs", 2)]


@pytest.mark.parametrize(("device", "move"), thinned([0, 2, 3], MOVES))
def test_both_answers_are_true_where_the_run_does_not_tell(device, move):
    name, other, chunks = move
    before, after = build(name, RANKS, BATCH), build(other, RANKS, BATCH, chunks)
    runs = run(before, [device]), run(before, slow_device=device)
    assert runs[0].makespan_s == pytest.approx(runs[1].makespan_s)
    by_layers = run(after, parts_of([device], before, after)).makespan_s / runs[0].makespan_s - 1
    by_device = run(after, slow_device=device).makespan_s / runs[1].makespan_s - 1
    assert abs(by_layers - by_device) > 0.01
    for timeline in runs:
        answer = pipesched.what_if(measured(timeline), schedule=after, draws=3)
        assert (answer.change, answer.other.change) == pytest.approx((by_layers, by_device), abs=1e-9)
        assert answer.interval == pytest.approx(sorted((by_layers, by_device)), abs=1e-9)
        assert f"stage {device} on device {device} took 1.3 times as long as its peers" in answer.other.words
        assert f"{by_layers:+.1%} if layers are slow, {by_device:+.1%} if devices are" in answer.table().caption
        assert answer.to_dict()["change_if_slow_device"] == answer.other.change
        for slowness, change in (("layers", by_layers), ("device", by_device)):
            chosen = pipesched.what_if(measured(timeline), schedule=after, slowness=slowness, draws=3)
            assert (chosen.change, chosen.other) == (pytest.approx(change, abs=1e-9), None)
            assert chosen.slowness == slowness
            assert chosen.interval == pytest.approx((change, change), abs=1e-9)


@pytest.mark.parametrize(("other", "device"), thinned(["1f1b", "zbv", "gpipe"], [1, 2]))
def test_several_stages_of_a_device_tell_what_is_slow(other, device):
    before, after = build("interleaved", RANKS, BATCH, 2), build(other, RANKS, BATCH)
    slow_device = run(before, slow_device=device)
    told = pipesched.what_if(measured(slow_device), schedule=after, draws=3)
    assert told.change == pytest.approx(
        run(after, slow_device=device).makespan_s / slow_device.makespan_s - 1, abs=1e-9
    )
    assert (told.slowness, told.other) == ("device", None)
    assert told.suppositions[0].startswith(f"device {device} took 1.3 times as long as its peers: device {device} slow")

    slow_layers = run(before, [device])
    told = pipesched.what_if(measured(slow_layers), schedule="zbv", draws=3)
    expected_s = run(build("zbv", RANKS, BATCH), [device]).makespan_s
    assert told.change == pytest.approx(expected_s / slow_layers.makespan_s - 1, abs=1e-9)
    assert (told.slowness, told.other) == ("layers", None)
    assert f"stage {device} on device {device} took 1.3 times as long as its peers: layers slow" in told.suppositions[0]


@pytest.mark.parametrize("name", ["chimera", "dualpipe_v"])
def test_replicas_of_a_stage_or_all_its_stages_tell_that_a_device_is_slow(name):
    before = build(name, RANKS, BATCH)
    slow = run(before, slow_device=2)
    after = build("1f1b", RANKS, BATCH)
    told = pipesched.what_if(measured(slow), schedule=after, draws=3)
    assert told.change == pytest.approx(run(after, slow_device=2).makespan_s / slow.makespan_s - 1, abs=1e-9)
    assert (told.slowness, told.other) == ("device", None)


def test_another_step_tells_that_a_device_was_slow():
    before, after = build("1f1b", RANKS, BATCH), build("interleaved", RANKS, BATCH, 2)
    slow, usual = run(before, slow_device=2), run(before)
    told = pipesched.what_if([measured(slow), measured(usual)], schedule=after, draws=3)
    assert told.change == pytest.approx(run(after, slow_device=2).makespan_s / slow.makespan_s - 1, abs=1e-9)
    assert (told.slowness, told.other) == ("device", None)
    later = pipesched.what_if([measured(usual), measured(slow)], schedule=after, draws=3)
    assert later.change == pytest.approx(run(after).makespan_s / usual.makespan_s - 1, abs=1e-9)


def test_two_slow_devices_are_both_taken_as_slow():
    before, after = build("1f1b", RANKS, BATCH), build("zbv", RANKS, BATCH)
    both = with_slow_device(machines(1), 2, 1.5)
    slow, target = (
        pipesched.simulate(lists, pipesched.Setup(costs(lists.num_stages), both)).makespan_s
        for lists in (before, after)
    )
    timeline = pipesched.simulate(before, pipesched.Setup(costs(RANKS), both)).timeline
    answer = pipesched.what_if(measured(timeline), schedule=after, draws=3)
    assert answer.other.change == pytest.approx(target / slow - 1, abs=1e-9)
    assert "stage 1 on device 1 took 1.3 times" in answer.other.words
    assert "stage 2 on device 2 took 1.5 times" in answer.other.words


@pytest.mark.parametrize("change", [{"schedule": "gpipe"}, {"num_microbatches": 16}, {"latency_factor": 2.0}])
def test_nothing_is_asked_where_stages_stay_on_their_devices(change):
    answer = pipesched.what_if(measured(run(build("1f1b", RANKS, BATCH), [2])), **change, draws=3)
    assert (answer.slowness, answer.other) == (None, None)


@pytest.mark.parametrize("device", [0, 2])
def test_a_healed_device_is_as_fast_as_its_peers(device):
    lists, other = build("1f1b", RANKS, BATCH), build("interleaved", RANKS, BATCH, 2)
    slow = run(lists, slow_device=device)
    answer = pipesched.what_if(measured(slow), heal=[device], draws=3)
    assert answer.change == pytest.approx(run(lists).makespan_s / slow.makespan_s - 1, abs=1e-9)
    assert answer.asked == (f"device {device} as fast as its peers",)
    by_hand = pipesched.what_if(measured(slow), slow_devices={device: 1 / 1.3}, draws=3)
    assert answer.change == pytest.approx(by_hand.change, abs=1e-9)
    moved = pipesched.what_if(measured(slow), heal=[device], schedule=other, draws=3)
    assert moved.change == pytest.approx(run(other).makespan_s / slow.makespan_s - 1, abs=1e-9)
    assert moved.other is None


def test_where_no_device_is_slow_none_is_named_to_heal():
    quick = with_slow_device(machines(), 2, 0.7)
    timeline = pipesched.simulate(pipesched.build("1f1b", RANKS, BATCH), pipesched.Setup(costs(RANKS), quick)).timeline
    with pytest.raises(ArgumentError, match=r"^heal: got device 1, .*, expected a slower one; leave it out"):
        pipesched.what_if(measured(timeline), heal=[1])


def test_of_two_slow_devices_one_is_healed_or_both():
    lists = build("1f1b", RANKS, BATCH)
    both = with_slow_device(machines(1), 2, 1.5)
    slow = measured(pipesched.simulate(lists, pipesched.Setup(costs(RANKS), both)).timeline)
    for healed, expected in (([2], run(lists, slow_device=1)), ([1, 2], run(lists))):
        answer = pipesched.what_if(slow, heal=healed, draws=3)
        assert answer.change == pytest.approx(expected.makespan_s / slow.makespan_s - 1, abs=1e-9)


def test_a_device_with_several_stages_is_healed_as_a_whole():
    lists = build("interleaved", RANKS, BATCH, 2)
    slow = run(lists, slow_device=3)
    answer = pipesched.what_if(measured(slow), heal=[3], draws=3)
    assert answer.change == pytest.approx(run(lists).makespan_s / slow.makespan_s - 1, abs=1e-9)


def test_layers_are_cut_anew_under_both_readings():
    """The four layers of a profile take 3 s each: so do the stages, one each, but for the slow one."""
    slow = play(build("1f1b", 4, 8), source="measured", seconds=lambda op: 1.3 if op.stage == 2 else 1.0)
    layers = profile(*[layer(measurement(1, split=split())) for _ in range(4)])
    answer = pipesched.what_if(slow, profile=layers, schedule="1f1b", num_ranks=2, draws=3)
    by_layers = play(build("1f1b", 2, 8), seconds=lambda op: 2.3 if op.stage == 1 else 2.0)
    by_device = play(build("1f1b", 2, 8), seconds=lambda op: 2.0)  # device 2 is not among them
    assert answer.after.makespan_s == pytest.approx(by_layers.makespan_s)
    assert answer.other.change == pytest.approx(by_device.makespan_s / slow.makespan_s - 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heal": [7]}, "^heal: got device 7, expected a device of the run, 0 to 3; try another"),
        ({"heal": [1]}, "^heal: got device 1, which takes 1 times as long as its peers, .*; try 2"),
        ({"heal": 2}, "^heal: got 2, expected a list"),
        ({"slowness": "device"}, "^schedule: got no change of the run"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(arguments, message):
    with pytest.raises(pipesched.ArgumentError, match=message):
        pipesched.what_if(measured(run(build("1f1b", RANKS, BATCH), [2])), **arguments)
