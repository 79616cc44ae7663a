from math import ceil, floor, lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules.builders.one_f_one_b_rr import one_f_one_b_rr
from pipesched.schedules.builders.pipedream import pipedream
from pipesched.schedules.ops import Compute
from pipesched.schedules.weights import staleness
from tests.properties import examples
from tests.schedules.builder_rules import letters


@st.composite
def layouts(draw):
    """(replicas, number of micro-batches)."""
    replicas = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    return replicas, lcm(*replicas) * draw(st.integers(1, 3))


@examples(25)
@given(layouts())
def test_microbatch_i_goes_to_replica_i_mod_r_in_1f1b_with_pipedreams_warmup(layout):
    replicas, m = layout
    total, schedule = sum(replicas), one_f_one_b_rr(sum(replicas), m, replicas)
    assert schedule.routes() == {(s, i): sum(replicas[:s]) + i % r for s, r in enumerate(replicas) for i in range(m)}
    for s, r in enumerate(replicas):
        warmup = floor((total - 1 - sum(replicas[:s])) / r)
        for q in range(r):
            row = schedule.ops[sum(replicas[:s]) + q]
            own = [i for i in range(m) if i % r == q]
            order = [f"F{i}" for i in own[:warmup]]
            for n, i in enumerate(own):
                order += [f"F{own[n + warmup]}"] if n + warmup < len(own) else []
                order.append(f"B{i}")
            assert letters(row).split() == order


@examples(25)
@given(layouts())
def test_f_reads_the_newest_version_of_its_replica_and_b_the_same_again(layout):
    replicas, m = layout
    for row in one_f_one_b_rr(sum(replicas), m, replicas).ops:
        steps, seen = 0, {}
        for op in row:
            if not isinstance(op, Compute):
                steps += type(op).__name__ == "Step"
                continue
            assert op.version == seen.setdefault(op.microbatch, steps)
            assert op.lookahead == 0


@pytest.mark.parametrize("replicas", [(2, 1), (3, 1), (15, 1), (2, 2), (1, 3), (4, 2, 1, 1)])
def test_as_many_microbatches_as_the_paper_admits_are_in_flight_on_the_first_stage(replicas):
    """PipeDream, section 3.2: NOAM = ceil(workers / replicas of the first stage)."""
    schedule = one_f_one_b_rr(sum(replicas), 4 * lcm(*replicas) * 4, replicas)
    first = staleness(schedule).stages[0]
    assert first.ranks == tuple(range(replicas[0]))
    assert first.in_flight == ceil(sum(replicas) / replicas[0]) == first.live_versions


def test_one_replica_of_each_stage_is_pipedream():
    assert one_f_one_b_rr(4, 9, (1, 1, 1, 1)).ops == pipedream(4, 9).ops


def test_two_replicas_of_the_first_stage_unless_said_or_too_few_ranks():
    assert one_f_one_b_rr(4, 8) == one_f_one_b_rr(4, 8, (2, 1, 1))
    assert one_f_one_b_rr(2, 8) == one_f_one_b_rr(2, 8, (1, 1))
