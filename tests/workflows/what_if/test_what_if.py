"""What-if: what is predicted of a run is what a plain loop makes of the changed lists, costs and machines."""

from dataclasses import replace
from statistics import quantiles

import pytest

import pipesched
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules import Span
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.ops import Phase, Reduce, Summed, computes
from pipesched.schedules.transforms import recompute, with_step_barrier, with_tied_sum
from tests.hand_timelines import SECONDS, play
from tests.profiles.hand_profiles import layer, measurement, profile, split

GPIPE = play(build("gpipe", 2, 4), source="measured")
LAYERS = profile(*[layer(measurement(1, split=split())) for _ in range(4)])


def scaled(timeline, factor):
    """Return the run on a machine that was so many times as slow."""
    spans = tuple(
        Span(span.rank, span.op, *(factor * time_s for time_s in (span.posted_s, span.start_s, span.end_s)))
        for span in timeline.spans
    )
    return replace(timeline, spans=spans)


def halved(op):
    """Return the seconds of a backward of 2 s, of which I takes half; the first stage has no I."""
    if op.phase in (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT):
        is_input = op.phase is Phase.BACKWARD_INPUT
        return (0.0 if is_input else 2.0) if op.stage == 0 else 1.0
    return SECONDS[op.phase]


SHARED = {
    "avgpipe": "a device has several pipelines",
    "data_parallel": "reductions take time, which a run does not say",
}


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in SHARED])
def test_the_costs_of_a_run_give_the_run_again(name):
    schedule = build(name, 4, 8)
    told = pipesched.uniform(schedule.num_stages, 1.0, 2.0, 1.25, 0.75)
    run = pipesched.simulate(schedule, pipesched.Setup(told, pipesched.flat(4, pipesched.Link(0.125)))).timeline

    answer = pipesched.what_if(replace(run, source="measured"), latency_factor=2.0, draws=1)

    assert answer.before.makespan_s == pytest.approx(run.makespan_s, rel=1e-12)
    assert answer.drawn_changes[0] == pytest.approx(answer.change, rel=1e-9), "equal seconds are drawn as they are"


def test_ops_beside_those_of_other_pipelines_say_nothing():
    schedule = build("avgpipe", 2, 4, pipelines=2)
    run = pipesched.simulate(schedule, pipesched.uniform(2, 1.0, 2.0)).timeline

    with pytest.raises(pipesched.ProfileError, match="while no other rank of the device works"):
        pipesched.what_if(replace(run, source="measured"), schedule="1f1b")


def own_split(op):
    return {"I": 1.5, "W": 0.25}.get(op.phase, 1.0)


def split_as_layers(op):
    """Return the seconds of a backward that is split as the one of `LAYERS`."""
    if op.stage == 0 or op.phase in (Phase.FORWARD, Phase.BACKWARD):
        return halved(op)
    return {Phase.BACKWARD_INPUT: 0.75, Phase.BACKWARD_WEIGHT: 0.5}[op.phase]


ZB_H1, SPLIT_RUN = build("zb_h1", 2, 4), play(build("zb_h1", 2, 4), source="measured", seconds=own_split)
CHANGES = {
    "another schedule": (
        {"schedule": "1f1b", "num_microbatches": 8},
        play(build("1f1b", 2, 8)),
        ["8 micro-batches, each of as many samples as in the run"],
    ),
    "a backward that is split": (
        {"schedule": "zb_h1"},
        play(ZB_H1, seconds=halved),
        ["I is taken as 0.5 of B, and W as 0.5 (on stage 0 as the whole B), because the run has only B; a split"],
    ),
    "a backward that another run splits": (
        {"run": [GPIPE, SPLIT_RUN], "schedule": "zb_h1"}, play(ZB_H1, seconds=own_split), [],
    ),
    "a backward that a profile splits": (
        {"schedule": "zb_h1", "profile": LAYERS}, play(ZB_H1, seconds=split_as_layers), [],
    ),
    "recomputation": ({"recompute": "all"}, play(recompute(build("gpipe", 2, 4))), ["R is taken to be as long as F"]),
    "layers cut anew by the seconds of their stages": (
        {"profile": LAYERS, "run_partition": "1,3", "partition": [2, 2]},
        play(build("gpipe", 2, 4), seconds=lambda op: SECONDS[op.phase] * (4 / 3, 2 / 3)[op.stage]),
        ["the profile is assumed to be of the run's model"],
    ),
    "more stages with a profile": (
        {"schedule": "interleaved", "num_chunks": 2, "profile": LAYERS},
        play(build("interleaved", 2, 4, 2), seconds=lambda op: SECONDS[op.phase] / 2),
        [],
    ),
    "more stages without a profile": (
        {"schedule": "zbv"},
        play(build("zbv", 2, 4), seconds=lambda op: SECONDS[op.phase] / 2),
        ["each stage of the run is split into 2 equal stages", "I is taken as"],
    ),
    "several changes": (
        {"schedule": "1f1b", "num_microbatches": 6, "recompute": "all", "slow_devices": {0: 2.0}},
        play(recompute(build("1f1b", 2, 6)), seconds=lambda op: SECONDS[op.phase] * (1 + (op.stage == 0))),
        ["6 micro-batches", "R is taken to be as long as F"],
    ),
}  # fmt: skip
"""Changes of a run, each with the timeline of a plain loop and the beginnings of the suppositions."""


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_run_takes_the_time_of_a_plain_loop(name):
    changes, expected, suppositions = CHANGES[name]
    answer = pipesched.what_if(**({"run": GPIPE, "draws": 3} | changes))

    assert answer.before.makespan_s == GPIPE.makespan_s
    assert answer.after.makespan_s == pytest.approx(expected.makespan_s, rel=1e-12)
    per_microbatch_s = expected.makespan_s / changes.get("num_microbatches", 4)
    assert answer.change == pytest.approx(per_microbatch_s / (GPIPE.makespan_s / 4) - 1)
    assert answer.model_error == 0
    assert [text[: len(start)] for text, start in zip(answer.suppositions, suppositions, strict=True)] == suppositions


def test_an_answer_names_all_changes():
    changes = {"schedule": "1f1b", "num_microbatches": 6, "recompute": "all", "slow_devices": {0: 2.0}}
    assert pipesched.what_if(GPIPE, **changes, draws=1).asked == ("1f1b+R", "6 micro-batches", "device 0 x2 slower")
    cut = {"profile": LAYERS, "run_partition": "1,3", "partition": [2, 2]}
    assert pipesched.what_if(GPIPE, **cut, draws=1).asked == ("layers 2,2",)


@pytest.mark.parametrize("change", [{"latency_factor": 0.5}, {"bandwidth_factor": 2.0}, {"link": pipesched.Link(0.25)}])
def test_messages_travel_shorter(change):
    run = play(build("gpipe", 2, 4), 0.5, source="measured")
    answer = pipesched.what_if(run, **change, draws=3)

    assert answer.before.makespan_s == run.makespan_s
    assert answer.after.makespan_s == play(build("gpipe", 2, 4), 0.25).makespan_s
    assert answer.asked[0].split()[0] in ("latency", "bandwidth", "links")
    supposed = "the whole 500 ms of a message is taken as bytes over bandwidth" in " ".join(answer.suppositions)
    assert supposed == ("bandwidth_factor" in change)


def test_a_link_between_two_devices_may_be_slow():
    run = play(build("gpipe", 2, 4), 0.5, source="measured")

    answer = pipesched.what_if(run, slow_links={(0, 1): 3.0}, draws=3)

    assert answer.after.makespan_s == play(build("gpipe", 2, 4), 1.5).makespan_s


def test_bandwidth_of_given_machines_counts_with_the_bytes_of_messages():
    cluster = pipesched.flat(2, pipesched.Link(0.25, 8.0))
    answer = pipesched.what_if(GPIPE, bandwidth_factor=4.0, cluster=cluster, output_bytes=8, draws=3)

    def expected(bandwidth):
        costs = pipesched.costs_from_runs(GPIPE, output_bytes=8).costs
        return pipesched.simulate(
            build("gpipe", 2, 4), pipesched.Setup(costs, pipesched.flat(2, pipesched.Link(0.25, bandwidth)))
        ).makespan_s

    assert (answer.before.makespan_s, answer.after.makespan_s) == (expected(8.0), expected(32.0))
    assert answer.after.makespan_s < answer.before.makespan_s


def test_all_draws_are_of_one_cut():
    run = play(build("gpipe", 2, 8), source="measured", seconds=uneven)
    answer = pipesched.what_if(run, profile=LAYERS, partition="balanced", draws=20)

    assert answer.drawn_changes == pytest.approx([0.0] * 20), "layers that are cut as they were change nothing"


def test_a_profile_whose_stages_take_far_less_or_more_is_doubted():
    """F and B of a stage take 3 s in the run, and as many for each of its layers in the profile."""
    told = [
        pipesched.what_if(GPIPE, schedule="1f1b", profile=LAYERS, run_partition=cut, draws=1).suppositions
        for cut in ("2,2", "1,3")
    ]
    assert [
        len([line for line in lines if "0.333 to 1 times the seconds of the profile" in line]) for lines in told
    ] == [
        0,
        1,
    ]


def test_the_speed_of_the_machine_cancels():
    changes = [pipesched.what_if(scaled(GPIPE, factor), schedule="1f1b", draws=2).change for factor in (1.0, 4.0)]

    assert changes[0] == pytest.approx(changes[1], rel=1e-12)


def uneven(op):
    """Return seconds that differ from micro-batch to micro-batch."""
    return SECONDS[op.phase] * (1 + op.microbatch / 8)


def test_the_interval_is_what_draws_leave_open():
    run = play(build("gpipe", 2, 8), source="measured", seconds=uneven)
    answer = pipesched.what_if(run, slow_devices={1: 1.5}, draws=50)
    again, other = (pipesched.what_if(run, slow_devices={1: 1.5}, draws=50, seed=seed) for seed in (0, 1))

    low, high = answer.interval
    assert low < answer.change < high
    assert answer.drawn_changes == again.drawn_changes != other.drawn_changes


def test_the_interval_holds_the_change_where_all_draws_are_off_to_one_side():
    """Of stages that are nearly equal, the slowest as drawn is slower than the slowest as measured."""
    run = play(
        build("1f1b", 4, 6),
        source="measured",
        seconds=lambda op: SECONDS[op.phase] * (1 + (37 * op.stage + 53 * op.microbatch + 11) % 7 / 4),
    )
    answer = pipesched.what_if(run, schedule="gpipe", draws=40)

    drawn = quantiles(answer.drawn_changes, n=10, method="inclusive")
    low, high = answer.interval
    assert not drawn[0] <= answer.change
    assert low < answer.change < high
    assert high - low == pytest.approx(drawn[-1] - drawn[0])


def test_a_result_is_a_table_a_picture_and_data():
    answer = pipesched.what_if(GPIPE, schedule="1f1b", profile=LAYERS, draws=3)

    assert list(answer.to_frame()["quantity"]) == [
        "makespan_s", "micro-batch_s", "bubble_fraction", "busiest_device_s", "peak_memory_bytes",
    ]  # fmt: skip
    assert answer.to_dict()["change"] == answer.change
    assert "what if: 1f1b" in answer._repr_html_()
    assert repr(answer).startswith("WhatIf('gpipe': 1f1b, change=")
    assert answer.plot().axes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "^schedule: got no change of the run"),
        ({"num_chunks": 2}, "chunks"),
        ({"partition": "2,2"}, "^partition: got 2,2 without `profile`, expected both"),
        ({"slow_devices": {2: 1.5}}, "^slow_devices: got device 2, expected 0 to 1; "),
        ({"slow_devices": {0: 0.0}}, r"^slow_devices: got 0\.0, expected a number above 0"),
        ({"slow_devices": [0]}, r"^slow_devices: got list\(\.\.\), expected factors"),
        ({"slow_links": {0: 2.0}}, "^slow_links: got 0, expected two devices"),
        ({"bandwidth_factor": 2.0, "latency_factor": 2.0}, "^bandwidth_factor: got `latency_factor` too, .* `cluster`"),
        ({"bandwidth_factor": 2.0, "link": pipesched.Link(1.0)}, "^link: got `bandwidth_factor` or"),
        ({"link": pipesched.Link(0.0, 1e9)}, "^link: got a bandwidth, expected the bytes of messages too"),
        ({"bandwidth_factor": 2.0, "cluster": pipesched.flat(2)}, "^bandwidth_factor: got a bandwidth, expected"),
        (
            {"schedule": build("1f1b", 2, 4), "num_ranks": 2},
            "^num_ranks: got 2 with a schedule that already has its counts",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        pipesched.what_if(GPIPE, **arguments)


def test_lists_of_nobody_have_no_other_counts():
    run = replace(GPIPE, name="1f1b")

    with pytest.raises(
        pipesched.ArgumentError,
        match=r"^schedule: got other counts without a schedule, expected both, as the lists of the run \(1f1b\)",
    ):
        pipesched.what_if(run, num_microbatches=8)


def test_a_run_with_a_barrier_keeps_it_under_other_counts():
    run = play(with_step_barrier(build("zb_h2", 2, 4)), source="measured")
    more = pipesched.what_if(run, num_microbatches=8)
    assert [span.op for span in more.after.spans if isinstance(span.op, Reduce)] == [
        Reduce(stage, Summed.NORM) for stage in range(2)
    ]


def test_a_run_with_tied_stages_keeps_their_sum_where_they_stay():
    run = play(with_tied_sum(build("1f1b", 4, 4), (0, 1)), source="measured")
    more, fewer = pipesched.what_if(run, num_microbatches=8), pipesched.what_if(run, num_ranks=2)
    tied = [Reduce(0, Summed.TIED), Reduce(1, Summed.TIED)]
    assert [span.op for span in more.after.spans if isinstance(span.op, Reduce)] == tied
    assert not any(isinstance(span.op, Reduce) for span in fewer.after.spans)


def late_recomputes(timeline):
    return {part.is_late for span in timeline.spans for part in computes(span.op) if part.phase is Phase.RECOMPUTE}


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_run_keeps_when_it_recomputes(when):
    run = play(recompute(build("1f1b", 3, 4), None, when), source="measured")
    kept = pipesched.what_if(run, bandwidth_factor=2.0)
    assert late_recomputes(kept.before) == late_recomputes(kept.after) == {when == "late"}
    other = pipesched.what_if(run, schedule="gpipe", recompute="all")
    assert late_recomputes(other.after) == {when == "late"}
    chosen = pipesched.what_if(run, schedule="gpipe", recompute="all", recompute_when="late")
    assert late_recomputes(chosen.after) == {True}


def test_a_run_without_recomputation_recomputes_when_asked():
    run = play(build("1f1b", 3, 4), source="measured")
    early, late = (pipesched.what_if(run, recompute="all", recompute_when=when).after for when in ("early", "late"))
    assert late.makespan_s - early.makespan_s == pytest.approx(2.0)  # (p - 1) F
    with pytest.raises(pipesched.ArgumentError, match=r"^recompute_when: got late without `recompute`"):
        pipesched.what_if(run, recompute_when="late")


@pytest.mark.distributed
def test_emulated_ranks_change_as_predicted():
    costs = StageCosts((StageCost(0.01, 0.02, 0.0, 0.02), StageCost(0.01, 0.02, 0.01, 0.01)))
    rounds = [[pipesched.run(pipesched.build(name, 2, 4), costs) for name in ("gpipe", "zb_h1")] for _ in range(3)]
    gpipe, zero_bubble = (min(runs, key=lambda run: run.makespan_s) for runs in zip(*rounds, strict=True))
    answer = pipesched.what_if(gpipe.timeline, schedule="zb_h1", draws=20)

    measured = zero_bubble.makespan_s / gpipe.makespan_s - 1
    assert answer.change == pytest.approx(measured, abs=0.1), "two cores may be others' meanwhile"
