"""Profiles from runs: stages take what a plain loop over the spans of the run finds, however layers are cut then."""

from collections import defaultdict
from dataclasses import replace
from statistics import fmean

import pytest

import pipesched
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.ops import Compute, Step
from pipesched.workflows.measuring import profile_from_runs
from tests.profiles.hand_profiles import layer, measurement, profile, split


def sized(forward_s, **fields):
    """Return a layer measured at 1 and 4 samples, with I and W."""
    return layer(
        *(
            measurement(size, forward_s * size, 2.0 * forward_s * size, split=split(forward_s * size, 0.9 * forward_s))
            for size in (1, 4)
        ),
        **fields,
    )


LAYERS = profile(*(sized(forward_s, step_s=0.1 * forward_s) for forward_s in (1.0, 3.0, 2.0, 5.0, 1.0)))
CUT = [2, 1, 2]
BOUNDS = ((0, 2), (2, 3), (3, 5))
STAGES = tuple(
    StageCost(forward_s, backward_input_s=1.5 * forward_s, backward_weight_s=0.5 * forward_s, step_s=step_s)
    for forward_s, step_s in ((0.7, 0.2), (0.4, 0.3), (0.9, 0.1))
)


def run_of(name):
    """Return what ranks with these costs would have measured, each op a little off."""
    costs = StageCosts(STAGES)
    timeline = pipesched.simulate(pipesched.build(name, 3, 6), pipesched.Setup(costs, jitter=0.1, seed=3)).timeline
    return replace(timeline, source="measured")


def means(timeline):
    """Return the mean seconds of each kind of op of each stage; the first of several is warm-up."""
    seconds = defaultdict(list)
    for span in timeline.spans:
        if isinstance(span.op, Compute | Step):
            kind = span.op.phase.value if isinstance(span.op, Compute) else "Step"
            seconds[span.op.stage, kind].append(span.end_s - span.start_s)
    return {key: fmean(values[1:] or values) for key, values in seconds.items()}


@pytest.mark.parametrize("size", [1, 2, 4])
def test_stages_cut_as_the_run_was_take_what_it_took(size):
    run = run_of("1f1b")
    fitted = profile_from_runs(run, LAYERS, run_partition=CUT, microbatch_size=size).profile
    stages = fitted.costs_of_layers(BOUNDS, size).stages
    expected = means(run)
    for index, stage in enumerate(stages):
        seconds = {"F": stage.forward_s, "B": stage.backward_s, "Step": stage.step_s}
        assert seconds == pytest.approx({kind: expected[index, kind] for kind in seconds})


def test_halves_of_the_backward_are_those_of_the_run():
    run = run_of("zb_h1")
    stages = (
        (profile_from_runs(run, LAYERS, run_partition=CUT).profile)
        .costs_of_layers(BOUNDS, LAYERS.microbatch_sizes[0])
        .stages
    )
    expected = means(run)
    for index, stage in enumerate(stages[1:], 1):
        assert stage.backward_input_s == pytest.approx(expected[index, "I"])
        assert stage.backward_weight_s == pytest.approx(expected[index, "W"])
    whole = expected[0, "I"] + expected[0, "W"]
    assert (stages[0].backward_s, stages[0].backward_weight_s) == pytest.approx((whole, whole)), "it has no I"


def test_several_runs_count_together_and_the_origin_says_so():
    runs = [run_of("gpipe"), replace(run_of("1f1b"), name="second")]
    measured = profile_from_runs(runs, LAYERS, run_partition=CUT)
    seconds = [[s.end_s - s.start_s for s in run.spans if str(s.op)[:2] == "1F"][1:] for run in runs]

    assert measured.profile.layers[2].measurements[0].forward_s == pytest.approx(fmean(seconds[0] + seconds[1]))
    assert measured.profile.provenance.device == "a device, with the seconds of gpipe, second"
    assert measured.profile.layers[2].weight_bytes == LAYERS.layers[2].weight_bytes


def test_a_step_that_the_profile_does_not_know_is_shared_by_the_weights():
    bare = profile(*(sized(1.0, step_s=0.0, weight_bytes=weight) for weight in (3, 1, 0, 0, 0)))
    fitted = profile_from_runs(run_of("1f1b"), bare, run_partition=CUT).profile

    step_s = means(run_of("1f1b"))
    steps = [0.75 * step_s[0, "Step"], 0.25 * step_s[0, "Step"], step_s[1, "Step"], *[step_s[2, "Step"] / 2] * 2]
    assert [layer.step_s for layer in fitted.layers] == pytest.approx(steps)


def test_it_is_a_profile_to_all_that_take_one(tmp_path):
    profile_from_runs(run_of("1f1b"), LAYERS, run_partition=CUT).save(tmp_path / "fitted.json")
    path = tmp_path / "fitted.json"

    assert pipesched.load_profile(path).provenance.device.endswith("with the seconds of 1f1b")
    assert pipesched.partition(path, 2, by="time").partitioned.stages
    assert pipesched.tune(path, batch_size=4, num_devices=2, microbatches=[4]).chosen is not None
    assert pipesched.plan(path, batch_size=4, num_devices=2).plan is not None
    simulated = pipesched.simulate(pipesched.build("1f1b", 3, 6), pipesched.Setup(path, partition=CUT))
    assert simulated.makespan_s == pytest.approx(run_of("1f1b").makespan_s, rel=0.1)


@pytest.mark.parametrize("name", ["run.json", "costs.json"])
def test_what_is_no_profile_is_refused_with_the_way_to_one(name, tmp_path):
    from pipesched.schedules.formats import timeline_to_json

    (tmp_path / "run.json").write_text(timeline_to_json(run_of("1f1b")))
    pipesched.costs_from_runs(run_of("1f1b")).save(tmp_path / "costs.json")
    way = r"expected a profile, .* with pipesched\.workflows\.measuring\.profile_from_runs$"
    with pytest.raises(pipesched.ProfileError, match=way):
        pipesched.tune(tmp_path / name, batch_size=4, num_devices=2)
