import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules.builders import controllable_memory as module
from pipesched.schedules.builders.controllable_memory import v_half, v_half_block, v_min, v_min_block
from pipesched.schedules.weights import staleness
from tests.properties import examples
from tests.schedules.builder_rules import finish_times, most_in_flight
from tests.schedules.drawings import cells, is_in

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
PEAKS = {v_half: lambda p: (p + 2) // 2, v_min: lambda p: (p + 4) // 3}
both = pytest.mark.parametrize("build", PEAKS)
blocks = pytest.mark.parametrize(("block", "drawing"), [(v_min_block, V_MIN_BLOCK), (v_half_block, V_HALF_BLOCK)])


@blocks
def test_the_blocks_are_as_drawn(block, drawing):
    for rank, row in enumerate(cells(drawing)):
        assert dict(zip("FfiI", block(4, rank), strict=True)) == {c: row.index(c) for c in "FfiI"}
    assert is_in(drawing, module.__doc__)


@blocks
def test_a_block_keeps_its_own_order_and_never_meets_another_one(block, drawing):
    for p in range(1, 33):
        down, up, up_again, down_again = zip(*(block(p, rank) for rank in range(p)), strict=True)
        path = [*down, *reversed(up), *up_again, *reversed(down_again)]
        assert path == sorted(set(path))
        assert all(len({slot % 6 for slot in block(p, rank)}) == 4 for rank in range(p))


@both
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 6, 7, 16])
def test_the_peak_is_that_of_the_paper_wherever_there_are_as_many_microbatches(build, p):
    peak = PEAKS[build](p)
    for m in {1, peak - 1 or 1, peak, p, 64}:
        schedule = build(p, m)
        assert len(finish_times(schedule)) == 6 * m * p
        chunks = most_in_flight(schedule)
        assert max(chunks) == 2 * min(m, peak)
        assert tuple(chunks) == staleness(schedule).in_flight


@both
@examples(25)
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
