"""Notes on numbers that should not be believed: each comes where its rule says, and is silent elsewhere."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import pipesched
from pipesched import workflows
from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.profiles.costs import LayerCosts, StageCost
from pipesched.profiles.io import load_estimate_errors
from pipesched.profiles.processes import LoadMeter
from pipesched.schedules import HandOver, Span, Timeline, Yardstick
from pipesched.schedules.ops import Compute, Phase
from pipesched.workflows import (
    busy_machine,
    crowded_cores,
    estimate_data,
    estimate_notes,
    merged_notes,
    notes_of_estimate,
    other_device,
    other_speed,
    timeline_notes,
    unjudged_limit,
    unknown_bytes,
)
from pipesched.workflows.measuring import profile_of_layers
from tests.profiles.hand_profiles import layer, profile


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch):
    monkeypatch.setattr(workflows.notes, "num_cores", lambda: 4)


def test_an_estimate_has_the_errors_of_its_family():
    errors = load_estimate_errors("H100")
    note = notes_of_estimate("H100", 1.0)[0]
    gpus, time, memory = ", ".join(errors.gpus), errors.time, errors.memory
    assert note == (
        f"estimated: time within {time.median:.1%} (median), {time.ninth:.1%} (90th percentile) of {time.count} "
        f"published runs on {gpus}; peak memory {memory.median:.1%}, {memory.ninth:.1%} of {memory.count}"
    )
    assert "memory" not in notes_of_estimate("B300", 1.0)[0]
    assert estimate_data("H100")["time"] == {"count": time.count, "median": time.median, "ninth": time.ninth}


@pytest.mark.parametrize("family", ["L4", None])
def test_an_estimate_of_a_gpu_without_published_runs_says_so(family):
    assert notes_of_estimate(family, 1.0) == ["estimated: no published run of this GPU was compared"]
    assert estimate_data(family) is None


def test_a_fitted_estimate_has_its_factor():
    fitted, errors = notes_of_estimate("H100", 1.25)
    assert (
        fitted
        == "fitted: layers take 1.25 times their estimated seconds; published runs were compared without this factor"
    )
    assert [errors] == notes_of_estimate("H100", 1.0)


def test_measured_costs_have_no_note_on_estimates():
    assert estimate_notes(profile(layer())) == []


@pytest.mark.parametrize(
    ("num_ranks", "threads", "said"), [(4, 1, ""), (5, 1, "5 ranks share 4"), (3, 2, "3 ranks of 2")]
)
def test_ranks_have_a_core_for_each_thread(num_ranks, threads, said):
    assert [note[: len(said)] for note in crowded_cores(num_ranks, threads)] == ([said] if said else [])


@pytest.mark.parametrize(
    ("others", "num_busy", "is_said"),
    [(None, 4, False), (0.0, 4, False), (1.0, 2, False), (1.0, 4, True), (2.5, 2, True), (1.0, 64, True)],
)
def test_others_are_named_where_they_take_what_is_needed(others, num_busy, is_said):
    assert bool(busy_machine(others, num_busy)) == is_said


def run(op_s, beside_s):
    """A rank that runs two ops, and takes a time beside each."""
    ops = [Compute(Phase.FORWARD, 0, index) for index in range(2)]
    length_s = op_s + beside_s
    spans = tuple(Span(0, op, i * length_s, i * length_s, i * length_s + op_s) for i, op in enumerate(ops))
    pieces = tuple(HandOver(0, span.op, span.end_s, span.end_s + beside_s) for span in spans)
    return Timeline("two", "measured", spans, (0,), hand_overs=pieces if beside_s else ())


@pytest.mark.parametrize(("op_s", "beside_s", "is_said"), [(2.0, 1.0, False), (1.0, 2.0, True), (1.0, 0.0, False)])
def test_ops_are_longer_than_what_their_rank_takes_beside_them(op_s, beside_s, is_said):
    notes = timeline_notes(run(op_s, beside_s))
    assert bool(notes) == is_said
    assert not notes or ("stage 0 takes 1 s" in notes[0] and "2 s" in notes[0])


@pytest.mark.parametrize(("op_s", "is_said"), [(1e-3, False), (1e-6, True)])
def test_so_are_those_of_a_prediction_or_it_says_so(op_s, is_said):
    cluster = pipesched.flat(2, Link(send_s=5e-6, post_s=5e-6, receive_s=5e-6))
    costs = pipesched.DeviceCost(op_s, op_s)
    notes = pipesched.simulate(pipesched.build("1f1b", 2, 4), pipesched.Setup(costs, cluster)).notes
    assert ["an op of stage" in note for note in notes] == [True] * is_said


GPU, CPU = Yardstick("cuda", 1, 1.0), Yardstick("cpu", 1, 1.0)
LAUNCHED = "one thread launched the ops of all ranks in {} s of 4 s"
SHARE = f"{LAUNCHED}, including waits for full launch queues"
BOUND = f"{LAUNCHED}, which bounds the run: try larger micro-batches, or `transport=processes`"


@pytest.mark.parametrize(
    ("launch_s", "yardstick", "said"),
    [
        (4.0, GPU, BOUND),
        (4.5, GPU, BOUND),
        (3.75, GPU, BOUND),
        (3.25, GPU, SHARE),
        (3.75, None, BOUND),
        (1.0, GPU, SHARE),
        (4.0, CPU, "all ranks took turns on one thread of a CPU: none of their ops overlap"),
        (None, GPU, None),
        (None, CPU, None),
    ],
)
def test_launching_bounds_a_run_whose_gpu_is_less_than_half_an_op_behind(launch_s, yardstick, said):
    """Ops of 1 s that end at 4 s; launching that ends before 3.5 s waited for a full queue, or was quick."""
    ops = [Compute(Phase.FORWARD, 0, index) for index in range(4)]
    spans = tuple(Span(0, op, float(i), float(i), i + 1.0) for i, op in enumerate(ops))
    timeline = Timeline("t", "measured", spans, (0,), yardstick=yardstick, launch_s=launch_s)
    assert timeline_notes(timeline) == ([] if said is None else [said.format(f"{launch_s:.3g}")])


@pytest.mark.parametrize(("launch_s", "yardstick", "starts"), [
    (6.0, GPU, ["one thread"]), (1.0, GPU, ["an op of", "one thread"]), (6.0, CPU, ["an op of", "all ranks"])
])  # fmt: skip
def test_where_launching_bounds_a_run_short_ops_are_no_second_note(launch_s, yardstick, starts):
    notes = timeline_notes(replace(run(1.0, 2.0), yardstick=yardstick, launch_s=launch_s))
    assert [note[: len(start)] for note, start in zip(notes, starts, strict=True)] == starts


def test_the_host_s_time_to_launch_nothing_bounds_nothing():
    empty = Timeline("t", "measured", (), (0,), yardstick=GPU, launch_s=1.0)
    assert not empty.is_launch_bound


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (None, ""),
        (("cuda", 1, 2.0), ""),
        (("cpu", 2, 1.04), ""),
        (
            ("cpu", 2, 1.1),
            "10% slower in the run than in the profile, by the time of a fixed kernel: at the speed of the run, the "
            "prediction would be longer; `verify --rounds 5` cancels such a drift",
        ),
        (("cpu", 2, 0.9), "at the speed of the run, the prediction would be shorter;"),
        (("cpu", 1, 0.5), "50% faster in the run than in the profile, with 1 core busy instead of 2, by"),
    ],
)
def test_profile_and_run_at_different_speeds_are_told_apart(run, said):
    notes = other_speed(Yardstick("cpu", 2, 1.0), run and Yardstick(*run))
    assert len(notes) == bool(said)
    assert said in "".join(notes)
    assert other_speed(None, run and Yardstick(*run)) == []


def test_several_yardsticks_have_a_mean_where_all_are_known_and_of_one_kind():
    fast, slow, gpu = Yardstick("cpu", 2, 1.0), Yardstick("cpu", 2, 3.0), Yardstick("cuda", 1, 1.0)
    assert Yardstick.mean([fast, slow]) == Yardstick("cpu", 2, 2.0)
    assert Yardstick.mean([fast, None]) is Yardstick.mean([fast, gpu]) is Yardstick.mean([]) is None


def test_seconds_of_a_cpu_stand_for_no_gpu():
    measured = profile(layer())
    assert other_device(measured, None) == []
    (note,) = other_device(measured, "dgx-h100")
    assert "measured on a CPU" in note
    assert "dgx-h100" in note


def test_a_limit_is_judged_or_said_not_to_be():
    both, half = (Cluster((Device(memory_bytes=1024), Device(memory_bytes=limit))) for limit in (1024, None))
    assert unjudged_limit(both, [0, 1], True) == unjudged_limit(half, [0], True) == []
    assert unjudged_limit(Cluster((Device(),)), [0], False) == []
    assert unjudged_limit(both, [0, 1], False) == ["memory limit 1 KiB: not checked, because the costs have no bytes"]
    assert "not checked on devices without a known limit (1)" in unjudged_limit(half, [0, 1], True)[0]


def test_the_load_of_others_is_that_of_all_but_this_process(tmp_path, monkeypatch):
    """The clocks are given: in two seconds all cores computed for five, this process for one of them."""
    meter = LoadMeter()
    begun = meter._begun
    assert begun[2] > 0
    monkeypatch.setattr(LoadMeter, "_clocks", staticmethod(lambda: (begun[0] + 2, begun[1] + 1, begun[2] + 5)))
    assert meter.others() == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("cost", "missing"),
    [
        ({}, "messages, weights, activations"),
        ({"weight_bytes": 8}, "messages, activations"),
        ({"weight_bytes": 8, "output_bytes": 8}, None),
        ({"output_bytes": 8, "saved_bytes": 8}, "weights"),
    ],
)
def test_bytes_that_nobody_knows_are_named(cost, missing):
    layers = LayerCosts((StageCost(1.0, 2.0, **cost),) * 2)
    said = unknown_bytes(profile_of_layers(layers).profile)
    expected = [] if missing is None else [f"the profile has no bytes of {missing}"]
    assert [note.split(": ")[0] for note in said] == expected


@pytest.mark.parametrize(
    ("name", "overlap", "is_said"), [("dualpipe", 0.0, True), ("dualpipe", 0.5, False), ("zbv", 0.0, False)]
)
def test_a_schedule_of_side_by_side_ops_says_that_costs_hide_nothing_of_them(name, overlap, is_said):
    costs = pipesched.DeviceCost(1.0, backward_input_s=1.0, backward_weight_s=1.0, overlap=overlap)
    notes = pipesched.simulate(pipesched.build(name, 4, 8), costs).notes
    assert ["dualpipe: forwards overlap backwards" in note for note in notes] == [True] * is_said


def test_a_note_on_two_schedules_stands_once_with_both_names():
    pairs = [("a", "a: slow"), ("b", "a limit"), ("b", "b: slow"), ("c", "a limit"), ("b", "b: slow")]
    assert merged_notes(pairs) == ["a, b: slow", "a limit"]


GPT = Path(__file__).parents[2] / "profiles" / "data" / "gpt-10m-epyc.json"


@pytest.mark.parametrize(
    "ask",
    [
        lambda setup: pipesched.sweep(["1f1b"], setup, num_ranks=2, num_microbatches=4),
        lambda setup: pipesched.tune(setup, batch_size=4, num_devices=2, pipelines=[1]),
        lambda setup: pipesched.plan(setup, batch_size=4, num_devices=2, schedules=["gpipe"]),
        lambda setup: pipesched.partition(setup.profile, 2, setup.cluster, by="time"),
    ],
    ids=["sweep", "tune", "plan", "partition"],
)
def test_a_search_of_the_library_has_the_notes_of_its_command(ask):
    machine = pipesched.load_machine("dgx-a100")
    two = replace(machine, devices=machine.devices[:2], nics=())
    assert "not on the GPUs of dgx-a100" in " ".join(ask(pipesched.Setup(GPT, two)).notes)
    assert list(ask(pipesched.Setup(GPT, pipesched.flat(2))).notes) == []


@pytest.mark.parametrize("search", [pipesched.plan, pipesched.tune])
def test_a_table_of_layers_with_the_size_of_its_times_is_planned_and_tuned_as_its_profile(search):
    layers = LayerCosts((StageCost(1.0, 2.0, output_bytes=8),) * 4)
    asked = {"batch_size": 2, "num_devices": 2} | ({"pipelines": [1]} if search is pipesched.tune else {})
    measured = profile_of_layers(layers, 2).profile
    table, its_profile = (search(setup, **asked) for setup in (pipesched.Setup(layers, microbatch_size=2), measured))
    pd.testing.assert_frame_equal(table.to_frame(), its_profile.to_frame())
    with pytest.raises(pipesched.ProfileError, match="got LayerCosts, expected a profile"):
        search(layers, **asked)
    with pytest.raises(pipesched.ArgumentError, match="got `microbatch_size=2`, expected none"):
        search(pipesched.Setup(measured, microbatch_size=2), **asked)
