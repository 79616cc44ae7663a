"""Costs from runs: what is known beside them, what people read, and what ranks that take known seconds give."""

import statistics

import pytest

import pipesched
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.builders import build
from tests.hand_timelines import play
from tests.profiles.hand_profiles import layer, measurement, profile, split

GPIPE = play(build("gpipe", 2, 4), source="measured")
LAYERS = profile(*[layer(measurement(1, split=split()), measurement(2, split=split())) for _ in range(4)])


def test_costs_are_costs_to_the_simulator(tmp_path):
    measured = pipesched.costs_from_runs(GPIPE)
    measured.save(tmp_path / "costs.json")
    counts = {"num_ranks": 2, "num_microbatches": 8}

    for costs in (measured.costs, tmp_path / "costs.json"):
        assert (
            pipesched.simulate(pipesched.build("1f1b", **counts), costs).makespan_s == 3 * 9
        )  # (m + p - 1)(t_f + t_b)
    assert measured.costs == pipesched.costs_from_runs([GPIPE]).costs


def test_messages_travel_as_long_as_in_the_run_unless_machines_are_given():
    costs = pipesched.costs_from_runs(play(build("gpipe", 2, 4), 0.25, source="measured")).costs
    schedule = build("1f1b", 2, 8)

    assert pipesched.simulate(schedule, costs).makespan_s == play(schedule, 0.25).makespan_s
    assert (
        pipesched.simulate(schedule, pipesched.Setup(costs, pipesched.flat(2))).makespan_s == play(schedule).makespan_s
    )


def test_a_profile_beside_says_bytes_and_shares_of_the_backward():
    measured = pipesched.costs_from_runs(GPIPE, profile=LAYERS, run_partition=[1, 3], microbatch_size=2)
    known = LAYERS.costs_of_layers(((0, 1), (1, 4)), 2).stages
    stages = measured.costs.stage_costs(build("zb_h1", 2, 4)).stages

    assert [stage.output_bytes for stage in stages] == [20, 20]
    assert [stage.saved_bytes for stage in stages] == [cost.saved_bytes for cost in known]
    assert stages[1].backward_input_s == pytest.approx(2.0 * 0.75 / 2)
    assert stages[0].backward_weight_s == pytest.approx(2.0), "the first stage has no I"


def test_the_size_of_a_message_may_be_said_alone():
    stages = pipesched.costs_from_runs(GPIPE, output_bytes=8).costs.stage_costs(build("gpipe", 2, 4)).stages

    assert [stage.output_bytes for stage in stages] == [8, 0]


def test_rows_have_each_work_of_each_stage():
    measured = pipesched.costs_from_runs(GPIPE)
    rows = measured.to_frame()
    frame = rows[rows["stage"].notna()]

    assert list(rows["what"])[6:] == ["message"]
    assert list(frame["what"]) == ["F", "B", "Step"] * 2
    assert list(frame["count"]) == [3, 3, 1] * 2
    assert list(frame["median_s"]) == [1.0, 2.0, 0.0] * 2
    assert "without a measurement in every stage: I, W" in measured.table().caption
    assert "<table>" in measured._repr_html_()


def test_the_picture_has_a_bar_of_each_stage_with_its_works_one_on_another():
    seconds = pipesched.costs_from_runs(GPIPE).plot().axes[0]

    assert [bars.get_label() for bars in seconds.containers] == ["F", "B", "Step"]
    assert [[bar.get_height() for bar in bars] for bars in seconds.containers] == [[1e3] * 2, [2e3] * 2, [0.0] * 2]
    assert [bar.get_y() for bar in seconds.containers[1]] == [1e3] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"runs": []}, "^runs: got no Timeline, expected at least one"),
        ({"runs": [3]}, "^runs: got 3, expected a Timeline"),
        ({"warmup": -1}, "^warmup: got -1, expected at least 0"),
        ({"run_partition": "1,1"}, "^run_partition: got 1,1 without `profile`, expected both"),
        ({"output_bytes": 8, "profile": LAYERS}, "^output_bytes: got `profile` too, expected only one of them"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_by_name(arguments, message):
    with pytest.raises(pipesched.ArgumentError, match=message):
        pipesched.costs_from_runs(**({"runs": GPIPE} | arguments))


@pytest.mark.distributed
def test_emulated_ranks_take_at_least_the_seconds_that_they_were_told_and_costs_say_what_they_took():
    told = StageCosts((StageCost(0.010, 0.020, step_s=0.004), StageCost(0.015, 0.025, step_s=0.004)))
    gpipe = pipesched.run(pipesched.build("gpipe", 2, 8), told, iterations=3)
    costs = pipesched.costs_from_runs(gpipe.timeline).costs

    for rank, (stage, cost) in enumerate(zip(costs.stages, told.stages, strict=True)):
        for kind, told_s in (("F", cost.forward_s), ("B", cost.backward_s)):
            took_s = [span.end_s - span.start_s for span in gpipe.timeline.of_rank(rank) if str(span.op)[1] == kind]
            assert stage.work[kind].median_s == pytest.approx(statistics.median(took_s[1:]), abs=1e-9)
            assert stage.work[kind].deciles_s[0] >= told_s
    predicted, least = (
        pipesched.simulate(pipesched.build("1f1b", 2, 8), pipesched.Setup(known, pipesched.flat(2)))
        for known in (costs, told)
    )
    assert predicted.makespan_s >= least.makespan_s
