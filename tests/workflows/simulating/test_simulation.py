"""The function `pipesched.simulate`."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import pipesched
from pipesched.profiles.clusters import Device
from pipesched.profiles.costs import SharingPrice, StageCost, StageCosts, Variation
from pipesched.profiles.io import load_profile
from pipesched.schedules.builders.avgpipe import one_pipeline
from pipesched.schedules.ops import Average
from pipesched.schedules.transforms import replicate
from pipesched.simulator.theory import one_f_one_b_makespan_s
from pipesched.workflows import ArgumentError
from pipesched.workflows.simulating import prediction

GPT = str(Path(__file__).parents[3] / "profiles" / "data" / "gpt-10m-epyc.json")
COSTS = pipesched.DeviceCost(forward_s=1.0, backward_s=2.0, saved_bytes=100)


def test_the_result_has_the_closed_form_in_it():
    result = pipesched.simulate(pipesched.build("1f1b", 4, 8), COSTS)

    assert result.makespan_s == one_f_one_b_makespan_s(4, 8, 1.0, 2.0)
    assert result.bubble_fraction == pytest.approx(9 / 33)
    assert result.peak_microbatches == {0: 4, 1: 3, 2: 2, 3: 1}
    assert result.steady_s_per_microbatch == pytest.approx(33 / 8)
    assert result.fits is None


def test_memory_and_pace_are_worked_out_when_they_are_asked_for_and_once(monkeypatch):
    asked = []

    def counted(what, function):
        def wrapped(*arguments, **keywords):
            asked.append(what)
            return function(*arguments, **keywords)

        monkeypatch.setattr(prediction, function.__name__, wrapped)

    counted("memory", prediction.with_memory)
    counted("pace", prediction.steady_pace)
    result = pipesched.simulate(pipesched.build("pipedream", 4, 8), COSTS)
    assert (result.makespan_s, result.throughput, repr(result)[:10]) == (33.0, 8 / 33, "Simulation")
    assert asked == []

    peaks = [[device.peak_memory_bytes for device in result.metrics.devices] for _ in range(2)]
    assert peaks == [[400, 300, 200, 100]] * 2
    assert (result.steady_s_per_microbatch, result.steady_s_per_microbatch) == (3.0, 3.0)
    assert asked == ["memory", "pace"]


@pytest.mark.parametrize("schedule", ["1f1b", "pipedream"])
def test_a_result_goes_to_another_process_and_back(schedule):
    result = pipesched.simulate(pipesched.build(schedule, 2, 4), COSTS)
    copy = pickle.loads(pickle.dumps(result))

    assert copy.to_dict() == result.to_dict()


def test_the_frame_has_a_row_per_device_and_the_picture_is_a_figure():
    result = pipesched.simulate(pipesched.build("1f1b", 4, 8), COSTS)
    frame = result.to_frame()

    assert frame["busy_s"].tolist() == [24.0] * 4
    assert frame["peak_memory_bytes"].tolist() == [400, 300, 200, 100]
    assert isinstance(result.plot(), Figure)


def test_a_name_is_no_html():
    schedule = pipesched.build("1f1b", 2, 2)
    from dataclasses import replace

    shown = pipesched.simulate(replace(schedule, name="<script>alert(1)</script>"), COSTS)._repr_html_()

    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_a_device_that_is_too_small_is_named():
    cluster = pipesched.Cluster((Device(memory_bytes=250),) * 4, pipesched.Link())
    result = pipesched.simulate(pipesched.build("1f1b", 4, 8), pipesched.Setup(COSTS, cluster))

    assert result.fits is False
    assert result.over is not None
    assert result.over.device == 0


def test_a_profile_is_cut_as_asked():
    layers = len(pipesched.load_profile(GPT).layers)
    lopsided = pipesched.simulate(pipesched.build("1f1b", 2, 4), pipesched.Setup(GPT, partition=f"1,{layers - 1}"))
    balanced = pipesched.simulate(pipesched.build("1f1b", 2, 4), GPT)

    assert balanced.makespan_s < lopsided.makespan_s


def test_jitter_has_a_distribution_and_no_steady_time():
    result = pipesched.simulate(pipesched.build("1f1b", 2, 4), pipesched.Setup(COSTS, jitter=0.1), num_runs=5)

    assert result.distribution is not None
    assert result.distribution.runs == 5
    assert "5 runs: min " in result.table().caption
    assert result.steady_s_per_microbatch is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"spread": 5}, r"^spread: got costs without the variation of their seconds"),
        ({"spread": 5, "jitter": 0.1}, r"^spread: got `jitter` too"),
        ({"num_runs": 5}, r"^num_runs: got 5 without `jitter`"),
        ({"convert_bytes_per_s": 1e9}, r"^convert_bytes_per_s: got a rate without `compression`"),
        ({"partition": "1,1"}, r"^partition: got 1,1, expected a partition only with costs of layers or a profile"),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(arguments, message):
    settings = {name: value for name, value in arguments.items() if name in ("spread", "num_runs")}
    setup = pipesched.Setup(COSTS, **{name: arguments[name] for name in arguments.keys() - settings.keys()})
    with pytest.raises(ArgumentError, match=message):
        pipesched.simulate(pipesched.build("1f1b", 2, 4), setup, **settings)


def test_a_profile_that_says_how_seconds_vary_gives_a_range_of_the_makespan():
    profile = replace(
        load_profile(Path(GPT)), variation=Variation(tuple(0.9 + 0.02 * k for k in range(11)), (1.0,) * 11)
    )
    result = pipesched.simulate(pipesched.build("1f1b", 2, 4), pipesched.Setup(profile, microbatch_size=1), spread=50)
    assert 0.89 < result.spread.low_s / result.makespan_s < result.spread.high_s / result.makespan_s < 1.11
    assert result.to_dict()["spread"]["draws"] == 50
    assert "80 % of runs between" in result.table().caption


def test_runs_of_one_schedule_give_a_range_of_the_makespan():
    runs = [measured_run(factor) for factor in (0.9, 1.0, 1.1)]
    costs = pipesched.costs_from_runs(runs, warmup=0).costs
    result = pipesched.simulate(pipesched.build("1f1b", 2, 4), costs, spread=50)
    assert 0.8 < result.spread.low_s / result.makespan_s < 0.95 < 1.05 < result.spread.high_s / result.makespan_s < 1.2
    one_run = pipesched.costs_from_runs(runs[:1], warmup=0).costs
    with pytest.raises(ArgumentError, match=r"^spread: got runs without the variation of its seconds"):
        pipesched.simulate(pipesched.build("1f1b", 2, 4), one_run, spread=5)


def measured_run(factor):
    costs = StageCosts((StageCost(factor, 2.0 * factor),) * 2)
    return replace(pipesched.simulate(pipesched.build("1f1b", 2, 4), costs).timeline, source="measured")


def test_a_profile_that_does_not_say_how_seconds_vary_gives_none():
    with pytest.raises(ArgumentError, match=r"^spread: got a profile of gpt.* without the variation of its seconds"):
        pipesched.simulate(pipesched.build("1f1b", 2, 4), GPT, spread=5)


def test_a_pipeline_that_is_alone_averages_as_its_lists_say():
    """A run of such lists averages too, so the prediction has the same ops."""
    lists = one_pipeline(2, 4, 2, 1)
    costs = StageCosts((StageCost(1.0, 2.0, average_s=0.25),) * 2)
    averages = [span for span in pipesched.simulate(lists, costs).timeline.spans if isinstance(span.op, Average)]
    assert [span.op for span in averages] == [op for row in lists.ops for op in row if isinstance(op, Average)]
    assert {span.end_s - span.start_s for span in averages} == {0.25}


def test_costs_without_bytes_say_nothing_of_memory():
    costs = StageCosts((StageCost(1.0, 2.0),) * 2)
    assert not pipesched.simulate(pipesched.build("1f1b", 2, 4), costs).timeline.memory


def test_ranks_that_share_a_device_take_as_much_longer_as_the_profile_says():
    profile = load_profile(GPT)
    priced = replace(profile, sharing=(SharingPrice(2, (1.5,) * 11),))

    def makespan_s(costs, schedule, **parameters):
        return pipesched.simulate(pipesched.build(schedule, 2, 4, **parameters), costs).makespan_s

    assert makespan_s(priced, "1f1b") == makespan_s(profile, "1f1b")
    shared = {"pipelines": 2}
    assert makespan_s(priced, "avgpipe", **shared) == pytest.approx(1.5 * makespan_s(profile, "avgpipe", **shared))


def test_devices_that_follow_one_another_and_are_equal_are_one_row_of_the_table():
    alone = pipesched.simulate(pipesched.build("gpipe", 4, 4), pipesched.uniform(4, 1.0, 2.0)).table()
    assert [row["device"] for row in alone.rows] == ["0", "1", "2", "3"], "their idle times have other causes"
    copies = pipesched.simulate(replicate(pipesched.build("gpipe", 1, 4), 8), pipesched.uniform(1, 1.0, 2.0))
    assert [row["device"] for row in copies.table().rows] == ["0-7"]
    assert len(copies.to_frame()) == 8
