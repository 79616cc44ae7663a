"""`pipesched.partition`, `plan`, `tune`, `check`, `versions`, `gantt` and `trace`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import pipesched
from pipesched.profiles.io import load_plan
from pipesched.workflows import ArgumentError

GPT = str(Path(__file__).parents[2] / "profiles" / "data" / "gpt-10m-epyc.json")


@pytest.fixture(scope="module")
def profile():
    return pipesched.load_profile(GPT)


def test_the_picture_of_a_cut_has_the_time_of_each_stage_and_its_memory(profile):
    cut = pipesched.partition(profile, 2, by="time")
    seconds, held = cut.plot().axes

    tops_ms = [sum(part[stage].get_height() for part in seconds.containers) for stage in range(2)]
    frame = cut.to_frame()
    assert tops_ms == pytest.approx(list(1e3 * (frame["compute_s"] + frame["reduce_s"] + frame["transfer_s"])))
    assert [bar.get_height() * 2**20 for bar in held.containers[0]] == pytest.approx(list(frame["memory_bytes"]))


def test_what_partition_finds_is_what_simulate_takes(profile):
    cut = pipesched.partition(profile, 4, by="time")
    by_layers = pipesched.simulate(pipesched.build("1f1b", 4, 8), pipesched.Setup(profile, partition=cut.layers))

    assert cut.fits
    assert sum(map(int, cut.layers.split(","))) == len(profile.layers)
    assert by_layers.costs.num_stages == len(cut.to_frame()) == 4
    with pytest.raises(ArgumentError, match=r"^num_chunks: got 2 with `by=replicas`"):
        pipesched.partition(profile, 4, num_chunks=2)


def test_a_plan_is_a_schedule_of_which_only_the_profile_is_missing(profile, tmp_path):
    search = pipesched.plan(profile, batch_size=8, num_devices=2, top=3)
    search.save(tmp_path / "plan.json")
    assert search.plan == load_plan(tmp_path / "plan.json")
    assert search.best is not None

    again = pipesched.simulate(search.plan, profile)
    assert again.makespan_s == pytest.approx(search.best.seconds)
    assert pipesched.simulate(str(tmp_path / "plan.json"), GPT).makespan_s == again.makespan_s
    assert pipesched.compare([tmp_path / "plan.json"], GPT).summaries[0].makespan_s == again.makespan_s
    assert pipesched.check(tmp_path / "plan.json").runs_on("gloo")
    assert len(search.to_frame()) == len(search.table().rows) == 3
    assert isinstance(search.plot(), Figure)
    with pytest.raises(ArgumentError, match=r"^plan: got `partition` too"):
        pipesched.simulate(search.plan, pipesched.Setup(profile, partition="uniform"))
    with pytest.raises(ArgumentError, match=r"^costs: got a profile of other, expected a profile of gpt"):
        pipesched.simulate(search.plan, replace(profile, model="other"))


def test_what_cannot_be_planned_or_tuned_is_named(profile):
    with pytest.raises(ArgumentError, match=r"^schedules: got avgpipe, expected schedules of one pipeline"):
        pipesched.plan(profile, batch_size=8, num_devices=2, schedules=["avgpipe"])
    with pytest.raises(ArgumentError, match=r"^num_devices: got none and no `cluster`"):
        pipesched.tune(profile, batch_size=8)
    with pytest.raises(ArgumentError, match=r"^microbatches: got 3, expected divisors of the batch of 8"):
        pipesched.tune(profile, batch_size=8, num_devices=2, microbatches=[3])
    with pytest.raises(ArgumentError, match=r"^schedules: got pipedream, which steps without a flush"):
        pipesched.tune(profile, batch_size=8, num_devices=2, schedules=["pipedream"])


def test_the_chosen_setting_is_the_fastest_that_trains_plainly(profile):
    tuned = pipesched.tune(profile, batch_size=8, num_devices=2, pipelines=None, advances=(0, 1))
    frame = tuned.to_frame()

    assert tuned.chosen is not None
    plain = frame[(frame["training"] == "plain training") | (frame["num_pipelines"] == 1)]
    assert tuned.chosen.seconds == pytest.approx(plain["seconds_per_batch"].min(), rel=5e-3)
    assert isinstance(tuned.plot(), Figure)


def test_a_list_that_deadlocks_is_found_and_named():
    good = pipesched.build("1f1b", 2, 2)
    (f0, f1, b0, b1, *step), (last_f0, last_b0, last_f1, last_b1, *last_step) = good.ops
    crossed = ((f0, b0, f1, b1, *step), (last_f1, last_b1, last_f0, last_b0, *last_step))
    report = pipesched.check(replace(good, lists=crossed))

    assert pipesched.check(good).runs_on("nccl")
    assert not report.runs_on("gloo")
    assert set(report.to_frame()["backend"]) >= {"gloo", "nccl"}
    assert set(report.to_frame()["kind"]) == {"progress"}
    assert all("0B0 waits forever for 1B0 of rank 1" in text for text in report.to_frame()["text"])
    assert report._repr_html_().count("<td>deadlocks</td>") == len(report.to_frame())


def test_staleness_of_pipedream_falls_by_one_from_rank_to_rank():
    report = pipesched.versions("pipedream", num_ranks=4, num_microbatches=1000)

    assert report.to_frame()["forward_staleness"].tolist() == [3, 2, 1, 0]
    assert report.stale_share == 0.75
    assert pipesched.versions("pipedream", num_ranks=2, num_microbatches=8, weights=[1, 3]).stale_share == 0.25
    with pytest.raises(ArgumentError, match=r"^weights: got 1, expected 2 sizes"):
        pipesched.versions("pipedream", num_ranks=2, num_microbatches=8, weights=[1])


def test_pictures_and_traces_are_of_timelines_simulations_and_files(tmp_path):
    simulation = pipesched.simulate(pipesched.build("1f1b", 2, 2), pipesched.DeviceCost(1.0, 2.0))
    chart = pipesched.gantt(simulation, simulation.timeline, title="<b>")
    pipesched.trace(simulation).save(tmp_path / "trace.json")
    chart.save(tmp_path / "chart.svg")

    assert len(chart.timelines) == 2
    slow = pipesched.simulate(pipesched.build("1f1b", 1, 2), pipesched.DeviceCost(2.0, 4.0))  # 12 s
    fast = pipesched.simulate(pipesched.build("1f1b", 1, 2), pipesched.DeviceCost(1.0, 2.0))  # 6 s
    lines = pipesched.gantt(slow, fast).to_text(8 + 24).splitlines()
    assert (lines[1], lines[5]) == ("rank 0  FFFFBBBBBBBBFFFFBBBBBBBB", "rank 0  FFBBBBFFBBBB")
    assert "<b>" not in chart._repr_html_()
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    frame = pipesched.trace(simulation, simulation).to_frame()
    assert len(frame) == 2 * len(simulation.timeline.spans)
    assert set(frame["timeline"]) == {0, 1}
    shown = pipesched.trace(replace(simulation.timeline, name="<b>"), simulation)._repr_html_()
    assert shown.count("<td>9 s</td>") == 2
    assert "<td>&lt;b&gt;</td>" in shown
    assert len(chart.to_frame()) == 2 * len(simulation.timeline.spans)
    with pytest.raises(ArgumentError, match=r"^timelines: got none"):
        pipesched.gantt()
