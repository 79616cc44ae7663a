import pytest

from pipesched.schedules import Schedule
from pipesched.schedules.builders import dualpipe as module
from pipesched.schedules.builders.dualpipe import dualpipe, dualpipe_v
from pipesched.schedules.ops import Overlap, Phase, stages_of
from tests.schedules.builder_rules import parts
from tests.schedules.drawings import cells, drawn, is_in

DUALPIPE = """
    rank 0  F0  F1  F2  F4  I4  W4  F5  F3& B5  F6& B0  B6  F7& B1  B7  I2  W2  I3  W3
    rank 1  ..  F0  F4  F1  F5  F2  B4  F6& B0  F3& B5  F7& B1  B6  B2  I7  I3  W7  W3
    rank 2  ..  F4  F0  F5  F1  F6  B0  F2& B4  F7& B1  F3& B5  B2  B6  I3  I7  W3  W7
    rank 3  F4  F5  F6  F0  I0  W0  F1  F7& B1  F2& B4  B2  F3& B5  B3  I6  W6  I7  W7
"""
DUALPIPE_V = """
    rank 0  0F0  0F1  0F2  3F0  3I0  3W0  3F1  0F3& 3B1  3F2& 0B0  3B2  3F3& 0B1  3B3  0I2  0W2  0I3  0W3
    rank 1  ..   1F0  2F0  1F1  2F1  1F2  2B0  2F2& 1B0  1F3& 2B1  2F3& 1B1  2B2  1B2  2I3  1I3  2W3  1W3
"""


def marked(schedule: Schedule, skip: int) -> list[list[str]]:
    """Return the drawing, with an & between the two of an Overlap; of each op the first `skip` characters left out."""
    firsts = {op.first for row in schedule.ops for op in row if isinstance(op, Overlap)}
    return drawn(schedule, cell=lambda op: str(op)[skip:] + "&" * (op in firsts))


def test_they_run_as_drawn():
    assert marked(dualpipe(4, 8), skip=1) == cells(DUALPIPE)
    assert marked(dualpipe_v(2, 4), skip=0) == cells(DUALPIPE_V)
    assert is_in(DUALPIPE, module.__doc__)
    assert is_in(DUALPIPE_V, module.__doc__)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 14), (6, 12), (8, 20)])
def test_mirrored_ranks_do_the_same_for_the_microbatches_of_the_other_end(p, m):
    rows = dualpipe(p, m).ops
    for row, mirrored in zip(rows, rows[::-1], strict=True):
        own, other = ([(c.phase, c.stage, c.microbatch) for c in parts(ops)] for ops in (row, mirrored))
        assert own == [(phase, stage, (microbatch + m // 2) % m) for phase, stage, microbatch in other]


def test_overlapped_are_a_forward_and_a_backward_of_the_two_stages_of_a_rank():
    for schedule in (dualpipe(6, 20), dualpipe_v(3, 10)):
        for row in schedule.ops:
            pairs = [op for op in row if isinstance(op, Overlap)]
            assert len(pairs) >= 20 - 2 * 6
            for pair in pairs:
                assert (pair.first.phase, pair.second.phase) == (Phase.FORWARD, Phase.BACKWARD)
                assert (pair.first.stage, pair.second.stage) in (stages_of(row), stages_of(row)[::-1])
