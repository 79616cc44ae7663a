"""1F1B with advance, alone and in pipelines side by side."""

import re

from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules.builders import one_f_one_b as module
from pipesched.schedules.builders.avgpipe import avgpipe
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.one_f_one_b import one_f_one_b, one_f_one_b_afp
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Recv, Send
from tests.properties import examples
from tests.schedules.builder_rules import MICROBATCHES, RANKS
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


@examples(25)
@given(RANKS, MICROBATCHES)
def test_without_advance_it_is_1f1b_and_with_a_large_one_gpipe_but_for_the_last_rank(p, m):
    assert one_f_one_b_afp(p, m, advance=0).ops == one_f_one_b(p, m).ops
    assert one_f_one_b_afp(p, m, advance=m).ops[:-1] == gpipe(p, m).ops[:-1]
    assert one_f_one_b_afp(p, m, advance=m).ops[-1] == one_f_one_b(p, m).ops[-1]


COUNTS = {"p": st.integers(1, 6), "share": st.integers(1, 8), "pipelines": st.integers(1, 4)}


@examples(25)
@given(**COUNTS)
def test_messages_stay_within_their_pipeline(p, share, pipelines):
    schedule = avgpipe(p, pipelines * share, pipelines)
    assert set(schedule.routes()) == {(k, i) for k in range(p) for i in range(pipelines * share)}
    for rank, row in enumerate(lower(schedule).ops):
        assert all(op.peer // p == rank // p for op in row if isinstance(op, Send | Recv))


def test_one_pipeline_alone_is_1f1b_with_advance_and_averages_with_nobody():
    assert avgpipe(4, 8, pipelines=1, advance=2).ops == one_f_one_b_afp(4, 8, advance=2).ops
