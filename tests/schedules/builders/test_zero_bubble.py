from hypothesis import given

from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.builders.zero_bubble import zb_h1, zb_h2
from pipesched.schedules.ops import Compute, Phase
from tests.properties import examples
from tests.schedules.builder_rules import MICROBATCHES, RANKS, letters


@examples(25)
@given(RANKS, MICROBATCHES)
def test_h1_is_1f1b_when_the_weights_are_left_out(p, m):
    without = [" ".join(text for text in letters(row).split() if text[0] != "W") for row in zb_h1(p, m).ops]
    assert without == [letters(row).replace("B", "I") for row in one_f_one_b(p, m).ops]


@examples(25)
@given(RANKS, MICROBATCHES)
def test_on_rank_k_k_weights_wait_at_a_steady_forward_of_h1_and_twice_as_many_of_h2(p, m):
    for schedule, ahead in ((zb_h1(p, m), 1), (zb_h2(p, m), 2)):
        for rank, row in enumerate(schedule.ops):
            waiting = most = 0
            for op in row[:-1]:
                assert isinstance(op, Compute)
                waiting += (op.phase is Phase.BACKWARD_INPUT) - (op.phase is Phase.BACKWARD_WEIGHT)
                most = max(most, waiting if op.phase is Phase.FORWARD else 0)
            last_forwards = max(0, m - ahead * (p - 1 - rank) - 1)  # I before the last F
            assert most == min(ahead * rank, last_forwards)


def test_with_too_few_microbatches_for_any_overlap_the_weights_come_last():
    assert [letters(row) for row in zb_h2(3, 2).ops] == [
        "F0 F1 I0 W0 I1 W1",
        "F0 F1 I0 I1 W0 W1",
        "F0 I0 F1 I1 W0 W1",
    ]
