import re

from hypothesis import given

from pipesched.schedules.builders import one_f_one_b as module
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.one_f_one_b import one_f_one_b, one_f_one_b_afp
from tests.properties import examples
from tests.schedules.builder_rules import MICROBATCHES, RANKS, most_in_flight
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


@examples(30)
@given(RANKS, MICROBATCHES)
def test_without_advance_it_is_1f1b_and_with_a_large_one_gpipe_but_for_the_last_rank(p, m):
    assert one_f_one_b_afp(p, m, advance=0).ops == one_f_one_b(p, m).ops
    assert one_f_one_b_afp(p, m, advance=m).ops[:-1] == gpipe(p, m).ops[:-1]
    assert one_f_one_b_afp(p, m, advance=m).ops[-1] == one_f_one_b(p, m).ops[-1]


def test_every_advance_is_1_unless_said():
    assert one_f_one_b_afp(4, 8) == one_f_one_b_afp(4, 8, advance=1)
