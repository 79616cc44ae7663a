import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import controllable_memory as module
from pipesched.schedules.builders.controllable_memory import v_half, v_half_block, v_min, v_min_block
from pipesched.schedules.ops import stages_of
from pipesched.schedules.weights.versions import stages_in_flight
from tests.schedules.builder_rules import (
    MICROBATCHES,
    RANKS,
    assert_complete,
    assert_one_line,
    assert_ordered,
    assert_sound,
    finish_times,
    most_in_flight,
)
from tests.schedules.drawings import cells, drawn, is_in

V_MIN_BLOCK = """
    rank 0  F . . . . . . f i . . . . . . I
    rank 1  . F . . . . f . . i . . . . I .
    rank 2  . . F . . f . . . . i . . I . .
    rank 3  . . . F f . . . . . . i I . . .
"""
V_HALF_BLOCK = """
    rank 0  F . . . . . . . . . f . . . i . . . . . . . . . . I
    rank 1  . . F . . . . . . f . . . . . . i . . . . . . . I .
    rank 2  . . . . F . . . f . . . . . . . . . i . . . . I . .
    rank 3  . . . . . . F f . . . . . . . . . . . . i . I . . .
"""
V_HALF = """
    rank 0  0F0 0F1 0F2 ..  ..  5F0 5I0 5W0 ..  ..  5F1 5I1 0I0 5W1 0W0 5F2 5I2 0I1 5W2 0W1 ..  0I2 0W2
    rank 1  ..  1F0 1F1 1F2 4F0 ..  ..  4I0 4W0 4F1 1I0 1W0 4I1 4W1 4F2 ..  1I1 4I2 1W1 4W2 1I2 1W2 ..
    rank 2  ..  ..  2F0 3F0 2F1 3F1 ..  ..  3I0 2I0 3W0 2F2 2W0 3F2 3I1 2I1 3W1 2W1 3I2 2I2 3W2 2W2 ..
"""
PEAKS = {v_half: lambda p: (p + 2) // 2, v_min: lambda p: (p + 4) // 3}
both = pytest.mark.parametrize("build", PEAKS)
blocks = pytest.mark.parametrize(("block", "drawing"), [(v_min_block, V_MIN_BLOCK), (v_half_block, V_HALF_BLOCK)])


@blocks
def test_the_blocks_are_as_drawn(block, drawing):
    for rank, row in enumerate(cells(drawing)):
        assert dict(zip("FfiI", block(4, rank), strict=True)) == {c: row.index(c) for c in "FfiI"}
    assert is_in(drawing, module.__doc__)


@blocks
@pytest.mark.parametrize("p", range(1, 33))
def test_a_block_keeps_its_own_order_and_never_meets_another_one(block, drawing, p):
    down, up, up_again, down_again = zip(*(block(p, rank) for rank in range(p)), strict=True)
    path = [*down, *reversed(up), *up_again, *reversed(down_again)]
    assert path == sorted(set(path))
    for rank in range(p):
        assert len({slot % 6 for slot in block(p, rank)}) == 4


def test_v_half_runs_as_drawn():
    assert drawn(v_half(3, 3), cell=str) == cells(V_HALF)
    assert is_in(V_HALF, module.__doc__)


@both
@settings(deadline=None, max_examples=40)
@given(p=RANKS, m=MICROBATCHES)
def test_they_are_sound_on_a_v(build, p, m):
    schedule = build(p, m)
    assert_sound(schedule, 2 * p, m)
    assert [stages_of(row) for row in schedule.ops] == [(k, 2 * p - 1 - k) for k in range(p)]


@both
@pytest.mark.parametrize("p", range(1, 17))
def test_the_peak_is_that_of_the_paper_wherever_there_are_as_many_microbatches(build, p):
    peak = PEAKS[build](p)
    for m in {1, peak - 1 or 1, peak, p, 64}:
        schedule = build(p, m)
        assert_complete(schedule)
        assert_ordered(schedule)
        assert len(finish_times(schedule)) == 6 * m * p
        chunks = most_in_flight(schedule)
        assert max(chunks) == 2 * min(m, peak)
        assert tuple(chunks) == stages_in_flight(schedule)


@both
@settings(deadline=None, max_examples=60)
@given(p=st.integers(1, 12), m=st.integers(1, 24))
def test_no_rank_holds_more_than_it_would_in_the_repeated_blocks(build, p, m):
    """The blocks once more, in plain lists: W in the first slot after its I that is still free."""
    block = v_half_block if build is v_half else v_min_block
    most = 0
    for rank in range(p):
        events = {slot + 6 * i: letter for letter, slot in zip("FfiI", block(p, rank), strict=True) for i in range(m)}
        held = due = 0
        for slot in range(max(events) + 1):
            letter = events.get(slot, "W" if due else ".")
            held += letter in "Ff"
            held -= letter == "W"
            due += (letter in "iI") - (letter == "W")
            most = max(most, held)
    assert max(most_in_flight(build(p, m))) == most


@both
def test_bad_counts_are_named_in_one_line(build):
    with pytest.raises(ScheduleError) as error:
        build(0, -1)
    assert_one_line(str(error.value), "num_ranks is 0", "num_microbatches is -1")
