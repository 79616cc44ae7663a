import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import one_f_one_b as module
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.one_f_one_b import one_f_one_b, one_f_one_b_afp
from tests.properties import examples
from tests.schedules.builder_rules import MICROBATCHES, RANKS, assert_one_line, assert_sound, letters, most_in_flight
from tests.schedules.drawings import cells, drawn

SLOW_LINK = """
    rank 0  F0 F1 .. .. .. B0 F2 B1 F3 .. .. B2 .. B3
    rank 1  .. .. F0 B0 F1 B1 .. .. F2 B2 F3 B3 .. ..
"""
SLOW_LINK_ADVANCED = """
    rank 0  F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3
    rank 1  .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. ..
"""


def test_over_a_slow_link_it_runs_as_drawn_with_and_without_advance():
    assert drawn(one_f_one_b(2, 4), transfer=1) == cells(SLOW_LINK)
    assert drawn(one_f_one_b_afp(2, 4, advance=1), transfer=1) == cells(SLOW_LINK_ADVANCED)
    side_by_side = [
        re.split(r"  (?=rank)", line.strip()) for line in module.__doc__.splitlines() if line.count("rank ") == 2
    ]
    assert side_by_side == [
        [left.strip(), right.strip()]
        for left, right in zip(SLOW_LINK.strip().splitlines(), SLOW_LINK_ADVANCED.strip().splitlines(), strict=True)
    ]


def test_avgpipes_figure_7_with_a_transfer_as_long_as_a_forward_takes_26_columns_and_20_with_advance():
    def columns(schedule):
        return len(drawn(schedule, transfer=1)[0])

    assert columns(one_f_one_b(2, 8)) == 26
    assert columns(one_f_one_b_afp(2, 8, advance=1)) == 20
    assert columns(gpipe(2, 8)) == 20
    assert most_in_flight(one_f_one_b_afp(2, 8, advance=1))[0] == 3


@examples(60)
@given(RANKS, MICROBATCHES)
def test_1f1b_is_sound_and_holds_no_more_than_the_ranks_behind_it(p, m):
    schedule = one_f_one_b(p, m)
    assert_sound(schedule, p, m)
    assert most_in_flight(schedule) == [min(m, p - k) for k in range(p)]


@examples(60)
@given(RANKS, MICROBATCHES, st.integers(0, 30))
def test_advance_is_sound_and_holds_that_many_more_on_every_rank_but_the_last(p, m, advance):
    schedule = one_f_one_b_afp(p, m, advance)
    assert_sound(schedule, p, m)
    assert most_in_flight(schedule) == [min(m, p - 1 - k + advance + 1) for k in range(p - 1)] + [1]


@examples(30)
@given(RANKS, MICROBATCHES)
def test_without_advance_it_is_1f1b_and_with_a_large_one_gpipe_but_for_the_last_rank(p, m):
    assert one_f_one_b_afp(p, m, advance=0).ops == one_f_one_b(p, m).ops
    assert one_f_one_b_afp(p, m, advance=m).ops[:-1] == gpipe(p, m).ops[:-1]
    assert one_f_one_b_afp(p, m, advance=m).ops[-1] == one_f_one_b(p, m).ops[-1]


def test_fewer_microbatches_than_ranks_all_go_ahead():
    rows = [letters(row) for row in one_f_one_b(4, 2).ops]
    assert rows == ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]


def test_one_rank_alternates_whatever_the_advance():
    assert letters(one_f_one_b(1, 3).ops[0]) == letters(one_f_one_b_afp(1, 3, advance=5).ops[0]) == "F0 B0 F1 B1 F2 B2"


def test_every_advance_is_1_unless_said():
    assert one_f_one_b_afp(4, 8) == one_f_one_b_afp(4, 8, advance=1)


@pytest.mark.parametrize("advance", [-1, 1.5, "1", True, None])
def test_a_bad_advance_is_one_line(advance):
    with pytest.raises(ScheduleError) as error:
        one_f_one_b_afp(2, 4, advance=advance)
    assert_one_line(str(error.value), f"advance: got {advance!r}", "at least 0")
