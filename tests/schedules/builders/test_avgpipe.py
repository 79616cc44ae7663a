import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import ScheduleError, make_schedule
from pipesched.schedules.builders.avgpipe import avgpipe
from pipesched.schedules.builders.one_f_one_b import one_f_one_b_afp
from pipesched.schedules.check import find_faults
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Average, Recv, Send, Step
from tests.properties import examples
from tests.schedules.builder_rules import assert_one_line, assert_sound, letters, most_in_flight, parts

COUNTS = {"p": st.integers(1, 6), "share": st.integers(1, 8), "pipelines": st.integers(1, 4)}


@examples(40)
@given(**COUNTS, advance=st.integers(0, 9))
def test_it_is_sound_and_holds_on_each_rank_what_a_single_pipeline_does(p, share, pipelines, advance):
    schedule = avgpipe(p, pipelines * share, pipelines, advance)
    assert_sound(schedule, p, pipelines * share)
    assert most_in_flight(schedule) == most_in_flight(one_f_one_b_afp(p, share, advance)) * pipelines


@examples(40)
@given(**COUNTS)
def test_rank_k_of_pipeline_n_has_stage_k_on_device_k_and_the_nth_share_of_the_microbatches(p, share, pipelines):
    schedule = avgpipe(p, pipelines * share, pipelines)
    assert schedule.num_ranks == pipelines * p
    for rank, row in enumerate(schedule.ops):
        pipeline, stage = divmod(rank, p)
        assert schedule.rank_to_device[rank] == stage
        assert {part.stage for part in parts(row)} == {stage}
        assert {part.microbatch for part in parts(row)} == set(range(pipeline * share, (pipeline + 1) * share))


@examples(40)
@given(**COUNTS)
def test_messages_stay_within_their_pipeline(p, share, pipelines):
    schedule = avgpipe(p, pipelines * share, pipelines)
    assert set(schedule.routes()) == {(k, i) for k in range(p) for i in range(pipelines * share)}
    for rank, row in enumerate(lower(schedule).ops):
        assert all(op.peer // p == rank // p for op in row if isinstance(op, Send | Recv))


def test_every_stage_of_every_pipeline_steps_and_is_then_averaged():
    for rank, row in enumerate(avgpipe(3, 12, pipelines=4).ops):
        assert row[-2:] == (Step(rank % 3), Average(rank % 3))
        assert not any(isinstance(op, Step | Average) for op in row[:-2])


def test_one_pipeline_alone_is_1f1b_with_advance_and_averages_with_nobody():
    assert avgpipe(4, 8, pipelines=1, advance=2).ops == one_f_one_b_afp(4, 8, advance=2).ops


def test_a_pipeline_that_is_not_averaged_is_found():
    schedule = avgpipe(2, 4)
    rows = [list(row) for row in schedule.ops]
    rows[2].pop()
    bad = make_schedule("bad", 2, 4, rows, schedule.rank_to_device)
    (finding,) = find_faults(bad)
    assert (finding.rank, finding.text) == (2, "0AVERAGE is missing, which other ranks 0, 2 have")


def test_each_pipeline_goes_ahead_as_far_as_its_advance():
    rows = [letters(row) for row in avgpipe(2, 6, pipelines=2, advance=0).ops]
    assert rows == [
        "F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2",
        "F3 F4 B3 F5 B4 B5", "F3 B3 F4 B4 F5 B5",
    ]  # fmt: skip


@pytest.mark.parametrize(("m", "pipelines", "near"), [(7, 2, "6 or 8"), (8, 3, "6 or 9"), (1, 4, "try 4")])
def test_microbatches_that_cannot_be_shared_out_are_refused_with_the_nearest_that_can(m, pipelines, near):
    with pytest.raises(ScheduleError) as error:
        avgpipe(2, m, pipelines)
    assert_one_line(str(error.value), f"got {m} micro-batches on {pipelines} pipelines", near)


@pytest.mark.parametrize(
    ("counts", "fault"),
    [
        ({"pipelines": 0}, "pipelines is 0"),
        ({"advance": -1}, "advance: got -1"),
        ({"num_ranks": 0, "num_microbatches": -4}, "num_ranks is 0"),
    ],
)
def test_bad_counts_are_one_line(counts, fault):
    with pytest.raises(ScheduleError) as error:
        avgpipe(**{"num_ranks": 2, "num_microbatches": 4, **counts})
    assert_one_line(str(error.value), fault, "expected an integer of at least")
