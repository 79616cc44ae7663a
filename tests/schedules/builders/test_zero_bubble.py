"""Zero-bubble schedules: by hand, by costs, and in a V."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import Schedule
from pipesched.schedules.builders import zero_bubble_auto as module
from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.builders.zbv import zbv
from pipesched.schedules.builders.zero_bubble import zb_h1, zb_h2
from pipesched.schedules.builders.zero_bubble_auto import zb_auto
from pipesched.schedules.ops import Compute, Phase
from tests.properties import examples
from tests.schedules.builder_rules import MICROBATCHES, RANKS, finish_times, letters, most_in_flight, parts
from tests.schedules.drawings import cells, drawn


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


COSTS = st.integers(0, 9).map(float)


def most_held(schedule: Schedule, kept: float) -> list[float]:
    """Return, for each rank, the most that it holds: 1 from F to I, `kept` from I to W."""
    change = {"F": 1.0, "I": kept - 1.0, "W": -kept}
    peaks = []
    for row in schedule.ops:
        held, peak = 0.0, 0.0
        for op in row:
            held += change[op.phase.value] if isinstance(op, Compute) else 0.0
            peak = max(peak, held)
        peaks.append(peak)
    return peaks


@examples(25)
@given(RANKS, MICROBATCHES, COSTS, st.floats(1.0, 20.0), st.floats(0.0, 1.0))
def test_what_is_kept_for_the_weights_counts_with_its_share(p, m, c, limit, kept):
    assert max(most_held(zb_auto(p, m, c=c, limit=limit, kept=kept), kept)) <= limit + 1e-9


@examples(25)
@given(RANKS, MICROBATCHES, COSTS, COSTS, COSTS, COSTS, st.sampled_from([0.1, 1e-3, 7.0]))
def test_only_the_ratios_of_the_costs_matter(p, m, f, i, w, c, unit):
    scaled = [float(f"{cost * unit:.6g}") for cost in (f, i, w, c)]
    assert zb_auto(p, m, *scaled, limit=2 * p).ops == zb_auto(p, m, f, i, w, c, limit=2 * p).ops


@examples(25)
@given(st.integers(1, 8), st.integers(0, 8))
def test_with_equal_costs_each_microbatch_of_memory_takes_a_column_of_idle_time_until_none_is_left(p, more):
    """A rank's columns from its first op to its last: 3 m of work, and the ranks start a column apart."""
    m = 2 * p + 1
    rows = drawn(zb_auto(p, m, limit=p + more))
    spans = [len(" ".join(row).strip(". ").split()) for row in rows]
    assert max(spans) == 3 * m + max(0, p - 1 - more)


def test_a_limit_of_1_is_one_microbatch_at_a_time():
    rows = drawn(zb_auto(2, 2, limit=1))
    assert rows == cells(
        """
        rank 0  F0 .. .. I0 W0 F1 .. .. I1 W1
        rank 1  .. F0 I0 W0 .. .. F1 I1 W1 ..
        """
    )


def test_with_the_memory_of_1f1b_and_equal_costs_it_is_as_fast_as_h1():
    for p, m in [(2, 3), (4, 9), (8, 20)]:
        assert len(drawn(zb_auto(p, m))[0]) == len(drawn(zb_h1(p, m))[0])


def test_more_memory_is_never_slower_here():
    lengths = [len(drawn(zb_auto(4, 9, limit=limit), transfer=1)[0]) for limit in range(1, 10)]
    assert all(after <= before for before, after in pairwise(lengths))
    assert lengths[-1] < lengths[0]


def test_the_list_with_the_shortest_longest_span_of_all_eight_is_taken(monkeypatch):
    spans = []
    original = module._Plan.longest_span

    def recorded(plan):
        spans.append(original(plan))
        return spans[-1]

    monkeypatch.setattr(module._Plan, "longest_span", recorded)
    rows = drawn(zb_auto(4, 12, c=1.0, limit=8), transfer=1)
    assert len(spans) == 8
    assert len(set(spans)) > 1
    assert max(len(" ".join(row).strip(". ").split()) for row in rows) == min(spans)


@pytest.mark.parametrize("p", [1, 2, 3, 5, 8, 16])
def test_with_equal_chunk_times_no_rank_is_idle_between_its_ops_and_none_holds_more_than_2_p_chunks(p):
    for m in (2 * p - 1, 2 * p, 4 * p):
        schedule = zbv(p, m)
        over = finish_times(schedule)
        assert max(over.values()) == 6 * m + p - 1
        for rank, row in enumerate(schedule.ops):
            assert [over[op] for op in parts(row)] == list(range(rank + 1, rank + 6 * m + 1))
        assert most_in_flight(schedule) == [2 * p] * p
