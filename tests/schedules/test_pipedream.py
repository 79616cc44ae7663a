import pytest
from hypothesis import given, settings

import schedules.pipedream as module
from schedules.one_f_one_b import one_f_one_b
from schedules.op import Compute, Phase, Step
from schedules.pipedream import pipedream
from schedules.schedule import ScheduleError
from schedules.versions import is_consistent, live_versions, reads
from tests.schedules.builder_rules import MICROBATCHES, RANKS, assert_one_line, assert_sound, letters, most_in_flight
from tests.schedules.drawings import cells, drawn, is_in

DRAWING = """
    rank 0  F0@0 F1@0 F2@0 ..   ..   B0@0 F3@1 B1@0 F4@2 B2@0
    rank 1  ..   F0@0 F1@0 ..   B0@0 F2@1 B1@0 F3@2 B2@1 F4@3
    rank 2  ..   ..   F0@0 B0@0 F1@1 B1@1 F2@2 B2@2 F3@3 B3@3
"""


def with_version(op: Compute) -> str:
    return f"{op.phase.value}{op.microbatch}@{op.version}"


def version_of(schedule, stage: int, letter: str, microbatch: int) -> int:
    return next(
        op.version
        for row in schedule.ops
        for op in row
        if isinstance(op, Compute) and (op.phase.value, op.stage, op.microbatch) == (letter, stage, microbatch)
    )


def test_it_runs_as_drawn():
    # Drawn without an end: with 8 micro-batches the first 10 columns are still steady.
    assert drawn(pipedream(3, 8), columns=10, cell=with_version) == cells(DRAWING)
    assert is_in(DRAWING, module.__doc__)


@settings(deadline=None, max_examples=40)
@given(RANKS, MICROBATCHES)
def test_it_is_sound_and_in_the_order_of_1f1b(p, m):
    schedule = pipedream(p, m)
    assert_sound(schedule, p, m)
    assert [letters(row) for row in schedule.ops] == [letters(row) for row in one_f_one_b(p, m).ops]
    assert most_in_flight(schedule) == [min(m, p - k) for k in range(p)]


@settings(deadline=None, max_examples=40)
@given(RANKS, MICROBATCHES)
def test_every_backward_is_followed_by_its_step_and_nothing_else_steps(p, m):
    for rank, row in enumerate(pipedream(p, m).ops):
        for op, after in zip(row, [*row[1:], None], strict=True):
            is_backward = isinstance(op, Compute) and op.phase is Phase.BACKWARD
            assert (after == Step(rank)) == is_backward


@settings(deadline=None, max_examples=40)
@given(RANKS, MICROBATCHES)
def test_a_forward_reads_the_newest_weights_and_its_backward_the_same_again(p, m):
    schedule = pipedream(p, m)
    assert is_consistent(schedule)
    for read in reads(schedule):
        expected = max(0, read.op.microbatch - (p - 1 - read.op.stage))
        assert read.op.version == expected
        if read.op.phase is Phase.FORWARD:
            assert read.staleness == 0
        else:
            assert read.current == read.op.microbatch


@pytest.mark.parametrize("p", range(1, 9))
def test_stage_k_of_p_holds_p_minus_k_versions_once_the_run_is_long_enough(p):
    for m in (2 * p - 1, 2 * p, 5 * p):
        assert live_versions(pipedream(p, m)) == {(k, k): p - k for k in range(p)}


@settings(deadline=None, max_examples=40)
@given(RANKS, MICROBATCHES)
def test_what_is_live_is_the_newest_version_and_those_of_the_microbatches_in_flight(p, m):
    for (rank, _), most in live_versions(pipedream(p, m)).items():
        ahead = p - 1 - rank
        in_flight = [range(step, min(step + ahead + 1, m)) for step in range(m)]  # after so many Steps, when fullest
        assert most == max(len({step, *(max(0, i - ahead) for i in row)}) for step, row in enumerate(in_flight))


def test_the_fifth_minibatch_on_four_stages_reads_forwards_as_in_pipeoptims_figure_1():
    """PipeOptim, Fig. 1-2, counts from 1: W2, W3, W4, W5. Weight stashing reads the same again in its backwards."""
    schedule = pipedream(4, 8)
    for letter in "FB":
        assert [version_of(schedule, k, letter, 4) + 1 for k in range(4)] == [2, 3, 4, 5]


def test_one_rank_is_plain_training():
    assert [str(op) for op in pipedream(1, 2).ops[0]] == ["0F0", "0B0", "0STEP", "0F1@1", "0B1@1", "0STEP"]


def test_bad_counts_are_one_line():
    with pytest.raises(ScheduleError) as error:
        pipedream(0, 0)
    assert_one_line(str(error.value), "num_ranks is 0", "num_microbatches is 0")
