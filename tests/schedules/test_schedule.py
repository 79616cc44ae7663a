import dataclasses

import pytest

from pipesched.schedules import ScheduleError, make_schedule
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.interleaved import interleaved
from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.common import positive
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Overlap, Step, backward, forward, stages_of


def test_the_text_is_a_grid_of_computations_with_a_row_per_rank():
    rows = [[forward(0, 0), forward(0, 1), Step(0)], [forward(1, 0), backward(1, 0, 10), Step(1)]]
    assert str(make_schedule("x", 2, 2, rows)) == "rank 0  0F0    0F1\nrank 1  1F0    1B0@10"


def test_the_text_of_a_lowered_schedule_leaves_out_what_travels():
    schedule = gpipe(3, 2)
    assert str(lower(schedule)) == str(schedule)


def test_an_empty_list_has_an_empty_row():
    assert str(make_schedule("x", 1, 1, [[]])).split() == ["rank", "0"]


def test_each_rank_has_a_device_of_its_own_unless_said():
    rows = [[forward(0, 0)], [forward(1, 0)], [forward(2, 0)]]
    assert make_schedule("x", 3, 1, rows).rank_to_device == (0, 1, 2)
    shared = make_schedule("x", 3, 1, rows, (4, 4, 1))
    assert (shared.num_ranks, shared.num_devices) == (3, 2)


def test_lists_become_tuples_that_cannot_change():
    schedule = make_schedule("x", 1, 1, [[forward(0, 0)]])
    assert schedule.ops == ((forward(0, 0),),)
    with pytest.raises(dataclasses.FrozenInstanceError):
        schedule.name = "y"


def test_a_route_leads_to_the_rank_of_the_forward():
    assert interleaved(2, 2, 2).routes() == {(k, i): k % 2 for k in range(4) for i in range(2)}


def test_replicas_of_a_stage_share_its_microbatches_in_the_routes():
    rows = [[forward(0, i), backward(0, i)] for i in range(3)]
    assert make_schedule("replicas", 1, 3, rows).routes() == {(0, 0): 0, (0, 1): 1, (0, 2): 2}


def test_a_forward_inside_an_overlap_is_on_the_route_too():
    rows = [[forward(0, 0), Overlap(forward(0, 1), backward(0, 0)), backward(0, 1)]]
    assert make_schedule("overlap", 1, 2, rows).routes() == {(0, 0): 0, (0, 1): 0}


def test_stages_of_a_list_are_ascending_and_each_once():
    assert stages_of((forward(5, 0), forward(1, 0), backward(5, 0), Step(9))) == (1, 5)
    assert stages_of(()) == ()


@pytest.mark.parametrize("value", [0, -1, 1.0, "3", None, True])
def test_a_count_must_be_a_whole_number_above_0(value):
    with pytest.raises(ScheduleError, match=r"^widgets is .*, expected an integer of at least 1$"):
        positive(widgets=value)


def test_all_bad_counts_come_in_one_message_and_good_ones_pass():
    positive(a=1, b=10**9)
    with pytest.raises(ScheduleError) as error:
        positive(a=0, b=2, c=-3)
    assert str(error.value) == "a is 0, expected an integer of at least 1; c is -3, expected an integer of at least 1"


def test_a_grid_is_cut_into_blocks_of_as_many_characters_as_there_are():
    text = one_f_one_b(2, 2).grid(16)
    assert text == "rank 0  0F0 0F1\nrank 1  1F0 1B0\n\nrank 0  0B0 0B1\nrank 1  1F1 1B1"
    assert {line.index(line.split()[2]) for line in str(gpipe(12, 1)).splitlines()} == {9}, "ranks of two digits too"
