"""Stragglers of Timelines whose slow stage or device is known."""

import random
from dataclasses import replace

import pytest

from pipesched.schedules import Span, Timeline
from pipesched.schedules.builders import build
from pipesched.schedules.ops import Phase
from pipesched.simulator.analysis import Straggler, device_speeds, straggler, waits_by_stage
from tests.hand_timelines import SECONDS, play


def slow_stages(name, factors, microbatches=16, chunks=None, ranks=4):
    """Return a run in which some stages take longer."""
    lists = build(name, ranks, microbatches, chunks)
    return play(lists, 0.1, seconds=lambda op: SECONDS[op.phase] * factors.get(op.stage, 1.0))


@pytest.mark.parametrize(
    ("name", "stage", "factor"),
    [("1f1b", 0, 1.3), ("1f1b", 2, 1.1), ("gpipe", 1, 2.5), ("gpipe", 3, 1.3), ("zb_h1", 1, 1.3), ("zb_h1", 0, 2.5)],
)
def test_the_slow_stage_is_named(name, stage, factor):
    slow = straggler(slow_stages(name, {stage: factor}))
    assert (slow.stages, slow.ranks, slow.is_device) == ((stage,), (stage,), False)
    assert slow.factor == pytest.approx(factor)
    assert slow.share > 0.5
    assert slow.is_edge == (stage in (0, 3))
    told = f"takes {factor} times as long as" if slow.is_edge else f"is {factor} times slower than"
    assert slow.sentence.startswith(f"stage {stage} {told} its peers")


@pytest.mark.parametrize(("ranks", "microbatches"), [(6, 6), (6, 12), (8, 8)])
def test_the_chain_of_waits_ends_at_a_stage_that_is_not_the_one_waited_for_most(ranks, microbatches):
    run = slow_stages("1f1b", {4: 1.3}, microbatches, ranks=ranks)
    assert next(iter(waits_by_stage(run))) != 4
    assert straggler(run).stages == (4,)


def test_the_slower_of_two_slow_stages_is_named():
    assert straggler(slow_stages("1f1b", {2: 1.3, 4: 1.5}, ranks=6)).stages == (4,)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "interleaved", "zbv", "zb_h1", "chimera"])
def test_equal_stages_have_no_straggler(name):
    chunks = 2 if name == "interleaved" else None
    assert straggler(slow_stages(name, {}, chunks=chunks)) is None
    assert straggler(Timeline("empty", "measured", (), (0,))) is None


def test_a_last_stage_at_which_no_chain_ends_is_not_named():
    run = slow_stages("1f1b", {1: 2.0, 3: 1.2})
    assert straggler(run).stages == (1,)
    quick_drain = slow_stages("1f1b", {3: 1.2}, microbatches=16)
    spans = tuple(  # rank 0 is busy for ever with its first forward
        replace(span, start_s=span.start_s - 500, posted_s=-500.0) if span.rank == 0 and str(span.op) == "0F0" else span
        for span in quick_drain.spans
    )
    assert straggler(replace(quick_drain, spans=spans)) is None


@pytest.mark.parametrize(("name", "chunks", "stages"), [("interleaved", 2, (2, 6)), ("zbv", None, (2, 5))])
def test_a_device_whose_stages_are_all_slow_is_the_straggler(name, chunks, stages):
    slow = straggler(slow_stages(name, dict.fromkeys(stages, 1.3), chunks=chunks))
    assert (slow.ranks, slow.stages, slow.is_device, slow.is_edge) == ((2,), stages, True, False)
    assert slow.sentence.startswith(f"rank 2 (stages {stages[0]}, {stages[1]}) is 1.3 times slower than its peers")


def test_several_ranks_or_stages_have_peers_of_their_own():
    several = Straggler((1, 2), (1, 2), 1.3, 0.5, is_device=True, is_edge=False)
    assert several.sentence.startswith("ranks 1, 2 (stages 1, 2) are 1.3 times slower than their peers; ")
    ends = Straggler((0,), (0, 3), 1.3, 0.5, is_device=False, is_edge=True)
    assert ends.sentence.startswith(
        "stages 0, 3 take 1.3 times as long as their peers, perhaps because its layers differ; "
    )


def test_one_slow_stage_of_several_on_a_device_is_the_straggler():
    slow = straggler(slow_stages("interleaved", {6: 1.5}, chunks=2))
    assert (slow.stages, slow.is_device) == ((6,), False)


def on_slow_device(run, device, factor):
    """Return a run whose works on a device last so many times as long; when they start does not matter."""
    spans = tuple(
        Span(span.rank, span.op, span.posted_s, span.start_s, span.start_s + factor * (span.end_s - span.start_s))
        if run.rank_to_device[span.rank] == device
        else span
        for span in run.spans
    )
    return replace(run, spans=spans)


def test_a_stage_that_is_quicker_on_another_device_tells_that_the_device_is_slow():
    by_device = device_speeds([on_slow_device(slow_stages("chimera", {}), 2, 1.3)])
    assert [speed.cause for speed in by_device] == ["layers", "layers", "device", "layers"]
    assert by_device[2].slow == pytest.approx((1.3,))
    by_layers = device_speeds([slow_stages("chimera", {2: 1.3})])
    assert {speed.cause for speed in by_layers} == {"layers"}
    assert [dict(speed.odd) for speed in by_layers] == [{}, {2: pytest.approx(1.3)}, {2: pytest.approx(1.3)}, {}]


def test_another_run_tells_that_the_device_was_slow_in_this_one():
    usual, slow = slow_stages("1f1b", {}), on_slow_device(slow_stages("1f1b", {}), 2, 1.3)
    assert device_speeds([slow])[2].cause is None
    assert device_speeds([slow, slow])[2].cause is None
    for runs, factors in (([slow, usual], (1.3, 1.0)), ([usual, slow], (1.0, 1.3))):
        told = device_speeds(runs)[2]
        assert (told.cause, told.slow) == ("device", pytest.approx(factors))


def test_a_profile_says_that_a_stage_of_more_layers_is_not_slow():
    run = slow_stages("1f1b", {1: 2.0, 2: 1.3})
    assert dict(device_speeds([run], expected_s=[1.0, 2.0, 1.0, 1.0])[1].odd) == {}
    assert device_speeds([run], expected_s=[1.0, 2.0, 1.0, 1.0])[2].factor == pytest.approx(1.3)


def test_small_and_noisy_differences_do_not_count():
    assert straggler(slow_stages("1f1b", {2: 1.04})) is None
    noisy = play(
        build("1f1b", 4, 8),
        seconds=lambda op: SECONDS[op.phase] * (1 + (37 * op.stage + 53 * op.microbatch + 11) % 7 / 7),
    )
    assert straggler(noisy) is None


def test_halves_of_a_backward_count_as_one():
    whole = slow_stages("1f1b", {2: 1.3})
    split = play(
        build("zb_h1", 4, 16),
        seconds=lambda op: (
            (1.0 if op.phase in (Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT) else 2.0)
            * (1.3 if op.stage == 2 else 1.0)
        ),
    )
    assert device_speeds([split])[2].factor == pytest.approx(device_speeds([whole])[2].factor)


@pytest.mark.parametrize(("name", "chunks"), [("1f1b", None), ("interleaved", 2), ("gpipe", None), ("chimera", None)])
def test_a_slow_device_is_named_among_noisy_ops_and_no_other_device_is(name, chunks):
    """Ops vary by a log-normal factor of sigma 0.1; one device of four takes 1.3 times as long, or none."""
    lists = build(name, 4, 16, chunks)
    for seed in range(3):
        rng = random.Random(seed)
        noisy = play(lists, 0.1, seconds=lambda op, rng=rng: SECONDS[op.phase] * rng.lognormvariate(0.0, 0.1))
        assert straggler(noisy) is None
        slow = on_slow_device(noisy, 2, 1.3)
        assert device_speeds([slow])[2].factor == pytest.approx(1.3, rel=0.1)
        assert [speed.device for speed in device_speeds([slow]) if speed.odd] == [2]
        assert device_speeds([slow])[2].cause == (None if name in ("1f1b", "gpipe") else "device")
